//! What can go wrong between the hub and the disk, each in one sentence that names the value and the way out.

use std::io;
use std::path::{Path, PathBuf};

use crate::{RepoId, text};

/// Why a model was not downloaded, or not found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// No name of a model.
    #[error(
        "'{given}' names no model of the hub; write OWNER/NAME:FILE or OWNER/NAME:QUANTISATION, for example \
         HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M"
    )]
    BadReference {
        /// As typed.
        given: String,
    },
    /// `HF_HUB_OFFLINE` is set.
    #[error("HF_HUB_OFFLINE is set, so nothing is fetched; unset it to download '{reference}'")]
    Offline {
        /// What was to be downloaded.
        reference: String,
    },
    /// `HF_ENDPOINT` is no address.
    #[error(
        "HF_ENDPOINT is '{endpoint}', which is no web address; unset it, or set it for example to https://huggingface.co"
    )]
    BadEndpoint {
        /// Its value.
        endpoint: String,
    },
    /// A token with characters that cannot be sent. The token itself is never shown.
    #[error(
        "the token from {place} has characters that no token has; copy it again from the hub's settings page"
    )]
    BadToken {
        /// The variable or file it came from.
        place: String,
    },
    /// The hub knows no such repository, or hides it.
    #[error(
        "there is no repository '{repo}' on {host}, or it is private; check the spelling{}",
        if *.with_token { ", and whether your token may read it" } else { ", or set HF_TOKEN to a token that may read it" }
    )]
    NoRepository {
        /// The repository.
        repo: RepoId,
        /// The hub's host.
        host: String,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// The hub rejects the token.
    #[error(
        "{host} does not accept the token from {place}; make a new one on the hub's settings page and set HF_TOKEN to it"
    )]
    TokenRefused {
        /// The hub's host.
        host: String,
        /// The variable or file the token came from.
        place: String,
    },
    /// The owner wants conditions accepted first.
    #[error(
        "'{repo}' is gated: its owner wants conditions accepted first; accept them on {page}{}",
        if *.with_token { " with the account of your token, then try again" } else { ", then set HF_TOKEN to a token of that account" }
    )]
    Gated {
        /// The repository.
        repo: RepoId,
        /// Its page.
        page: String,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// The hub forbids it without calling it gated.
    #[error(
        "{host} refuses '{repo}' to you; ask its owner for access, or set HF_TOKEN to a token that may read it"
    )]
    Forbidden {
        /// The repository.
        repo: RepoId,
        /// The hub's host.
        host: String,
    },
    /// The repository has no such file.
    #[error("'{repo}' has no model '{what}'; {}", text::offer(.offered))]
    NoFile {
        /// The repository.
        repo: RepoId,
        /// What was asked for.
        what: String,
        /// What it has.
        offered: Vec<String>,
    },
    /// Nothing that Kept could open.
    #[error(
        "'{repo}' has no GGUF file; look for a repository of the same model whose name ends in -GGUF"
    )]
    NoGguf {
        /// The repository.
        repo: RepoId,
    },
    /// More than one model fits what was asked for.
    #[error("'{repo}' has several models that fit; say which: {}", text::list(.choices))]
    Ambiguous {
        /// The repository.
        repo: RepoId,
        /// What can be written instead, with sizes.
        choices: Vec<String>,
    },
    /// A split model of which the hub lacks a part.
    #[error("'{repo}' lacks part {part} of {parts} of '{file}'; choose another quantisation")]
    MissingPart {
        /// The repository.
        repo: RepoId,
        /// The model's first part.
        file: String,
        /// The part, counted from one.
        part: u32,
        /// Number of parts.
        parts: u32,
    },
    /// The hub says nothing that the file could be checked by.
    #[error(
        "{host} names no SHA-256 for '{file}', so it could not be checked; it is not downloaded"
    )]
    NoChecksum {
        /// The hub's host.
        host: String,
        /// The file.
        file: String,
    },
    /// A file that was in the hub's list a moment ago.
    #[error("'{file}' is no longer in '{repo}'; run the same again to see what there is now")]
    Gone {
        /// The repository.
        repo: RepoId,
        /// The file.
        file: String,
    },
    /// The disk is too full.
    #[error(
        "'{folder}' has {} free, but {} are still to be downloaded: {} are missing; free some space, or set HF_HUB_CACHE to a folder on another disk",
        text::bytes(*.free), text::bytes(*.needed), text::bytes(.needed.saturating_sub(*.free))
    )]
    NoSpace {
        /// The cache folder.
        folder: String,
        /// Bytes free.
        free: u64,
        /// Bytes still to come.
        needed: u64,
    },
    /// Another process writes the same file.
    #[error(
        "'{file}' is being downloaded by another program already; wait until it is done, or stop it there"
    )]
    Locked {
        /// The file.
        file: String,
    },
    /// The file system cannot lock.
    #[error(
        "'{folder}' is on a disk that cannot lock files ({reason}); set HF_HUB_CACHE to a folder on a local disk"
    )]
    CannotLock {
        /// The cache folder.
        folder: String,
        /// What the operating system says.
        reason: String,
    },
    /// No connection came about.
    #[error(
        "{host} cannot be reached ({reason}); check the connection to the internet, then run the same again"
    )]
    Unreachable {
        /// The host.
        host: String,
        /// What the network says.
        reason: String,
    },
    /// The server was silent for too long.
    #[error(
        "{host} has sent nothing for {seconds} seconds; run the same again to go on from where it stopped"
    )]
    Stalled {
        /// The host.
        host: String,
        /// The longest silence that is waited for.
        seconds: u64,
    },
    /// The connection was cut again and again.
    #[error(
        "the connection to {host} was cut {times} times in a row; what has arrived is kept: run the same again to go on"
    )]
    CutOff {
        /// The host.
        host: String,
        /// Tries without a byte of progress between them.
        times: u32,
    },
    /// Too many requests.
    #[error("{host} asks to wait{}; run the same again later", .seconds.map_or(String::new(), |s| format!(" {}", text::duration(s as f64))))]
    RateLimited {
        /// The host.
        host: String,
        /// How long, if it says so.
        seconds: Option<u64>,
    },
    /// An answer that is an error.
    #[error("{host} answers with error {status}; {}", if *.status >= 500 { "the fault is there: run the same again later" } else { "check HF_ENDPOINT, or try again later" })]
    Status {
        /// The host.
        host: String,
        /// The HTTP status.
        status: u16,
    },
    /// An answer that is not the hub's.
    #[error("{host} does not answer as the hub does ({what}); check HF_ENDPOINT")]
    NotTheHub {
        /// The host.
        host: String,
        /// What is missing or wrong.
        what: String,
    },
    /// The file that came is not the one the hub names.
    #[error(
        "'{file}' arrived damaged: its SHA-256 is not the one the hub names, so what was downloaded is removed; run the same again to download it anew"
    )]
    WrongHash {
        /// The file.
        file: String,
    },
    /// The server sends another number of bytes than the hub names.
    #[error(
        "{host} offers {offered} bytes of '{file}', which has {expected}; run the same again later"
    )]
    WrongLength {
        /// The host.
        host: String,
        /// The file.
        file: String,
        /// Bytes the server announces or sends.
        offered: u64,
        /// Bytes the hub names.
        expected: u64,
    },
    /// The file changed on the hub more than once while it was downloaded.
    #[error("'{file}' keeps changing on the hub while it is downloaded; run the same again later")]
    Changing {
        /// The file.
        file: String,
    },
    /// Something on disk cannot be read or written.
    #[error("'{path}' cannot be {doing} ({reason}){}", match .way_out { Some(way) => format!("; {way}"), None => String::new() })]
    Disk {
        /// The file or folder.
        path: String,
        /// `read`, `written`, ...
        doing: &'static str,
        /// What the operating system says.
        reason: String,
        /// What helps, where it is known.
        way_out: Option<&'static str>,
    },
    /// A model of the hub that is not on this computer.
    #[error(
        "'{reference}' is not on this computer; download it first: kept models pull {reference}"
    )]
    NotHere {
        /// The reference.
        reference: String,
    },
    /// No model on this computer has that name.
    #[error(
        "'{name}' is no file, and no model on this computer has that name; kept models list shows those that were found{}",
        if .near.is_empty() { String::new() } else { format!(", such as {}", text::list(.near)) }
    )]
    NoModel {
        /// As typed.
        name: String,
        /// Names that resemble it.
        near: Vec<String>,
    },
    /// The model that the user chose is gone.
    #[error(
        "the model chosen with kept models use, '{name}', is not on this computer any more; choose another with kept models use NAME, \
         forget it with kept models use auto, or name one with --model"
    )]
    ChosenGone {
        /// As it was chosen.
        name: String,
    },
    /// Several models on this computer have that name.
    #[error("'{name}' names several models on this computer; say which: {}", text::list(.candidates))]
    SeveralModels {
        /// As typed.
        name: String,
        /// Names or paths that are unique.
        candidates: Vec<String>,
    },
    /// A model whose download is unfinished.
    #[error(
        "'{name}' is not complete: {} of it have arrived; go on with: kept models pull {name}", text::bytes(*.bytes)
    )]
    Unfinished {
        /// Its name.
        name: String,
        /// Bytes there.
        bytes: u64,
    },
    /// A file that is to be removed and is another program's, or the person's own.
    #[error("'{path}' does not lie in the hub's cache; Kept removes nothing else: remove it there")]
    NotOurs {
        /// The file.
        path: String,
    },
    /// What has arrived is of no file that the hub has now.
    #[error(
        "'{repo}' no longer has the file that was begun; remove what has arrived and download what there is now"
    )]
    Outdated {
        /// The repository.
        repo: RepoId,
    },
    /// A folder of the person that is none.
    #[error("'{path}' is no folder; give the folder that holds the models")]
    NoFolder {
        /// As given.
        path: String,
    },
    /// A bug of ours.
    #[error("the download has a bug ({what}); please report it; what has arrived is kept")]
    Bug {
        /// The panic's words.
        what: String,
    },
}

