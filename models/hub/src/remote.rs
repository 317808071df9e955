//! Requests to the hub: the files of a repository, the hash of a file, and its bytes from any offset.
//!
//! These requests are not made with `hf-hub` 0.5: its lists have neither sizes nor hashes; its downloads resume, but cannot
//! be paused, are not checked against a SHA-256, and follow the hub's redirects automatically. Kept uses its cache layout.
//! The addresses are those of the hub's API:
//!
//! ```text
//! GET  /api/models/owner/name/revision/main?blobs=true     commit, and each file with size and SHA-256
//! HEAD /owner/name/resolve/<commit>/<file>                 size and hash of one file, for mirrors with incomplete
//! lists
//! GET  /owner/name/resolve/<commit>/<file>                 302 to the storage; X-Linked-Etag is the SHA-256
//! ```
//!
//! The token is sent only to the hub: this module follows redirects itself, one by one, and adds the header only if the
//! origin is the hub's. Addresses never occur in errors or log lines, because those of the storage are signed.

mod headers;

use std::error::Error;
use std::time::Duration;

use reqwest::header::{self, HeaderName};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Response, StatusCode, Url};
use serde::Deserialize;

use headers::{content_range, retry_after, sha256_of_etag, text};

use crate::choose::Listed;
use crate::reference::is_file_name;
use crate::request_failure::{Refusal, RequestFailure, retryable};
use crate::{HubError, HubFile, RepoId, Settings};

const LINKED_ETAG: HeaderName = HeaderName::from_static("x-linked-etag");
const LINKED_SIZE: HeaderName = HeaderName::from_static("x-linked-size");
const ERROR_CODE: HeaderName = HeaderName::from_static("x-error-code");

const CONNECTING: Duration = Duration::from_secs(15);
const MAX_REDIRECTS: usize = 10;
/// Longest list of files read, in bytes; the largest repositories have a few thousand files.
const MAX_LIST_BYTES: usize = 64 << 20;

/// A response with the bytes of a file.
pub(crate) struct Incoming {
    pub response: Response,
    /// Bytes at the start of the response to skip, because the server does not support ranges.
    pub skip: u64,
    pub host: String,
}

/// The hub's description of a repository.
#[derive(Deserialize)]
struct Info {
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

/// A request for a repository's list of files, or for a file.
struct Request<'a> {
    method: Method,
    repo: &'a RepoId,
    /// `None`: the list.
    file: Option<&'a str>,
    /// First byte to send.
    from: u64,
    /// The file's hash according to the list.
    sha256: Option<&'a str>,
}

/// A connection to one hub. Bound to the runtime on which it was created.
pub(crate) struct Connection {
    settings: Settings,
    endpoint: Url,
    http: Client,
}

