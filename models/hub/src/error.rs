//! Errors of downloads and of the search for models. Each message is one sentence with the offending value and a
//! remedy.

use std::io;
use std::path::{Path, PathBuf};

use crate::{RepoId, text};

/// Why a model could not be downloaded or found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
#[non_exhaustive]
pub enum HubError {
    #[error(
        "'{0}' names no model of the hub; write OWNER/NAME:FILE or OWNER/NAME:QUANTISATION, for example \
         HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M"
    )]
    BadReference(String),
    #[error(
        "HF_HUB_OFFLINE is set, so nothing is fetched; start Kept without it to download '{0}'"
    )]
    Offline(String),
    #[error(
        "HF_ENDPOINT is '{0}', which is no web address; unset it, or set it for example to https://huggingface.co"
    )]
    BadEndpoint(String),
    /// The token itself is never displayed.
    #[error(
        "the token from {0} has characters that no token has; copy it again from the hub's settings page"
    )]
    BadToken(String),
    #[error(
        "there is no repository '{repo}' on {host}, or it is private; check the spelling{}",
        if *.with_token { ", and whether your token may read it".to_owned() } else { format!(", or give a token that may read it ({})", token_places()) }
    )]
    NoRepository {
        repo: RepoId,
        host: String,
        with_token: bool,
    },
    /// The repository of a model in the catalogue does not exist any more.
    #[error(
        "{name} is on Kept's list, but {host} has no '{repo}' any more; find another file of it on {search}, then name its repository"
    )]
    Vanished {
        name: String,
        repo: RepoId,
        host: String,
        search: String,
    },
    #[error(
        "{host} does not accept the token from {place}; make a new one on the hub's settings page and put it there"
    )]
    TokenRefused {
        host: String,
        /// The variable or file the token came from.
        place: String,
    },
    #[error(
        "'{repo}' is gated: its owner wants conditions accepted first; accept them on {page}{}",
        if *.with_token { " with the account of your token, then try again".to_owned() } else { format!(", then give a token of that account ({})", token_places()) }
    )]
    Gated {
        repo: RepoId,
        page: String,
        with_token: bool,
    },
    /// The hub denies access without marking the repository as gated.
    #[error(
        "{host} refuses '{repo}' to you; ask its owner for access, or give a token that may read it ({})",
        token_places()
    )]
    Forbidden { repo: RepoId, host: String },
    #[error("'{repo}' has no model '{what}'; {}", text::offer(.offered))]
    NoFile {
        repo: RepoId,
        what: String,
        offered: Vec<String>,
    },
    #[error(
        "'{0}' has no GGUF file; look for a repository of the same model whose name ends in -GGUF"
    )]
    NoGguf(RepoId),
    #[error("'{repo}' has several models that fit; say which: {}", text::list(.choices))]
    Ambiguous {
        repo: RepoId,
        /// References that are unique, with sizes.
        choices: Vec<String>,
    },
    #[error("'{repo}' lacks part {part} of {parts} of '{file}'; choose another quantisation")]
    MissingPart {
        repo: RepoId,
        file: String,
        part: u32,
        parts: u32,
    },
    #[error(
        "{host} names no SHA-256 for '{file}', so it could not be checked; it is not downloaded"
    )]
    NoChecksum { host: String, file: String },
    #[error("'{file}' is no longer in '{repo}'; look again for what there is now")]
    Gone { repo: RepoId, file: String },
    #[error(
        "'{folder}' has {} free, but {} are still to be downloaded: {} are missing; free some space, or set HF_HUB_CACHE to a folder on another disk",
        text::bytes(*.free), text::bytes(*.needed), text::bytes(.needed.saturating_sub(*.free))
    )]
    NoSpace {
        folder: String,
        free: u64,
        needed: u64,
    },
    #[error(
        "'{0}' is being downloaded by another program already; wait until it is done, or stop it there"
    )]
    Locked(String),
    #[error(
        "'{folder}' is on a disk that cannot lock files ({reason}); set HF_HUB_CACHE to a folder on a local disk"
    )]
    CannotLock { folder: String, reason: String },
    #[error(
        "{host} cannot be reached ({reason}); check the connection to the internet, then try again"
    )]
    Unreachable { host: String, reason: String },
    #[error(
        "{host} has sent nothing for {seconds} seconds; start it again: what has arrived is kept"
    )]
    Stalled { host: String, seconds: u64 },
    #[error(
        "the connection to {host} was cut {times} times in a row; what has arrived is kept: start it again to resume"
    )]
    CutOff {
        host: String,
        /// Consecutive attempts without progress.
        times: u32,
    },
    #[error("{host} asks to wait{}; try again later", .seconds.map_or(String::new(), |s| format!(" {}", text::duration(s as f64))))]
    RateLimited {
        host: String,
        /// The requested wait, if given.
        seconds: Option<u64>,
    },
    #[error("{host} answers with error {status}; {}", if *.status >= 500 { "the fault is there: try again later" } else { "check HF_ENDPOINT, or try again later" })]
    Status { host: String, status: u16 },
    #[error("{host} does not answer as the hub does ({what}); check HF_ENDPOINT")]
    NotTheHub {
        host: String,
        /// The missing or invalid part of the answer.
        what: String,
    },
    #[error(
        "'{0}' arrived damaged: its SHA-256 is not the one the hub names, so what was downloaded is removed; start it again to download it from the beginning"
    )]
    WrongHash(String),
    #[error("{host} offers {offered} bytes of '{file}', which has {expected}; try again later")]
    WrongLength {
        host: String,
        file: String,
        offered: u64,
        expected: u64,
    },
    #[error("'{0}' keeps changing on the hub while it is downloaded; try again later")]
    Changing(String),
    #[error("'{path}' cannot be {doing} ({reason}){}", match .way_out { Some(way) => format!("; {way}"), None => String::new() })]
    Disk {
        path: String,
        /// `read`, `written`, ...
        doing: &'static str,
        reason: String,
        way_out: Option<&'static str>,
    },
    #[error("'{0}' is not on this computer; download it first: kept models pull {0}")]
    NotHere(String),
    #[error(
        "'{name}' is no file, and no model on this computer has that name; kept models list shows those that were found{}",
        if .near.is_empty() { String::new() } else { format!(", such as {}", text::list(.near)) }
    )]
    NoModel { name: String, near: Vec<String> },
    #[error(
        "the model chosen with kept models use, '{0}', is not on this computer any more; choose another with kept models use NAME, \
         forget it with kept models use auto, or name one with --model"
    )]
    ChosenGone(String),
    #[error("'{name}' names several models on this computer; say which: {}", text::list(.candidates))]
    SeveralModels {
        name: String,
        /// Unique names or paths.
        candidates: Vec<String>,
    },
    #[error(
        "'{name}' is not complete: {} of it have arrived; go on with: kept models pull {name}", text::bytes(*.bytes)
    )]
    Unfinished { name: String, bytes: u64 },
    /// A file that Kept must not remove, because it belongs to another program or to the user.
    #[error("'{0}' is not in the hub's cache; Kept removes nothing else: remove it there")]
    NotOurs(String),
    #[error(
        "'{0}' no longer has the file that was begun; remove what has arrived and download what there is now"
    )]
    Outdated(RepoId),
    #[error("'{0}' is no folder; give the folder that holds the models")]
    NoFolder(String),
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
