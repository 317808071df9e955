//! What an answer that is none means: whether trying again can help, and what the person is told.

use std::time::Duration;

use reqwest::StatusCode;

use crate::{HubError, RepoId, Settings};

/// The longest wait that a server can ask for; beyond it the person is told instead.
const LONGEST_WAIT: Duration = Duration::from_secs(15 * 60);

/// Why a request did not do.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// It may do if it is made again, at once or after `wait`.
    Passing {
        error: HubError,
        wait: Option<Duration>,
    },
    /// It will not do.
    Final(HubError),
    /// The file is another one now than the list said.
    Changed,
    /// What has arrived of the file cannot be continued.
    StartOver,
}

impl From<HubError> for Trouble {
    fn from(error: HubError) -> Trouble {
        Trouble::Final(error)
    }
}

/// A refusal, with what it says in its headers.
pub(crate) struct Refusal<'a> {
    pub status: StatusCode,
    /// `X-Error-Code`, empty for none.
    pub code: &'a str,
    /// `Retry-After`.
    pub wait: Option<Duration>,
    /// Who refuses.
    pub host: String,
}

impl Refusal<'_> {
    /// What it means when the hub says it.
    pub(crate) fn of_hub(self, settings: &Settings, repo: &RepoId, file: Option<&str>) -> Trouble {
        let with_token = settings.token.is_some();
        let (host, repo, wait) = (self.host, repo.clone(), self.wait);
        let no_repository = |repo| HubError::NoRepository {
            repo,
            host: host.clone(),
            with_token,
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

    /// What it means when the storage behind the hub says it: its signed address may have run out, and the hub gives a new one.
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
