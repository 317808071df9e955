//! Kept for programs in C, and through C in other languages: `include/kept.h` is generated from this file.
//!
//! Every function that can fail returns NULL and sets `*error` to one sentence. No panic crosses the boundary. All
//! texts are UTF-8.

mod answer;
mod question;

use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use anyhow::{Context, anyhow};
use kept_engine::Engine;
use kept_engine::documents::Document;

pub use answer::{KeptAnswer, KeptMap};
pub use question::{KeptEvent, KeptQuestion, KeptTurn, KeptWatch};

/// An open model. Several threads may ask it at once.
pub struct KeptModel(Engine);

/// The text of a document.
pub struct KeptDocument(Document);

/// The version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn kept_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Opens a model: the path of a GGUF file, "mini" for the built-in model, or a name that `kept models list` shows.
/// NULL is the model that `kept ask` uses. Close it with `kept_model_close`.
///
/// # Safety
/// `name` is NULL or ends with a zero byte; `error` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kept_model_open(
    name: *const c_char,
    error: *mut *mut c_char,
) -> *mut KeptModel {
    let open = || {
        // SAFETY: the caller's promise.
        let name = unsafe { optional("name", name) }?;
        let path = question::model_path(name)?;
        Ok(KeptModel(Engine::open(&path)?))
    };
    // SAFETY: the caller's promise.
    unsafe { handed(error, open) }
}

/// Closes a model. Its answers stay valid.
///
/// # Safety
/// `model` is NULL or comes from `kept_model_open`, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kept_model_close(model: *mut KeptModel) {
    // SAFETY: the caller's promise.
    unsafe { dropped(model) }
}

/// Reads a file: text, Markdown, source code, PDF, Office, EPUB, HTML, e-mail. Free it with `kept_document_free`.
///
/// # Safety
/// `path` ends with a zero byte; `error` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kept_document_open(
    path: *const c_char,
    error: *mut *mut c_char,
) -> *mut KeptDocument {
    let open = || {
        // SAFETY: the caller's promise.
        let path = unsafe { required("path", path) }?;
        Ok(KeptDocument(Document::open(Path::new(path))?))
    };
    // SAFETY: the caller's promise.
    unsafe { handed(error, open) }
}

/// A document from the `bytes` bytes of a file at `content`. The ending of `name` tells the format: "notes.txt" is
/// text. Free it with `kept_document_free`.
///
/// # Safety
/// `name` ends with a zero byte, `content` has `bytes` bytes; `error` is NULL or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kept_document_of(
    name: *const c_char,
    content: *const u8,
    bytes: usize,
    error: *mut *mut c_char,
) -> *mut KeptDocument {
    let open = || {
        // SAFETY: the caller's promise.
        let name = unsafe { required("name", name) }?;
        if content.is_null() && bytes > 0 {
            return Err(null("content"));
        }
        let content = match bytes {
            0 => Vec::new(),
            // SAFETY: the caller's promise.
            _ => unsafe { std::slice::from_raw_parts(content, bytes) }.to_vec(),
        };
        Ok(KeptDocument(Document::from_bytes(name, content)?))
    };
    // SAFETY: the caller's promise.
    unsafe { handed(error, open) }
}

/// The document's text, which all byte offsets refer to, and its length in `*bytes`. It does not end with a zero byte,
/// and is valid until the document is freed.
///
/// # Safety
/// `document` comes from a function above; `bytes` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kept_document_text(
    document: *const KeptDocument,
    bytes: *mut usize,
) -> *const c_char {
    // SAFETY: the caller's promise.
    let text = unsafe { &(*document).0.text };
    // SAFETY: the caller's promise.
    unsafe { *bytes = text.len() };
    text.as_ptr().cast()
}

/// Frees a document. Its answers stay valid.
///
/// # Safety
/// `document` is NULL or comes from a function above, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kept_document_free(document: *mut KeptDocument) {
    // SAFETY: the caller's promise.
    unsafe { dropped(document) }
}