impl Connection {
    pub(crate) fn open(settings: &Settings) -> Result<Connection, HubError> {
        let bad_endpoint = || HubError::BadEndpoint(settings.endpoint.clone());
        let endpoint = Url::parse(&settings.endpoint).map_err(|_| bad_endpoint())?;
        if !matches!(endpoint.scheme(), "http" | "https") || !endpoint.has_host() {
            return Err(bad_endpoint());
        }
        if let Some(token) = &settings.token
            && header::HeaderValue::from_str(&format!("Bearer {}", token.secret())).is_err()
        {
            return Err(HubError::BadToken(token.place().to_owned()));
        }
        // Fails if a provider is already installed, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = Client::builder()
            .user_agent(concat!("kept/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECTING)
            .read_timeout(settings.timeout)
            .redirect(Policy::none())
            .build()
            .map_err(|error| HubError::Unreachable {
                host: host(&endpoint),
                reason: root_cause(&error),
            })?;
        Ok(Connection {
            settings: settings.clone(),
            endpoint,
            http,
        })
    }

    fn host(&self) -> String {
        host(&self.endpoint)
    }

    /// The commit of `main`, and all its files.
    pub(crate) async fn list(
        &self,
        repo: &RepoId,
    ) -> Result<(String, Vec<Listed>), RequestFailure> {
        let path = [
            "api",
            "models",
            repo.owner(),
            repo.name(),
            "revision",
            "main",
        ];
        let mut address = self.address(path);
        address.set_query(Some("blobs=true"));
        let request = Request {
            method: Method::GET,
            repo,
            file: None,
            from: 0,
            sha256: None,
        };
        let mut response = self.follow(address, request).await?;
        let mut text = Vec::new();
        while let Some(chunk) = response
            .chunk()
            .await
            .map_err(|error| self.network(&error, self.host()))?
        {
            text.extend_from_slice(&chunk);
            if text.len() > MAX_LIST_BYTES {
                return Err(self.not_the_hub("its list of files does not end").into());
            }
        }
        let info: Info = serde_json::from_slice(&text)
            .map_err(|_| self.not_the_hub("its answer is no list of files"))?;
        let commit = info
            .sha
            .filter(|sha| crate::text::is_hex(sha, 40))
            .ok_or_else(|| self.not_the_hub("it names no commit of the repository"))?;
        let listed = |file: Sibling| {
            let (sha256, size) = file.lfs.map_or((None, None), |lfs| (lfs.sha256, lfs.size));
            is_file_name(&file.rfilename).then(|| Listed {
                path: file.rfilename,
                bytes: size.or(file.size).unwrap_or(0),
                sha256: sha256.and_then(|hash| sha256_of_etag(&hash)),
            })
        };
        Ok((
            commit,
            info.siblings.into_iter().filter_map(listed).collect(),
        ))
    }

    /// The exact length and hash of a file.
    pub(crate) async fn file_info(
        &self,
        repo: &RepoId,
        commit: &str,
        listed: &Listed,
    ) -> Result<HubFile, RequestFailure> {
        if let Some(sha256) = &listed.sha256 {
            return Ok(HubFile {
                repo: repo.clone(),
                commit: commit.to_owned(),
                path: listed.path.clone(),
                bytes: listed.bytes,
                sha256: sha256.clone(),
            });
        }
        let address = self.file(repo, commit, &listed.path);
        let request = Request {
            method: Method::HEAD,
            repo,
            file: Some(&listed.path),
            from: 0,
            sha256: None,
        };
        let response = self.follow(address, request).await?;
        let headers = response.headers();
        let number = |name| text(headers, name)?.parse::<u64>().ok();
        let etag = text(headers, LINKED_ETAG).or_else(|| text(headers, header::ETAG));
        let sha256 = etag.as_deref().and_then(sha256_of_etag);
        Ok(HubFile {
            repo: repo.clone(),
            commit: commit.to_owned(),
            path: listed.path.clone(),
            bytes: number(LINKED_SIZE).unwrap_or(listed.bytes),
            sha256: sha256.ok_or_else(|| HubError::NoChecksum {
                host: self.host(),
                file: listed.path.clone(),
            })?,
        })
    }

    /// The bytes of a file from offset `from` on.
    pub(crate) async fn get(&self, file: &HubFile, from: u64) -> Result<Incoming, RequestFailure> {
        let address = self.file(&file.repo, &file.commit, &file.path);
        let request = Request {
            method: Method::GET,
            repo: &file.repo,
            file: Some(&file.path),
            from,
            sha256: Some(&file.sha256),
        };
        let response = self.follow(address, request).await?;
        let host = host(response.url());
        let wrong = |offered: u64| RequestFailure::Retryable {
            error: HubError::WrongLength {
                host: host.clone(),
                file: file.path.clone(),
                offered,
                expected: file.bytes,
            },
            wait: None,
        };
        let length = text(response.headers(), header::CONTENT_LENGTH).and_then(|n| n.parse().ok());
        match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let range = text(response.headers(), header::CONTENT_RANGE);
                let Some((start, total)) = range.as_deref().and_then(content_range) else {
                    return Err(self.not_the_hub("a range has no bounds").into());
                };
                if start != from {
                    return Err(match from {
                        0 => self
                            .not_the_hub("it sends another range than was asked for")
                            .into(),
                        _ => RequestFailure::RestartDownload,
                    });
                }
                if let Some(total) = total.filter(|total| *total != file.bytes) {
                    return Err(wrong(total));
                }
                Ok(Incoming {
                    response,
                    skip: 0,
                    host,
                })
            }
            StatusCode::OK => match length {
                Some(length) if length != file.bytes => Err(wrong(length)),
                _ => Ok(Incoming {
                    response,
                    skip: from,
                    host,
                }),
            },
            StatusCode::RANGE_NOT_SATISFIABLE if from > 0 => Err(RequestFailure::RestartDownload),
            status => Err(retryable(HubError::Status {
                host,
                status: status.as_u16(),
            })),
        }
    }

    /// An address at the hub, with its path segments escaped.
    fn address<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> Url {
        let mut address = self.endpoint.clone();
        if let Ok(mut segments) = address.path_segments_mut() {
            segments.pop_if_empty().extend(parts);
        }
        address
    }

    fn file(&self, repo: &RepoId, commit: &str, path: &str) -> Url {
        let parts = [repo.owner(), repo.name(), "resolve", commit];
        self.address(parts.into_iter().chain(path.split('/')))
    }

