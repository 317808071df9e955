//! Errors of downloads and of the search for models. Each message is one sentence with the offending value and a
//! remedy.

use std::io;
use std::path::{Path, PathBuf};

use crate::{RepoId, text};

/// Why a model could not be downloaded or found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// Not a valid reference to a model.
    #[error(
        "'{0}' names no model of the hub; write OWNER/NAME:FILE or OWNER/NAME:QUANTISATION, for example \
         HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M"
    )]
    BadReference(String),
    /// `HF_HUB_OFFLINE` is set.
    #[error(
        "HF_HUB_OFFLINE is set, so nothing is fetched; start Kept without it to download '{0}'"
    )]
    Offline(String),
    /// `HF_ENDPOINT` is not a web address.
    #[error(
        "HF_ENDPOINT is '{0}', which is no web address; unset it, or set it for example to https://huggingface.co"
    )]
    BadEndpoint(String),
    /// A token with characters that cannot be sent. The token itself is never displayed.
    #[error(
        "the token from {0} has characters that no token has; copy it again from the hub's settings page"
    )]
    BadToken(String),
    /// The repository does not exist, or is hidden.
    #[error(
        "there is no repository '{repo}' on {host}, or it is private; check the spelling{}",
        if *.with_token { ", and whether your token may read it".to_owned() } else { format!(", or give a token that may read it ({})", token_places()) }
    )]
    NoRepository {
        /// The repository.
        repo: RepoId,
        /// The hub's host.
        host: String,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// The repository of a model in the catalogue does not exist any more.
    #[error(
        "{name} is on Kept's list, but {host} has no '{repo}' any more; find another file of it on {search}, then name its repository"
    )]
    Vanished {
        /// The model's name in the catalogue.
        name: String,
        /// The repository.
        repo: RepoId,
        /// The hub's host.
        host: String,
        /// The hub's page that searches for the model.
        search: String,
    },
    /// The hub rejects the token.
    #[error(
        "{host} does not accept the token from {place}; make a new one on the hub's settings page and put it there"
    )]
    TokenRefused {
        /// The hub's host.
        host: String,
        /// The variable or file the token came from.
        place: String,
    },
    /// The owner requires acceptance of conditions.
    #[error(
        "'{repo}' is gated: its owner wants conditions accepted first; accept them on {page}{}",
        if *.with_token { " with the account of your token, then try again".to_owned() } else { format!(", then give a token of that account ({})", token_places()) }
    )]
    Gated {
        /// The repository.
        repo: RepoId,
        /// Its page.
        page: String,
        /// Whether a token was sent.
        with_token: bool,
    },
    /// The hub denies access without marking the repository as gated.
    #[error(
        "{host} refuses '{repo}' to you; ask its owner for access, or give a token that may read it ({})",
        token_places()
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
        /// The requested file or quantisation.
        what: String,
        /// The models that the repository has.
        offered: Vec<String>,
    },
    /// The repository has no file that Kept can open.
    #[error(
        "'{0}' has no GGUF file; look for a repository of the same model whose name ends in -GGUF"
    )]
    NoGguf(RepoId),
    /// Several models match the request.
    #[error("'{repo}' has several models that fit; say which: {}", text::list(.choices))]
    Ambiguous {
        /// The repository.
        repo: RepoId,
        /// References that are unique, with sizes.
        choices: Vec<String>,
    },
    /// A split model with a missing part on the hub.
    #[error("'{repo}' lacks part {part} of {parts} of '{file}'; choose another quantisation")]
    MissingPart {
        /// The repository.
        repo: RepoId,
        /// The model's first part.
        file: String,
        /// The part, from one.
        part: u32,
        /// Number of parts.
        parts: u32,
    },
    /// The hub has no checksum for the file.
    #[error(
        "{host} names no SHA-256 for '{file}', so it could not be checked; it is not downloaded"
    )]
    NoChecksum {
        /// The hub's host.
        host: String,
        /// The file.
        file: String,
    },
    /// A file that was removed from the hub after the list was received.
    #[error("'{file}' is no longer in '{repo}'; look again for what there is now")]
    Gone {
        /// The repository.
        repo: RepoId,
        /// The file.
        file: String,
    },
    /// Not enough disk space.
    #[error(
        "'{folder}' has {} free, but {} are still to be downloaded: {} are missing; free some space, or set HF_HUB_CACHE to a folder on another disk",
        text::bytes(*.free), text::bytes(*.needed), text::bytes(.needed.saturating_sub(*.free))
    )]
    NoSpace {
        /// The cache folder.
        folder: String,
        /// Bytes free.
        free: u64,
        /// Bytes still to be downloaded.
        needed: u64,
    },
    /// Another process is downloading the same file.
    #[error(
        "'{0}' is being downloaded by another program already; wait until it is done, or stop it there"
    )]
    Locked(String),
    /// The file system does not support locks.
    #[error(
        "'{folder}' is on a disk that cannot lock files ({reason}); set HF_HUB_CACHE to a folder on a local disk"
    )]
    CannotLock {
        /// The cache folder.
        folder: String,
        /// The operating system's message.
        reason: String,
    },
    /// The connection failed.
    #[error(
        "{host} cannot be reached ({reason}); check the connection to the internet, then try again"
    )]
    Unreachable {
        /// The host.
        host: String,
        /// The network error.
        reason: String,
    },
    /// The server sent nothing for too long.
    #[error(
        "{host} has sent nothing for {seconds} seconds; start it again: what has arrived is kept"
    )]
    Stalled {
        /// The host.
        host: String,
        /// The timeout in seconds.
        seconds: u64,
    },
    /// The connection was interrupted repeatedly.
    #[error(
        "the connection to {host} was cut {times} times in a row; what has arrived is kept: start it again to resume"
    )]
    CutOff {
        /// The host.
        host: String,
        /// Consecutive attempts without progress.
        times: u32,
    },
    /// Too many requests.
    #[error("{host} asks to wait{}; try again later", .seconds.map_or(String::new(), |s| format!(" {}", text::duration(s as f64))))]
    RateLimited {
        /// The host.
        host: String,
        /// The requested wait, if given.
        seconds: Option<u64>,
    },
    /// An HTTP error.
    #[error("{host} answers with error {status}; {}", if *.status >= 500 { "the fault is there: try again later" } else { "check HF_ENDPOINT, or try again later" })]
    Status {
        /// The host.
        host: String,
        /// The HTTP status.
        status: u16,
    },
    /// The server does not implement the hub's API.
    #[error("{host} does not answer as the hub does ({what}); check HF_ENDPOINT")]
    NotTheHub {
        /// The host.
        host: String,
        /// The missing or invalid part of the answer.
        what: String,
    },
    /// The hash of the downloaded file is wrong.
    #[error(
        "'{0}' arrived damaged: its SHA-256 is not the one the hub names, so what was downloaded is removed; start it again to download it from the beginning"
    )]
    WrongHash(String),
    /// The server sends another number of bytes than the hub's list has.
    #[error("{host} offers {offered} bytes of '{file}', which has {expected}; try again later")]
    WrongLength {
        /// The host.
        host: String,
        /// The file.
        file: String,
        /// Bytes that the server announces or sends.
        offered: u64,
        /// Bytes according to the hub.
        expected: u64,
    },
    /// The file changed on the hub more than once during the download.
    #[error("'{0}' keeps changing on the hub while it is downloaded; try again later")]
    Changing(String),
    /// A file system error.
    #[error("'{path}' cannot be {doing} ({reason}){}", match .way_out { Some(way) => format!("; {way}"), None => String::new() })]
    Disk {
        /// The file or folder.
        path: String,
        /// `read`, `written`, ...
        doing: &'static str,
        /// The operating system's message.
        reason: String,
        /// A remedy, if known.
        way_out: Option<&'static str>,
    },
    /// A model of the hub that was not downloaded.
    #[error("'{0}' is not on this computer; download it first: kept models pull {0}")]
    NotHere(String),
    /// No model on this computer has the given name.
    #[error(
        "'{name}' is no file, and no model on this computer has that name; kept models list shows those that were found{}",
        if .near.is_empty() { String::new() } else { format!(", such as {}", text::list(.near)) }
    )]
    NoModel {
        /// The name as typed.
        name: String,
        /// Similar names.
        near: Vec<String>,
    },
    /// The model selected by the user does not exist any more.
    #[error(
        "the model chosen with kept models use, '{0}', is not on this computer any more; choose another with kept models use NAME, \
         forget it with kept models use auto, or name one with --model"
    )]
    ChosenGone(String),
    /// Several models on this computer have the given name.
    #[error("'{name}' names several models on this computer; say which: {}", text::list(.candidates))]
    SeveralModels {
        /// The name as typed.
        name: String,
        /// Unique names or paths.
        candidates: Vec<String>,
    },
    /// A model with an unfinished download.
    #[error(
        "'{name}' is not complete: {} of it have arrived; go on with: kept models pull {name}", text::bytes(*.bytes)
    )]
    Unfinished {
        /// Its name.
        name: String,
        /// Bytes received.
        bytes: u64,
    },
    /// A file that Kept must not remove, because it belongs to another program or to the user.
    #[error("'{0}' is not in the hub's cache; Kept removes nothing else: remove it there")]
    NotOurs(String),
    /// An unfinished download of a file that the hub no longer has.
    #[error(
        "'{0}' no longer has the file that was begun; remove what has arrived and download what there is now"
    )]
    Outdated(RepoId),
    /// A path that the user gave as a folder and that is none.
    #[error("'{0}' is no folder; give the folder that holds the models")]
    NoFolder(String),
    /// A bug in Kept.
    #[error("the download has a bug ({0}); please report it; what has arrived is kept")]
    Bug(String),
}

