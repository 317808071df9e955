//! Documents that clients upload, in memory: `/v1/files`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Json;
use axum::extract::multipart::{Field, MultipartRejection};
use axum::extract::{Multipart, Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use kept_documents::{Document, DocumentError, MAX_SOURCE_BYTES, Recognition};
use kept_engine::kernels::format_bytes;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::error::ApiError;
use crate::{Server, response};

/// Bytes of the texts of all files together.
const MAX_TOTAL_BYTES: u64 = 2 * MAX_SOURCE_BYTES;
const TOO_LARGE: ApiError = ApiError::TooLarge {
    most: MAX_TOTAL_BYTES,
};
/// Bytes of a part of the form other than the file.
const MAX_FIELD_BYTES: u64 = 4096;

/// An uploaded document.
struct File {
    document: Arc<Document>,
    /// Seconds since 1970.
    created: u64,
    purpose: String,
    /// Order of upload.
    number: u64,
}

impl File {
    fn object(&self, id: &str) -> Value {
        json!({
            "id": id,
            "object": "file",
            "bytes": self.document.source_bytes,
            "created_at": self.created,
            "filename": self.document.name,
            "purpose": self.purpose,
            "status": "processed",
            "characters": self.document.text.chars().count(),
            "pages": self.document.pages.len(),
        })
    }
}

/// All uploaded documents by id.
#[derive(Default)]
pub(crate) struct Files(Mutex<BTreeMap<String, File>>);

impl Files {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, File>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The documents `ids`, one for each.
    ///
    /// # Errors
    /// [`ApiError::NoFile`].
    pub(crate) fn documents(&self, ids: &[String]) -> Result<Vec<Arc<Document>>, ApiError> {
        let files = self.lock();
        let document = |id: &String| {
            let file = files.get(id).ok_or_else(|| ApiError::NoFile(id.clone()))?;
            Ok(file.document.clone())
        };
        ids.iter().map(document).collect()
    }

    /// Adds a document whose name and bytes have the hash `uploaded`. Each upload has an id of its own.
    ///
    /// # Errors
    /// [`ApiError::TooLarge`].
    fn add(
        &self,
        uploaded: Sha256,
        document: Document,
        purpose: String,
    ) -> Result<Value, ApiError> {
        let mut files = self.lock();
        if bytes(&files) + document.text.len() as u64 > MAX_TOTAL_BYTES {
            return Err(TOO_LARGE);
        }
        let number = files
            .values()
            .map(|file| file.number + 1)
            .max()
            .unwrap_or(0);
        let file = File {
            document: Arc::new(document),
            created: response::now(),
            purpose,
            number,
        };
        let hash = uploaded.chain_update(number.to_le_bytes()).finalize();
        let digits = hash.iter().take(12).map(|byte| format!("{byte:02x}"));
        let id = format!("file-{}", digits.collect::<String>());
        let object = file.object(&id);
        files.insert(id, file);
        Ok(object)
    }
}

/// Bytes of the texts of all files.
fn bytes(files: &BTreeMap<String, File>) -> u64 {
    files
        .values()
        .map(|file| file.document.text.len() as u64)
        .sum()
}

/// The bytes of a part; `None` if there are more than `most`.
async fn bytes_of(mut part: Field<'_>, most: u64) -> Result<Option<Vec<u8>>, ApiError> {
    let mut bytes = Vec::new();
    while let Some(piece) = part.chunk().await? {
        if (bytes.len() + piece.len()) as u64 > most {
            return Ok(None);
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(Some(bytes))
}

/// The text of the part `param`.
async fn text_of(part: Field<'_>, param: &'static str) -> Result<String, ApiError> {
    let bytes = bytes_of(part, MAX_FIELD_BYTES).await?;
    let bytes = bytes.ok_or_else(|| ApiError::Invalid {
        param,
        what: format!("{param} has more than {}", format_bytes(MAX_FIELD_BYTES)),
    })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A file to be read, as a client sends it.
#[derive(Default)]
struct Upload {
    name: String,
    bytes: Vec<u8>,
    /// Of an encrypted PDF.
    password: Option<String>,
    /// Languages of the text of scanned pages; none if it is not to be recognised.
    languages: Vec<String>,
}

impl Upload {
    fn hash(&self) -> Sha256 {
        Sha256::new()
            .chain_update(&self.name)
            .chain_update(&self.bytes)
    }

    fn read(self, is_stopped: &(dyn Fn() -> bool + Sync)) -> Result<Document, DocumentError> {
        let recognition = Recognition {
            languages: &self.languages,
            progress: &|_, _| {},
            is_stopped,
        };
        match self.password {
            Some(password) => Document::from_reader(&*self.bytes, &self.name, Some(&password)),
            None if self.languages.is_empty() => Document::from_bytes(self.name, self.bytes),
            None => Document::recognise_bytes(self.name, &self.bytes, &recognition),
        }
    }
}

/// `POST /v1/files`: a form with the parts `file`, `purpose`, and where needed `password` and `recognise`.
pub(crate) async fn upload(
    State(server): State<Arc<Server>>,
    form: Result<Multipart, MultipartRejection>,
) -> Result<Json<Value>, ApiError> {
    let mut form = form.map_err(|_| ApiError::NoForm)?;
    let (mut file, mut purpose) = (None, "user_data".to_owned());
    let mut upload = Upload::default();
    while let Some(part) = form.next_field().await? {
        match (part.name(), part.file_name().map(ToOwned::to_owned)) {
            (Some("file"), Some(name)) => {
                let left = MAX_TOTAL_BYTES.saturating_sub(bytes(&server.files.lock()));
                let read = bytes_of(part, left.min(MAX_SOURCE_BYTES)).await?;
                file = Some((name, read.ok_or(TOO_LARGE)?));
            }
            (Some("purpose"), None) => purpose = text_of(part, "purpose").await?,
            (Some("password"), None) => upload.password = Some(text_of(part, "password").await?),
            (Some("recognise"), None) => {
                let languages = text_of(part, "recognise").await?;
                upload.languages = languages.split('+').map(str::to_owned).collect();
            }
            _ => {}
        }
    }
    let (name, bytes) = file.ok_or(ApiError::NoUpload)?;
    // The OCR tools take a password only on the command line, where other users can see it.
    if upload.password.is_some() && !upload.languages.is_empty() {
        let what = "the text of a file with a password is not recognised: send a copy without one";
        return Err(ApiError::Invalid {
            param: "recognise",
            what: what.to_owned(),
        });
    }
    // Only the file name is kept.
    upload.name = name.rsplit(['/', '\\']).next().unwrap_or("").to_owned();
    upload.bytes = bytes;
    let hash = upload.hash();
    // A client that goes away drops this, and with it the sender.
    let (_guard, dropped) = watch::channel(());
    let decoded =
        tokio::task::spawn_blocking(move || upload.read(&|| dropped.has_changed().is_err()));
    let document = decoded
        .await
        .map_err(|error| ApiError::Bug(error.to_string()))??;
    server.files.add(hash, document, purpose).map(Json)
}

/// `GET /v1/files`: the newest first.
pub(crate) async fn list(State(server): State<Arc<Server>>) -> Json<Value> {
    let files = server.files.lock();
    let mut all: Vec<(&String, &File)> = files.iter().collect();
    all.sort_by_key(|(_, file)| std::cmp::Reverse(file.number));
    let data: Vec<Value> = all.into_iter().map(|(id, file)| file.object(id)).collect();
    Json(json!({"object": "list", "data": data, "has_more": false}))
}

/// `GET /v1/files/{id}`
pub(crate) async fn show(
    State(server): State<Arc<Server>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let files = server.files.lock();
    let file = files.get(&id).ok_or_else(|| ApiError::NoFile(id.clone()))?;
    Ok(Json(file.object(&id)))
}

/// `GET /v1/files/{id}/content`: the text that the model reads; all offsets of answers are bytes in it.
pub(crate) async fn content(
    State(server): State<Arc<Server>>,
    Path(id): Path<String>,
) -> Result<impl IntoResponse, ApiError> {
    let text = server.files.documents(&[id])?[0].text.clone();
    Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], text))
}

/// `DELETE /v1/files/{id}`
pub(crate) async fn remove(
    State(server): State<Arc<Server>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let removed = server.files.lock().remove(&id);
    match removed {
        Some(_) => Ok(Json(json!({"id": id, "object": "file", "deleted": true}))),
        None => Err(ApiError::NoFile(id)),
    }
}