    /// Makes a request and follows redirects to the file. A `HEAD` request stops at the response with the hash. If the
    /// hub's hash differs from the request's, the file has changed.
    async fn follow(
        &self,
        mut address: Url,
        request: Request<'_>,
    ) -> Result<Response, RequestFailure> {
        let Request { method, from, .. } = request;
        for _ in 0..=MAX_REDIRECTS {
            let at_hub = address.origin() == self.endpoint.origin();
            // A compressed response would differ from the bytes that were hashed.
            let mut builder = self
                .http
                .request(method.clone(), address.clone())
                .header(header::ACCEPT_ENCODING, "identity");
            if let Some(token) = self.settings.token.as_ref().filter(|_| at_hub) {
                builder = builder.bearer_auth(token.secret());
            }
            if from > 0 {
                builder = builder.header(header::RANGE, format!("bytes={from}-"));
            }
            let sent = tokio::time::timeout(self.settings.timeout, builder.send()).await;
            let response = sent
                .map_err(|_| retryable(self.stalled(host(&address))))?
                .map_err(|error| self.network(&error, host(&address)))?;
            let status = response.status();
            let named = text(response.headers(), LINKED_ETAG).filter(|_| at_hub);
            if let (Some(expected), Some(named)) = (request.sha256, named)
                && sha256_of_etag(&named).as_deref() != Some(expected)
            {
                return Err(RequestFailure::FileChanged);
            }
            if status.is_success() || (from > 0 && status == StatusCode::RANGE_NOT_SATISFIABLE) {
                return Ok(response);
            }
            if !status.is_redirection() {
                let refusal = Refusal {
                    status,
                    code: &text(response.headers(), ERROR_CODE).unwrap_or_default(),
                    wait: retry_after(response.headers()),
                    host: host(&address),
                };
                return Err(if at_hub {
                    refusal.of_hub(&self.settings, request.repo, request.file)
                } else {
                    refusal.of_storage()
                });
            }
            if method == Method::HEAD && response.headers().contains_key(LINKED_ETAG) {
                return Ok(response);
            }
            let location = text(response.headers(), header::LOCATION);
            let next = location.and_then(|location| address.join(&location).ok());
            let next = next.filter(|next| {
                next.scheme() == "https" || (next.scheme() == "http" && address.scheme() == "http")
            });
            address = next.ok_or_else(|| self.not_the_hub("it leads to no safe address"))?;
        }
        Err(self.not_the_hub("it leads round in circles").into())
    }

    /// Maps a network error: no response, or an incomplete one.
    pub(crate) fn network(&self, error: &reqwest::Error, host: String) -> RequestFailure {
        let reason = root_cause(error);
        if error.is_timeout() && !error.is_connect() {
            retryable(self.stalled(host))
        } else {
            retryable(HubError::Unreachable { host, reason })
        }
    }

    pub(crate) fn stalled(&self, host: String) -> HubError {
        HubError::Stalled {
            host,
            seconds: self.settings.timeout.as_secs(),
        }
    }

    fn not_the_hub(&self, what: &str) -> HubError {
        HubError::NotTheHub {
            host: self.host(),
            what: what.to_owned(),
        }
    }
}

/// `host` or `host:port`.
fn host(address: &Url) -> String {
    let host = address.host_str().unwrap_or_default();
    match address.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

/// The root cause of an error, because the outer errors repeat it and contain addresses.
fn root_cause(error: &reqwest::Error) -> String {
    let mut inner: &dyn Error = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    match inner.downcast_ref::<reqwest::Error>() {
        Some(_) => "no connection".to_owned(),
        None => inner.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_segments_of_addresses_are_escaped() {
        let settings = Settings {
            endpoint: "http://127.0.0.1:1/hub".into(),
            ..Settings::from_variables(&|_| None, None)
        };
        let connection = Connection::open(&settings).unwrap();
        let repo = "a/b".parse().unwrap();
        let address = connection.file(&repo, "c0", "sub/a b#1%.gguf");
        assert_eq!(
            address.as_str(),
            "http://127.0.0.1:1/hub/a/b/resolve/c0/sub/a%20b%231%25.gguf"
        );
    }

    #[test]
    fn an_invalid_endpoint_or_token_is_refused() {
        let with = |endpoint: &str, token: &str| {
            Connection::open(&Settings {
                endpoint: endpoint.into(),
                token: crate::Token::new(token, "HF_TOKEN"),
                ..Settings::from_variables(&|_| None, None)
            })
            .err()
            .map(|error| error.to_string())
        };
        for endpoint in ["nonsense", "ftp://a", "file:///etc"] {
            assert_eq!(
                with(endpoint, ""),
                Some(format!(
                    "HF_ENDPOINT is '{endpoint}', which is no web address; unset it, or set it for example to https://huggingface.co"
                ))
            );
        }
        let refused = with("http://127.0.0.1:1", "hf_a\nb").unwrap();
        assert_eq!(
            refused,
            "the token from HF_TOKEN has characters that no token has; copy it again from the hub's settings page"
        );
        assert_eq!(with("http://127.0.0.1:1", "hf_ab"), None);
    }
}