impl HubError {
    /// A file system error at `path`, with a remedy for a full disk and for missing permissions.
    pub(crate) fn disk(path: &Path, doing: &'static str, error: &io::Error) -> HubError {
        let way_out = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Some("free some space, then start it again to resume")
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

    /// Like [`Self::disk`], for use with `map_err`.
    pub(crate) fn on_disk(
        path: impl Into<PathBuf>,
        doing: &'static str,
    ) -> impl FnOnce(io::Error) -> HubError {
        let path = path.into();
        move |error| HubError::disk(&path, doing, &error)
    }

    /// The same error after `times` consecutive attempts.
    pub(crate) fn after(self, times: u32) -> HubError {
        match self {
            HubError::CutOff { host, .. } => HubError::CutOff { host, times },
            other => other,
        }
    }

    /// Whether a retry can succeed without action by the user.
    pub fn is_retryable(&self) -> bool {
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

/// Where a token can be put.
fn token_places() -> String {
    let file = crate::Settings::token_file();
    format!("in HF_TOKEN or the file {}", file.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages that no test of a download or a search produces.
    #[test]
    fn messages_of_rare_errors() {
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
                HubError::Changing(file),
                "'m.gguf' keeps changing on the hub while it is downloaded; try again later",
            ),
            (
                HubError::disk(Path::new("/d/f"), "written", &full),
                "'/d/f' cannot be written (no storage space); free some space, then start it again to resume",
            ),
            (
                HubError::disk(Path::new("/d/f"), "read", &closed),
                "'/d/f' cannot be read (permission denied); check its permissions, or set HF_HUB_CACHE to another folder",
            ),
            (
                HubError::Bug("x".into()),
                "the download has a bug (x); please report it; what has arrived is kept",
            ),
        ] {
            assert_eq!(error.to_string(), says);
        }
    }
}
