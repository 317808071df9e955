//! Documents that clients upload, in memory: `/v1/files`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Json;
use axum::extract::multipart::MultipartRejection;
use axum::extract::{Multipart, Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use kept_documents::{Document, DocumentError, MAX_SOURCE_BYTES, Recognition};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::error::ApiError;
use crate::{Server, response};

/// Bytes of all files together.
const MAX_TOTAL_BYTES: u64 = 2 * MAX_SOURCE_BYTES;

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

    /// The document `ids` as one text; empty without ids.
    ///
    /// # Errors
    /// [`ApiError::NoFile`].
    pub(crate) fn documents(&self, ids: &[String]) -> Result<Document, ApiError> {
        let files = self.lock();
        let document = |id: &String| {
            let file = files.get(id).ok_or_else(|| ApiError::NoFile(id.clone()))?;
            Ok(Document::clone(&file.document))
        };
        let found: Vec<Document> = ids.iter().map(document).collect::<Result<_, ApiError>>()?;
        Ok(if found.is_empty() {
            Document::empty()
        } else {
            Document::join(found)
        })
    }

    fn bytes(&self) -> u64 {
        let files = self.lock();
        files.values().map(|file| file.document.source_bytes).sum()
    }

    /// Adds a document whose name and bytes have the hash `uploaded`. Each upload has an id of its own.
    fn add(&self, uploaded: Sha256, document: Document, purpose: String) -> Value {
        let mut files = self.lock();
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
        object
    }
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
    while let Some(mut part) = form.next_field().await? {
        match (part.name(), part.file_name().map(ToOwned::to_owned)) {
            (Some("file"), Some(name)) => {
                let left = MAX_TOTAL_BYTES.saturating_sub(server.files.bytes());
                let mut bytes = Vec::new();
                while let Some(piece) = part.chunk().await? {
                    if (bytes.len() + piece.len()) as u64 > left.min(MAX_SOURCE_BYTES) {
                        return Err(ApiError::TooLarge {
                            most: MAX_TOTAL_BYTES,
                        });
                    }
                    bytes.extend_from_slice(&piece);
                }
                file = Some((name, bytes));
            }
            (Some("purpose"), None) => purpose = part.text().await?,
            (Some("password"), None) => upload.password = Some(part.text().await?),
            (Some("recognise"), None) => {
                let languages = part.text().await?;
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
    Ok(Json(server.files.add(hash, document, purpose)))
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
    let document = server.files.documents(&[id])?;
    Ok(([(CONTENT_TYPE, "text/plain; charset=utf-8")], document.text))
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
