//! Corrupts a good GGUF in one place: a value, a type, an offset, a name. Lengths never change.

use std::path::Path;

/// The bytes of a model file.
#[derive(Debug, Clone)]
pub struct GgufEdit(Vec<u8>);

/// GGUF's type numbers of u32 and string values.
const U32: u32 = 4;
const STRING: u32 = 8;

impl GgufEdit {
    /// Reads a good file.
    pub fn of(path: &Path) -> Self {
        Self(std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    /// The bytes with all edits so far.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Writes the broken file.
    pub fn save(&self, path: &Path) {
        std::fs::write(path, &self.0).expect("a broken model is written");
    }

    /// The offset after the only occurrence of `name` as a length-prefixed string.
    fn after(&self, name: &str) -> usize {
        let mut needle = (name.len() as u64).to_le_bytes().to_vec();
        needle.extend_from_slice(name.as_bytes());
        let mut found =
            (0..=self.0.len() - needle.len()).filter(|&at| self.0[at..].starts_with(&needle));
        let at = found
            .next()
            .unwrap_or_else(|| panic!("{name} is in the file"));
        at + needle.len()
    }

    fn put(mut self, at: usize, bytes: &[u8]) -> Self {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().expect("four bytes"))
    }

    /// Sets a string value to another of the same length.
    pub fn string(self, key: &str, value: &str) -> Self {
        let at = self.after(key);
        assert_eq!(self.u32_at(at), STRING);
        assert_eq!(
            self.u32_at(at + 4) as usize,
            value.len(),
            "the length stays"
        );
        self.put(at + 12, value.as_bytes())
    }

    /// Declares a string value to be `length` bytes long.
    pub fn string_length(self, key: &str, length: u64) -> Self {
        let at = self.after(key);
        assert_eq!(self.u32_at(at), STRING);
        self.put(at + 4, &length.to_le_bytes())
    }

    /// Sets a u32 value.
    pub fn number(self, key: &str, value: u32) -> Self {
        let at = self.after(key);
        assert_eq!(self.u32_at(at), U32);
        self.put(at + 4, &value.to_le_bytes())
    }

    /// Changes the declared type of a value.
    pub fn value_type(self, key: &str, value_type: u32) -> Self {
        let at = self.after(key);
        self.put(at, &value_type.to_le_bytes())
    }

    /// Renames a key or a tensor to a name of the same length.
    pub fn rename(self, from: &str, to: &str) -> Self {
        assert_eq!(from.len(), to.len());
        let at = self.after(from) - from.len();
        self.put(at, to.as_bytes())
    }

    /// Offset and number of a tensor's dimensions.
    fn tensor(&self, name: &str) -> (usize, usize) {
        let at = self.after(name);
        (at + 4, self.u32_at(at) as usize)
    }

    /// Changes the declared type of a tensor.
    pub fn tensor_type(self, name: &str, ggml_type: u32) -> Self {
        let (at, dimensions) = self.tensor(name);
        self.put(at + 8 * dimensions, &ggml_type.to_le_bytes())
    }

    /// Changes a tensor's first dimension.
    pub fn tensor_width(self, name: &str, width: u64) -> Self {
        let (at, _) = self.tensor(name);
        self.put(at, &width.to_le_bytes())
    }

    /// Changes a tensor's data offset.
    pub fn tensor_offset(self, name: &str, offset: u64) -> Self {
        let (at, dimensions) = self.tensor(name);
        self.put(at + 8 * dimensions + 4, &offset.to_le_bytes())
    }

    /// Changes the declared number of tensors.
    pub fn tensor_count(self, count: u64) -> Self {
        self.put(8, &count.to_le_bytes())
    }

    /// Changes the declared number of keys.
    pub fn key_count(self, count: u64) -> Self {
        self.put(16, &count.to_le_bytes())
    }

    /// Changes the declared version of the format.
    pub fn version(self, version: u32) -> Self {
        self.put(4, &version.to_le_bytes())
    }

    /// Truncates the file to `bytes` bytes.
    pub fn cut(mut self, bytes: usize) -> Self {
        self.0.truncate(bytes);
        self
    }
}