/// Reads the document with the question and answers; returns when the answer is complete. Free it with
/// `kept_answer_free`.
///
/// # Safety
/// `model` and `document` come from functions above, `question` follows the rules of its fields; `error` is NULL or
/// may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kept_ask(
    model: *const KeptModel,
    document: *const KeptDocument,
    question: *const KeptQuestion,
    error: *mut *mut c_char,
) -> *mut KeptAnswer {
    let ask = || {
        // SAFETY: the caller's promise.
        let model = unsafe { model.as_ref() }.ok_or_else(|| null("model"))?;
        // SAFETY: the caller's promise.
        let document = unsafe { document.as_ref() }.ok_or_else(|| null("document"))?;
        // SAFETY: the caller's promise.
        let question = unsafe { question.as_ref() }.ok_or_else(|| null("question"))?;
        // SAFETY: the caller's promise.
        unsafe { question.ask(&model.0, &document.0) }
    };
    // SAFETY: the caller's promise.
    unsafe { handed(error, ask) }
}

/// The text of an answer, ending with a zero byte, valid until the answer is freed.
///
/// # Safety
/// `answer` comes from `kept_ask`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kept_answer_text(answer: *const KeptAnswer) -> *const c_char {
    // SAFETY: the caller's promise.
    unsafe { (*answer).text.as_ptr() }
}

/// Everything about an answer but its map, as a JSON object: sources, citations, method, rows, bytes, seconds, notes;
/// the names are those of `kept ask --json`. Ends with a zero byte, valid until the answer is freed.
///
/// # Safety
/// `answer` comes from `kept_ask`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kept_answer_json(answer: *const KeptAnswer) -> *const c_char {
    // SAFETY: the caller's promise.
    unsafe { (*answer).json.as_ptr() }
}

/// The retention map of an answer. Its arrays are valid until the answer is freed.
///
/// # Safety
/// `answer` comes from `kept_ask`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kept_answer_map(answer: *const KeptAnswer) -> KeptMap {
    // SAFETY: the caller's promise.
    unsafe { (*answer).map() }
}

/// Frees an answer.
///
/// # Safety
/// `answer` is NULL or comes from `kept_ask`, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kept_answer_free(answer: *mut KeptAnswer) {
    // SAFETY: the caller's promise.
    unsafe { dropped(answer) }
}

/// Frees the sentence of an error.
///
/// # Safety
/// `sentence` is NULL or was set by a function above, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kept_error_free(sentence: *mut c_char) {
    if !sentence.is_null() {
        // SAFETY: it comes from `CString::into_raw` in `handed`.
        drop(unsafe { CString::from_raw(sentence) });
    }
}

/// The text at `pointer`.
///
/// # Safety
/// `pointer` is NULL or ends with a zero byte, and stays as it is for `'a`.
unsafe fn optional<'a>(
    what: &'static str,
    pointer: *const c_char,
) -> anyhow::Result<Option<&'a str>> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str()
        .map(Some)
        .with_context(|| format!("{what} is not UTF-8; convert it first"))
}

/// [`optional`], but NULL is an error.
///
/// # Safety
/// As [`optional`].
unsafe fn required<'a>(what: &'static str, pointer: *const c_char) -> anyhow::Result<&'a str> {
    // SAFETY: the caller's promise.
    unsafe { optional(what, pointer) }?.ok_or_else(|| null(what))
}

/// The error for a pointer that must not be NULL.
fn null(what: &str) -> anyhow::Error {
    anyhow!("{what} is NULL; give it a value")
}

fn bug(what: &str) -> anyhow::Error {
    anyhow!("this is a bug in Kept ({what}); please report it")
}

/// The result of `make` on the heap, or NULL and its error. A panic is an error.
///
/// # Safety
/// `error` is NULL or may be written.
unsafe fn handed<T>(error: *mut *mut c_char, make: impl FnOnce() -> anyhow::Result<T>) -> *mut T {
    let made = catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().cloned();
        let said = said.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(bug(&said.unwrap_or_default()))
    });
    let (made, sentence) = match made {
        Ok(made) => (Box::into_raw(Box::new(made)), std::ptr::null_mut()),
        Err(refusal) => (
            std::ptr::null_mut(),
            nul_terminated(&refusal.to_string()).into_raw(),
        ),
    };
    if !error.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *error = sentence };
    } else {
        // SAFETY: the sentence was made here and given to no one.
        unsafe { kept_error_free(sentence) };
    }
    made
}

/// # Safety
/// `pointer` is NULL or comes from [`handed`], and is not used any more.
unsafe fn dropped<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(pointer) });
    }
}

/// The text with a zero byte at its end; zero bytes inside become U+FFFD.
fn nul_terminated(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{FFFD}")).unwrap_or_default()
}