impl HubError {
    /// An error of the file system at `path`; a full disk says what helps.
    pub(crate) fn disk(path: &Path, doing: &'static str, error: &io::Error) -> HubError {
        let way_out = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Some("free some space, then run the same again to go on")
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Some("check its permissions, or set HF_HUB_CACHE to another folder")
            }
            _ => None,
        };
        HubError::Disk {
            path: path.display().to_string(),
            doing,
            reason: error.to_string(),
            way_out,
        }
    }

    /// An adapter for `map_err`.
    pub(crate) fn on_disk(
        path: impl Into<PathBuf>,
        doing: &'static str,
    ) -> impl FnOnce(io::Error) -> HubError {
        let path = path.into();
        move |error| HubError::disk(&path, doing, &error)
    }

    /// The same error after `times` tries in a row.
    pub(crate) fn after(self, times: u32) -> HubError {
        match self {
            HubError::CutOff { host, .. } => HubError::CutOff { host, times },
            other => other,
        }
    }

    /// Whether trying the same again can help without the person changing anything.
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            HubError::Unreachable { .. }
                | HubError::Stalled { .. }
                | HubError::CutOff { .. }
                | HubError::RateLimited { .. }
                | HubError::Status {
                    status: 408 | 429 | 500..,
                    ..
                }
                | HubError::WrongHash { .. }
                | HubError::WrongLength { .. }
                | HubError::Changing { .. }
                | HubError::Locked { .. }
                | HubError::NoSpace { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that no test of a download or a search brings about.
    #[test]
    fn the_sentences_that_are_hard_to_come_by() {
        let repo: RepoId = "a/b".parse().unwrap();
        let (host, file) = ("hub.example".to_owned(), "m.gguf".to_owned());
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let closed = io::Error::from(io::ErrorKind::PermissionDenied);
        for (error, says) in [
            (
                HubError::CannotLock {
                    folder: "/far".into(),
                    reason: "not supported".into(),
                },
                "'/far' is on a disk that cannot lock files (not supported); set HF_HUB_CACHE to a folder on a local disk",
            ),
            (
                HubError::Gated {
                    repo: repo.clone(),
                    page: "https://hub.example/a/b".into(),
                    with_token: true,
                },
                "'a/b' is gated: its owner wants conditions accepted first; accept them on https://hub.example/a/b with the account of your token, then try again",
            ),
            (
                HubError::NoRepository {
                    repo,
                    host,
                    with_token: true,
                },
                "there is no repository 'a/b' on hub.example, or it is private; check the spelling, and whether your token may read it",
            ),
            (
                HubError::Changing { file },
                "'m.gguf' keeps changing on the hub while it is downloaded; run the same again later",
            ),
            (
                HubError::disk(Path::new("/d/f"), "written", &full),
                "'/d/f' cannot be written (no storage space); free some space, then run the same again to go on",
            ),
            (
                HubError::disk(Path::new("/d/f"), "read", &closed),
                "'/d/f' cannot be read (permission denied); check its permissions, or set HF_HUB_CACHE to another folder",
            ),
            (
                HubError::Bug { what: "x".into() },
                "the download has a bug (x); please report it; what has arrived is kept",
            ),
        ] {
            assert_eq!(error.to_string(), says);
        }
    }
}
