//! Errors as clients of OpenAI's API expect them: `{"error": {"message", "type", "param", "code"}}`.

use std::error::Error as _;

use axum::Json;
use axum::extract::multipart::MultipartError;
use axum::extract::rejection::JsonRejection;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use kept_documents::{DocumentError, MAX_SOURCE_BYTES, Why};
use kept_engine::EngineError;
use kept_engine::kernels::format_bytes;
use serde_json::{Value, json};

use crate::MAX_REQUEST_BYTES;

/// Why a body could not be read, by its cause: the rejection itself speaks of types of this program.
fn body_in_words(rejection: &JsonRejection) -> String {
    let cause = || {
        rejection
            .source()
            .map_or_else(String::new, ToString::to_string)
    };
    match rejection {
        JsonRejection::JsonSyntaxError(_) => format!("the body is no JSON: {}", cause()),
        JsonRejection::MissingJsonContentType(_) => {
            "send the body with \"Content-Type: application/json\"".to_owned()
        }
        other if other.status() == StatusCode::PAYLOAD_TOO_LARGE => format!(
            "the body has more than {}: upload documents to /v1/files",
            format_bytes(MAX_REQUEST_BYTES as u64)
        ),
        other => other.body_text(),
    }
}

/// What to send with a document that needs more than its bytes.
fn remedy(error: &DocumentError) -> &'static str {
    match error.why {
        Why::PdfEncrypted => "; the form's part \"password\" takes the password",
        _ if error.pages_to_recognise().is_some() => {
            "; with a part \"recognise\" of \"eng\", or other languages, Kept does so where tesseract is installed"
        }
        _ => "",
    }
}

/// Why a request was refused.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub(crate) enum ApiError {
    #[error(
        "this request has no valid token: send it as \"Authorization: Bearer TOKEN\", with the token of --token, or the one that kept serve printed when it started"
    )]
    Token,
    #[error("the host {0:?} is not this computer: address the server by localhost or 127.0.0.1")]
    Host(String),
    #[error("requests from origin {0} are not allowed: start kept serve with --allow-origin {0}")]
    Origin(String),
    #[error("there is no {0} {1}: kept serve has /v1/chat/completions, /v1/models and /v1/files")]
    Path(Method, String),
    #[error("{1} takes no {0}: the header Allow of this answer names what it takes")]
    Method(Method, String),
    #[error(
        "the model {named:?} is not open here: ask for {open:?}, or for \"kept\", which is the open model"
    )]
    NoModel { named: String, open: String },
    #[error("{}", body_in_words(.0))]
    Body(#[from] JsonRejection),
    #[error("the body must be a JSON object, and is {0}")]
    NoObject(String),
    #[error("the body is no chat completion: {0}")]
    NoRequest(String),
    #[error("{what}")]
    Invalid { param: &'static str, what: String },
    #[error(
        "there is no file {0:?}: upload it to /v1/files first; files do not outlive the server"
    )]
    NoFile(String),
    #[error("the upload is broken off or no form: {0}")]
    Upload(#[from] MultipartError),
    #[error("send the file as multipart/form-data with a boundary, in a part named \"file\"")]
    NoForm,
    #[error("the upload has no part named \"file\" with a file name")]
    NoUpload,
    #[error(
        "a file may have {}, and all files here together {}: send a smaller one, or delete some with DELETE /v1/files/ID",
        format_bytes(MAX_SOURCE_BYTES),
        format_bytes(*most)
    )]
    TooLarge { most: u64 },
    #[error("{}{}", .0, remedy(.0))]
    Document(#[from] DocumentError),
    #[error("{0} questions wait already: ask again later")]
    Busy(usize),
    #[error("the server is shutting down: retry when it runs again")]
    Ending,
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("kept has a bug; please report it: {0}")]
    Bug(String),
}

impl ApiError {
    /// The HTTP status, and the code for programs.
    fn kind(&self) -> (StatusCode, &'static str) {
        match self {
            Self::Token => (StatusCode::UNAUTHORIZED, "invalid_api_key"),
            Self::Host(_) => (StatusCode::FORBIDDEN, "host_not_allowed"),
            Self::Origin(_) => (StatusCode::FORBIDDEN, "origin_not_allowed"),
            Self::Path(..) => (StatusCode::NOT_FOUND, "unknown_url"),
            Self::NoModel { .. } => (StatusCode::NOT_FOUND, "model_not_found"),
            Self::Method(..) => (StatusCode::METHOD_NOT_ALLOWED, "method_not_supported"),
            Self::Body(rejection) => match rejection.status() {
                status @ StatusCode::PAYLOAD_TOO_LARGE => (status, "body_too_large"),
                status => (status, "invalid_json"),
            },
            Self::NoObject(_) | Self::NoRequest(_) | Self::Invalid { .. } => {
                (StatusCode::BAD_REQUEST, "invalid_value")
            }
            Self::NoFile(_) => (StatusCode::NOT_FOUND, "file_not_found"),
            Self::Upload(error) => (error.status(), "invalid_upload"),
            Self::NoForm | Self::NoUpload => (StatusCode::BAD_REQUEST, "invalid_upload"),
            Self::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "file_too_large"),
            Self::Document(_) => (StatusCode::BAD_REQUEST, "unreadable_document"),
            Self::Busy(_) => (StatusCode::TOO_MANY_REQUESTS, "queue_full"),
            Self::Ending => (StatusCode::SERVICE_UNAVAILABLE, "server_ends"),
            Self::Engine(
                EngineError::TooLong { .. }
                | EngineError::TooLongFor { .. }
                | EngineError::QuestionTooLong { .. },
            ) => (StatusCode::BAD_REQUEST, "context_length_exceeded"),
            // Not the request's fault.
            Self::Engine(
                EngineError::Gpu(_)
                | EngineError::Model(_)
                | EngineError::Vault(_)
                | EngineError::DamagedTensor { .. }
                | EngineError::NotANumber
                | EngineError::SamplingFailed(_),
            ) => (StatusCode::INTERNAL_SERVER_ERROR, "failed"),
            Self::Engine(_) => (StatusCode::BAD_REQUEST, "refused"),
            Self::Bug(_) => (StatusCode::INTERNAL_SERVER_ERROR, "bug"),
        }
    }

    /// The error as an object of the API.
    pub(crate) fn body(&self) -> Value {
        let (status, code) = self.kind();
        let kind = match status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::INTERNAL_SERVER_ERROR | StatusCode::SERVICE_UNAVAILABLE => "server_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            _ => "invalid_request_error",
        };
        let param = match self {
            Self::Invalid { param, .. } => Some((*param).to_owned()),
            Self::NoModel { .. } => Some("model".to_owned()),
            Self::Engine(EngineError::Sampling { name, .. }) => Some(name.replace('-', "_")),
            _ => None,
        };
        json!({"error": {
            "message": self.to_string(),
            "type": kind,
            "param": param,
            "code": code,
        }})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.kind().0, Json(self.body())).into_response()
    }
}

/// The answer to another method of a path.
pub(crate) async fn no_such_method(method: Method, uri: Uri) -> ApiError {
    ApiError::Method(method, uri.path().to_owned())
}

/// The answer to any other path.
pub(crate) async fn no_such_path(method: Method, uri: Uri) -> ApiError {
    ApiError::Path(method, uri.path().to_owned())
}
