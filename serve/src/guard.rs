//! Who may ask: programs that know the token, through a name of this computer. A web page elsewhere cannot reach the
//! server, even if it rebinds a name of its own to this computer or the browser of this computer shows it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    AUTHORIZATION, HOST, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use crate::Settings;
use crate::error::ApiError;

/// The checks of every request.
pub(crate) struct Guard {
    /// SHA-256 of the token.
    token: [u8; 32],
    /// Address that the server listens on.
    address: SocketAddr,
    origins: Vec<String>,
}

impl Guard {
    pub(crate) fn new(settings: &Settings, address: SocketAddr) -> Self {
        let origin = |given: &String| given.trim_end_matches('/').to_ascii_lowercase();
        Self {
            token: Sha256::digest(&settings.token).into(),
            address,
            origins: settings.origins.iter().map(origin).collect(),
        }
    }

    /// Whether `host` names this computer, with or without a port.
    fn knows_host(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address,
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        if name.eq_ignore_ascii_case("localhost") {
            return true;
        }
        // A name can be rebound to this computer; an address cannot.
        let is_open = self.address.ip().is_unspecified();
        (name.parse::<IpAddr>())
            .is_ok_and(|ip| ip.is_loopback() || is_open || ip == self.address.ip())
    }

    /// Whether pages of `origin` may ask.
    fn allows(&self, origin: &str) -> bool {
        let origin = origin.to_ascii_lowercase();
        let is_local = origin.strip_prefix("http://").is_some_and(|host| {
            let ip = |name: &str| name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
            let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
            name == "localhost" || ip(name.trim_start_matches('[').trim_end_matches(']'))
        });
        is_local || self.origins.contains(&origin)
    }

    /// Compares hashes, so that the time tells nothing about the token.
    fn knows_token(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(AUTHORIZATION).and_then(|v| v.to_str().ok());
        let token = given.and_then(|given| {
            let (scheme, token) = given.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        token.is_some_and(|token| self.token == <[u8; 32]>::from(Sha256::digest(token)))
    }

    fn refusal(&self, request: &Request) -> Option<ApiError> {
        let header = |name: HeaderName| {
            let value = request.headers().get(name)?;
            Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
        };
        let host = header(HOST).or_else(|| request.uri().authority().map(ToString::to_string));
        let host = host.unwrap_or_default();
        if !self.knows_host(&host) {
            return Some(ApiError::Host(host));
        }
        if let Some(origin) = header(ORIGIN).filter(|origin| !self.allows(origin)) {
            return Some(ApiError::Origin(origin));
        }
        let is_free = request.method() == Method::OPTIONS || request.uri().path() == "/health";
        (!is_free && !self.knows_token(request.headers())).then_some(ApiError::Token)
    }
}

/// Refuses requests that may not be answered, and tells browsers which pages may read the answers.
pub(crate) async fn check(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Response {
    let origin = request.headers().get(ORIGIN).cloned();
    let mut response = match guard.refusal(&request) {
        Some(refusal @ (ApiError::Host(_) | ApiError::Origin(_))) => {
            return refusal.into_response();
        }
        Some(refusal) => refusal.into_response(),
        None if request.method() == Method::OPTIONS => StatusCode::NO_CONTENT.into_response(),
        None => next.run(request).await,
    };
    if let Some(origin) = origin {
        let headers = response.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        let given = [
            (ACCESS_CONTROL_ALLOW_HEADERS, "*, authorization"),
            (ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, DELETE"),
            (VARY, "origin"),
        ];
        for (name, value) in given {
            headers.insert(name, HeaderValue::from_static(value));
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(address: &str) -> Guard {
        Guard {
            token: Sha256::digest("secret").into(),
            address: address.parse().expect("an address"),
            origins: vec!["https://chat.example".to_owned()],
        }
    }

    #[test]
    fn only_names_of_this_computer_are_hosts() {
        let local = guard("127.0.0.1:8990");
        for host in [
            "localhost",
            "LOCALHOST:8990",
            "127.0.0.1:8990",
            "[::1]:8990",
            "127.1.2.3",
        ] {
            assert!(local.knows_host(host), "{host}");
        }
        for host in [
            "",
            "kept.example:8990",
            "localhost.example",
            "192.168.1.5:8990",
            "[::2]",
        ] {
            assert!(!local.knows_host(host), "{host}");
        }
        let open = guard("0.0.0.0:8990");
        assert!(open.knows_host("192.168.1.5:8990") && !open.knows_host("kept.example"));
        assert!(guard("192.168.1.5:80").knows_host("192.168.1.5"));
    }

    #[test]
    fn only_local_and_allowed_pages_may_ask() {
        let guard = guard("127.0.0.1:8990");
        for origin in [
            "http://localhost:3000",
            "http://127.0.0.1",
            "http://[::1]:1",
            "https://chat.example",
        ] {
            assert!(guard.allows(origin), "{origin}");
        }
        for origin in [
            "null",
            "http://chat.example",
            "https://chat.example.org",
            "http://localhost.example",
            "https://localhost",
        ] {
            assert!(!guard.allows(origin), "{origin}");
        }
    }

    #[test]
    fn only_the_token_is_the_token() {
        let guard = guard("127.0.0.1:8990");
        let knows = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::from_static(value));
            guard.knows_token(&headers)
        };
        assert!(knows("Bearer secret") && knows("bearer secret"));
        assert!(
            !knows("Bearer secre")
                && !knows("Bearer")
                && !knows("secret")
                && !knows("Basic secret")
        );
        assert!(!guard.knows_token(&HeaderMap::new()));
    }
}
