//! GGUF, the container of model files: metadata and tensors over a mapped file.
//!
//! What it is for: reading version 2 and 3 files without copying and without trusting them. Every length is checked
//! against the file before it is used, nothing is allocated that the file does not pay for in bytes, and whatever is
//! wrong comes back as a [`ModelError`]. Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.
//!
//! What it is not: it knows no architecture; [`crate::Config`] and [`crate::Model`] say what the keys and tensors
//! mean.
//!
//! ```text
//! "GGUF" | version u32 | tensors u64 | pairs u64
//! pair:   key string | kind u32 | value            (string: length u64, bytes)
//! tensor: name string | rank u32 | dims u64 ... | type u32 | offset u64
//! padding to `general.alignment` (32) | tensor data, each at its offset from here
//! ```

mod header;
mod reader;
mod split;
mod types;
mod value;

pub use header::Header;
pub use types::TensorType;
pub use value::{Array, Value, ValueKind};

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use kept_kernels::mapped::MappedFile;

use crate::ModelError;

/// Where a tensor lies and what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// Block type.
    pub kind: TensorType,
    /// Shape as rows first: `[rows, cols]` for a matrix, `[len]` for a vector (the file stores it reversed, and may fill it up
    /// with ones, which are dropped).
    pub shape: Vec<usize>,
    /// Which file it is in, from 0; models may be split over several.
    pub part: usize,
    /// First byte, from the start of its file.
    pub start: usize,
    /// Length in bytes.
    pub bytes: usize,
}

/// An opened model: one GGUF file, or the parts of a split one.
#[derive(Debug)]
pub struct Gguf {
    /// The parts in order; metadata lies in the first.
    files: Vec<Arc<MappedFile>>,
    version: u32,
    metadata: HashMap<String, Value>,
    tensors: HashMap<String, TensorInfo>,
}

impl Gguf {
    /// Map and parse a file, and the other parts of its model where it is one of several.
    ///
    /// # Errors
    /// [`ModelError`]: `Unreadable`, `NotGguf`, `UnsupportedVersion`, `Truncated`, `Malformed`, `UnsupportedType`,
    /// `PartName`, `MissingPart`.
    pub fn open(path: &Path) -> Result<Gguf, ModelError> {
        let file = map(path)?;
        let parts = reader::read(file.bytes())?;
        split::open(path, file, parts)
    }

    /// The mapped file that a tensor lies in.
    pub fn file_of(&self, tensor: &TensorInfo) -> &Arc<MappedFile> {
        &self.files[tensor.part]
    }

    /// The mapped files, in order; one unless the model is split.
    pub fn files(&self) -> &[Arc<MappedFile>] {
        &self.files
    }

    fn metadata_bytes(&self) -> &[u8] {
        self.files[0].bytes()
    }

    /// GGUF version, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Bytes of all tensors together.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.values().map(|t| t.bytes as u64).sum()
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// All tensors, in no particular order.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorInfo> {
        self.tensors.values()
    }

    /// A metadata value by key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    /// All metadata, in no particular order.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.metadata
            .iter()
            .map(|(key, value)| (key.as_str(), value))
    }

    /// A value as a short text for messages and for `models inspect`.
    pub fn show(&self, value: &Value) -> String {
        value.show(self.metadata_bytes())
    }

    /// A text, or `None` when the key is absent.
    ///
    /// # Errors
    /// [`ModelError::BadValue`] when the value is no UTF-8 text.
    pub fn text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        self.value_as(key, "a text is needed", |value| {
            value.text(self.metadata_bytes())
        })
    }

    /// A whole number that is not negative, or `None` when the key is absent.
    ///
    /// # Errors
    /// [`ModelError::BadValue`].
    pub fn whole(&self, key: &str) -> Result<Option<u64>, ModelError> {
        self.value_as(key, "a whole number is needed", Value::whole)
    }

    /// A number, or `None` when the key is absent.
    ///
    /// # Errors
    /// [`ModelError::BadValue`].
    pub fn number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        self.value_as(key, "a finite number is needed", Value::number)
    }

    /// True or false, or `None` when the key is absent.
    ///
    /// # Errors
    /// [`ModelError::BadValue`].
    pub fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.value_as(key, "true or false is needed", Value::flag)
    }

    /// A list of whole numbers, or `None` when the key is absent.
    ///
    /// # Errors
    /// [`ModelError::BadValue`].
    pub fn wholes(&self, key: &str) -> Result<Option<Vec<u64>>, ModelError> {
        let bytes = self.metadata_bytes();
        self.value_as(key, "a list of whole numbers is needed", |value| {
            value.array()?.wholes(bytes)
        })
    }

    /// A list of flags (numbers count as true but for 0), or `None` when the key is absent.
    ///
    /// # Errors
    /// [`ModelError::BadValue`].
    pub fn flags(&self, key: &str) -> Result<Option<Vec<bool>>, ModelError> {
        let bytes = self.metadata_bytes();
        self.value_as(key, "a list of flags is needed", |value| {
            value.array()?.flags(bytes)
        })
    }

    /// A list of numbers, or `None` when the key is absent.
    ///
    /// # Errors
    /// [`ModelError::BadValue`], also where one of them is not finite.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f32>>, ModelError> {
        let bytes = self.metadata_bytes();
        self.value_as(key, "a list of finite numbers is needed", |value| {
            value.array()?.numbers(bytes)
        })
    }

    /// A list of UTF-8 texts, or `None` when the key is absent.
    ///
    /// # Errors
    /// [`ModelError::BadValue`].
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, ModelError> {
        let bytes = self.metadata_bytes();
        self.value_as(key, "a list of UTF-8 texts is needed", |value| {
            value.array()?.texts(bytes)
        })
    }

    fn value_as<'a, T>(
        &'a self,
        key: &str,
        needs: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        let Some(value) = self.metadata.get(key) else {
            return Ok(None);
        };
        convert(value)
            .map(Some)
            .ok_or_else(|| ModelError::BadValue {
                key: key.to_owned(),
                value: self.show(value),
                needs: needs.to_owned(),
            })
    }
}

fn map(path: &Path) -> Result<Arc<MappedFile>, ModelError> {
    MappedFile::open(path).map_err(|e| ModelError::Unreadable {
        path: path.to_owned(),
        reason: e.to_string(),
    })
}
