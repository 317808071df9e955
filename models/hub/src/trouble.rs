//! Classifies failed requests: whether a retry can help, and the error for the user.

use std::time::Duration;

use reqwest::StatusCode;

use crate::{HubError, RepoId, Settings, catalogue};

/// Longest wait requested by a server that is honoured; a longer one is reported as an error.
const LONGEST_WAIT: Duration = Duration::from_secs(15 * 60);

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// Temporary: a retry may succeed, at once or after `wait`.
    Passing {
        error: HubError,
        wait: Option<Duration>,
    },
    /// Permanent.
    Final(HubError),
    /// The file differs from the hub's list.
    Changed,
    /// The received bytes cannot be continued.
    StartOver,
}

impl From<HubError> for Trouble {
    fn from(error: HubError) -> Trouble {
        Trouble::Final(error)
    }
}

/// An HTTP error response, with the relevant headers.
pub(crate) struct Refusal<'a> {
    pub status: StatusCode,
    /// `X-Error-Code`; empty if absent.
    pub code: &'a str,
    /// `Retry-After`.
    pub wait: Option<Duration>,
    /// The host that sent the response.
    pub host: String,
}

impl Refusal<'_> {
    /// The failure, if the hub sent the response.
    pub(crate) fn of_hub(self, settings: &Settings, repo: &RepoId, file: Option<&str>) -> Trouble {
        let with_token = settings.token.is_some();
        let (host, repo, wait) = (self.host, repo.clone(), self.wait);
        let no_repository = |repo| match catalogue().iter().find(|entry| entry.repo == repo) {
            Some(entry) => HubError::Vanished {
                name: entry.name.clone(),
                search: format!(
                    "{}/models?search={}",
                    settings.endpoint,
                    entry.name.replace(' ', "+")
                ),
                repo,
                host: host.clone(),
            },
            None => HubError::NoRepository {
                repo,
                host: host.clone(),
                with_token,
            },
        };
        let refused = match (self.status.as_u16(), self.code, &settings.token) {
            (401 | 403, "GatedRepo", _) => HubError::Gated {
                page: format!("{}/{repo}", settings.endpoint),
                repo,
                with_token,
            },
            (401 | 404, "RepoNotFound", _) | (401, _, None) => no_repository(repo),
            (401, _, Some(token)) => HubError::TokenRefused {
                place: token.place().to_owned(),
                host,
            },
            (403, ..) => HubError::Forbidden { repo, host },
            (404, ..) => match file {
                Some(file) => HubError::Gone {
                    repo,
                    file: file.to_owned(),
                },
                None => no_repository(repo),
            },
            (429, ..) => return rate_limited(host, wait),
            (status @ (408 | 500..), ..) => {
                let error = HubError::Status { host, status };
                return Trouble::Passing { error, wait };
            }
            (status, ..) => HubError::Status { host, status },
        };
        Trouble::Final(refused)
    }

    /// The failure, if the storage behind the hub sent the response. Its signed address may have expired; the hub
    /// issues a new one.
    pub(crate) fn of_storage(self) -> Trouble {
        match self.status {
            StatusCode::TOO_MANY_REQUESTS => rate_limited(self.host, self.wait),
            status => Trouble::Passing {
                error: HubError::Status {
                    host: self.host,
                    status: status.as_u16(),
                },
                wait: self.wait,
            },
        }
    }
}

pub(crate) fn passing(error: HubError) -> Trouble {
    Trouble::Passing { error, wait: None }
}

fn rate_limited(host: String, wait: Option<Duration>) -> Trouble {
    let error = HubError::RateLimited {
        host,
        seconds: wait.map(|wait| wait.as_secs()),
    };
    match wait {
        Some(wait) if wait > LONGEST_WAIT => Trouble::Final(error),
        wait => Trouble::Passing { error, wait },
    }
}
