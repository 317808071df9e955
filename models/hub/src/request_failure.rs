//! Classifies failed requests: whether a retry can help, and the error for the user.

use std::time::Duration;

use reqwest::StatusCode;

use crate::{HubError, RepoId, Settings, catalogue};

/// Longest wait requested by a server that is honoured; a longer one is reported as an error.
const MAX_WAIT: Duration = Duration::from_secs(15 * 60);

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum RequestFailure {
    /// Temporary: a retry may succeed, at once or after `wait`.
    Retryable {
        error: HubError,
        wait: Option<Duration>,
    },
    /// Permanent.
    Permanent(HubError),
    /// The file differs from the hub's list.
    FileChanged,
    /// The received bytes cannot be continued.
    RestartDownload,
}

impl From<HubError> for RequestFailure {
    fn from(error: HubError) -> RequestFailure {
        RequestFailure::Permanent(error)
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
    pub(crate) fn of_hub(
        self,
        settings: &Settings,
        repo: &RepoId,
        file: Option<&str>,
    ) -> RequestFailure {
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
                return RequestFailure::Retryable { error, wait };
            }
            (status, ..) => HubError::Status { host, status },
        };
        RequestFailure::Permanent(refused)
    }

    /// The failure, if the storage behind the hub sent the response. Its signed address may have expired; the hub
    /// issues a new one.
    pub(crate) fn of_storage(self) -> RequestFailure {
        match self.status {
            StatusCode::TOO_MANY_REQUESTS => rate_limited(self.host, self.wait),
            status => RequestFailure::Retryable {
                error: HubError::Status {
                    host: self.host,
                    status: status.as_u16(),
                },
                wait: self.wait,
            },
        }
    }
}

pub(crate) fn retryable(error: HubError) -> RequestFailure {
    RequestFailure::Retryable { error, wait: None }
}

fn rate_limited(host: String, wait: Option<Duration>) -> RequestFailure {
    let error = HubError::RateLimited {
        host,
        seconds: wait.map(|wait| wait.as_secs()),
    };
    match wait {
        Some(wait) if wait > MAX_WAIT => RequestFailure::Permanent(error),
        wait => RequestFailure::Retryable { error, wait },
    }
}
