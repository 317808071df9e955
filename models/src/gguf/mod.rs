//! GGUF, the container format of model files: metadata and tensors over a mapped file.
//!
//! Reads files of version 2 and 3 without copying and without trusting them. Every length is checked against the file
//! size before use, allocations are bounded by the bytes that the file holds, and every defect is returned as a
//! [`ModelError`]. Format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.
//!
//! [`crate::Config`] and [`crate::Model`] interpret keys and tensors; here only `ollama.rs` knows architectures.
//!
//! ```text
//! "GGUF" | version u32 | tensors u64 | pairs u64
//! pair:   key string | kind u32 | value            (string: length u64, bytes)
//! tensor: name string | rank u32 | dims u64 ... | type u32 | offset u64
//! padding to `general.alignment` (32) | tensor data, each at its offset from here
//! ```

mod header;
mod ollama;
mod reader;
mod split;
mod types;
mod value;

pub use header::Header;
pub(crate) use ollama::GEMMA;
pub use types::TensorType;
pub use value::{Array, Value, ValueKind};

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use kept_kernels::mapped::MappedFile;

use crate::ModelError;

/// Name, type, shape and location of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, such as `blk.0.attn_q.weight`.
    pub name: String,
    /// Block type.
    pub kind: TensorType,
    /// Shape, rows first: `[rows, cols]` for a matrix, `[len]` for a vector. The file stores the reverse order and may
    /// pad the rank with ones, which are dropped.
    pub shape: Vec<usize>,
    /// Index of the file that holds the tensor, from 0; a model may be split over several files.
    pub part: usize,
    /// Byte offset from the start of that file.
    pub start: usize,
    /// Length in bytes.
    pub bytes: usize,
}

/// An opened model: one GGUF file, or the parts of a split one.
#[derive(Debug)]
pub struct Gguf {
    /// The parts in order; the first holds the metadata.
    files: Vec<Arc<MappedFile>>,
    metadata: HashMap<String, Value>,
    tensors: HashMap<String, TensorInfo>,
    /// Bytes of tensors that a text model does not use.
    unused_bytes: u64,
}

impl Gguf {
    /// Maps and parses a file and, for a split model, its other parts.
    ///
    /// # Errors
    /// [`ModelError`]: `Unreadable`, `NotGguf`, `UnsupportedVersion`, `Truncated`, `Malformed`, `UnsupportedType`,
    /// `PartName`, `MissingPart`.
    pub fn open(path: &Path) -> Result<Gguf, ModelError> {
        let file = map(path)?;
        let parts = reader::read(file.bytes())?;
        split::open(path, file, parts).map(ollama::translate)
    }

    /// The mapped file that holds `tensor`.
    pub fn file_of(&self, tensor: &TensorInfo) -> &Arc<MappedFile> {
        &self.files[tensor.part]
    }

    /// The mapped files in order; one unless the model is split.
    pub fn files(&self) -> &[Arc<MappedFile>] {
        &self.files
    }

    fn metadata_bytes(&self) -> &[u8] {
        self.files[0].bytes()
    }

    /// Total bytes of all tensors that are used.
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.values().map(|t| t.bytes as u64).sum()
    }

    /// Bytes of tensors that a text model does not use: encoders of images and of sound.
    pub fn unused_bytes(&self) -> u64 {
        self.unused_bytes
    }

    /// Bytes of the files besides the tensors: metadata with the vocabulary as it is written.
    pub fn bytes_besides_tensors(&self) -> u64 {
        let files = self.files.iter().map(|file| file.bytes().len() as u64);
        files
            .sum::<u64>()
            .saturating_sub(self.tensor_bytes() + self.unused_bytes)
    }

    /// A tensor by name.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// All tensors that are used, in no particular order.
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

    /// Formats a value as a short text, for messages and for `models inspect`.
    pub fn show(&self, value: &Value) -> String {
        value.show(self.metadata_bytes())
    }

    /// A string value, or `None` if the key is absent.
    ///
    /// # Errors
    /// [`ModelError::BadValue`] if the value is not a UTF-8 string.
    pub fn text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        self.value_as(key, "a text is needed", |value| {
            value.text(self.metadata_bytes())
        })
    }

    /// A non-negative integer, or `None` if the key is absent.
    ///
    /// # Errors
    /// [`ModelError::BadValue`] if the value is not one.
    pub fn whole(&self, key: &str) -> Result<Option<u64>, ModelError> {
        self.value_as(key, "a whole number is needed", Value::whole)
    }

    /// A finite number, or `None` if the key is absent.
    ///
    /// # Errors
    /// [`ModelError::BadValue`] if the value is not one.
    pub fn number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        self.value_as(key, "a finite number is needed", Value::number)
    }

    /// A boolean, or `None` if the key is absent.
    ///
    /// # Errors
    /// [`ModelError::BadValue`] if the value is not one.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.value_as(key, "true or false is needed", Value::flag)
    }

    /// A list of non-negative integers, or `None` if the key is absent.
    ///
    /// # Errors
    /// [`ModelError::BadValue`] if the value is not one.
    pub fn wholes(&self, key: &str) -> Result<Option<Vec<u64>>, ModelError> {
        let bytes = self.metadata_bytes();
        self.value_as(key, "a list of whole numbers is needed", |value| {
            value.array()?.scalars(bytes, |value| value.whole())
        })
    }

    /// A list of booleans, or `None` if the key is absent. Integers are accepted: 0 is false, all others are true.
    ///
    /// # Errors
    /// [`ModelError::BadValue`] if the value is not one.
    pub fn flags(&self, key: &str) -> Result<Option<Vec<bool>>, ModelError> {
        let bytes = self.metadata_bytes();
        self.value_as(key, "a list of flags is needed", |value| {
            let flag = |value: Value| value.flag().or(value.whole().map(|n| n != 0));
            value.array()?.scalars(bytes, flag)
        })
    }

    /// A list of numbers, or `None` if the key is absent.
    ///
    /// # Errors
    /// [`ModelError::BadValue`] if the value is no list of numbers or one of them is not finite.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f32>>, ModelError> {
        let bytes = self.metadata_bytes();
        self.value_as(key, "a list of finite numbers is needed", |value| {
            let number = |value: Value| value.number().map(|n| n as f32);
            value.array()?.scalars(bytes, number)
        })
    }

    /// A list of UTF-8 strings, or `None` if the key is absent.
    ///
    /// # Errors
    /// [`ModelError::BadValue`] if the value is not one.
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
        reason: crate::error::reason(&e),
    })
}
