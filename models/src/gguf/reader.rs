//! GGUF parser. It trusts no input: every length is compared with the remaining bytes before it is used.

use std::collections::HashMap;
use std::ops::Range;

use super::value::{Array, Value, ValueKind};
use super::{Gguf, TensorInfo, TensorType};
use crate::ModelError;

/// Longest key, string or list accepted (candle's cap). A longer one means a damaged file, not a large model.
const MAX_LENGTH: u64 = 1 << 30;
/// Most tensors or metadata pairs accepted; a 400B model has about two thousand tensors.
const MAX_ENTRIES: u64 = 1 << 16;
/// Longest name of a key or tensor, in bytes (the format allows 65,535 for keys and 64 for tensors).
const MAX_NAME: usize = 65_535;
/// Deepest nesting of lists accepted.
const MAX_DEPTH: u32 = 8;
/// Largest tensor rank; ggml has the same limit.
const MAX_RANK: u32 = 4;
/// Alignment of tensor data if the file declares none.
const DEFAULT_ALIGNMENT: u64 = 32;

/// Parses a complete file.
pub(super) fn read(bytes: &[u8]) -> Result<Gguf, ModelError> {
    read_header(bytes, bytes.len())
}

/// Parses the header of a file of `file_len` bytes, given its first `bytes`; the result has no files yet. A part of a
/// split model is accepted.
///
/// # Errors
/// `Truncated` if the header needs more than `bytes`, or if the file is shorter than its tensors require.
pub(super) fn read_header(bytes: &[u8], file_len: usize) -> Result<Gguf, ModelError> {
    let mut cursor = Cursor { bytes, at: 0 };
    let (tensor_count, pair_count) = cursor.header()?;
    let mut metadata = HashMap::new();
    for _ in 0..pair_count {
        cursor.pair(&mut metadata)?;
    }
    cursor.tensors(metadata, tensor_count, file_len)
}

/// Parses as many metadata pairs as `bytes`, a prefix of a file, holds. Also returns the declared number of tensors.
pub(super) fn read_beginning(bytes: &[u8]) -> Result<(Gguf, usize), ModelError> {
    let mut cursor = Cursor { bytes, at: 0 };
    let (tensor_count, pair_count) = cursor.header()?;
    let mut metadata = HashMap::new();
    for _ in 0..pair_count {
        match cursor.pair(&mut metadata) {
            Err(ModelError::Truncated { .. }) => break,
            other => other?,
        }
    }
    let beginning = Gguf {
        files: Vec::new(),
        metadata,
        tensors: HashMap::new(),
        unused_bytes: 0,
    };
    Ok((beginning, tensor_count))
}

pub(super) fn malformed<T>(what: String) -> Result<T, ModelError> {
    Err(ModelError::Malformed { what })
}

fn alignment(metadata: &HashMap<String, Value>) -> Result<u64, ModelError> {
    let Some(value) = metadata.get("general.alignment") else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    match value.whole() {
        Some(n) if n.is_power_of_two() && (8..=1 << 20).contains(&n) => Ok(n),
        other => Err(ModelError::BadValue {
            key: "general.alignment".to_owned(),
            value: other.map_or_else(|| "no whole number".to_owned(), |n| n.to_string()),
            needs: "a power of two from 8 is needed".to_owned(),
        }),
    }
}

/// Converts tensor offsets to file offsets. Checks that tensors are aligned, inside the file, and do not overlap.
fn resolve_offsets(
    tensors: &mut HashMap<String, TensorInfo>,
    file_len: usize,
    header: usize,
    alignment: u64,
) -> Result<(), ModelError> {
    let data = (header as u64).next_multiple_of(alignment);
    let mut ends = Vec::with_capacity(tensors.len());
    for tensor in tensors.values_mut() {
        let offset = tensor.start as u64;
        if !offset.is_multiple_of(alignment) {
            let name = &tensor.name;
            return malformed(format!(
                "tensor {name} lies at {offset}, no multiple of {alignment}"
            ));
        }
        // Cannot overflow: offset and size were both checked to be at most 2^62.
        let start = data + offset;
        let end = start + tensor.bytes as u64;
        if end > file_len as u64 {
            ends.push((start, end, ""));
            continue;
        }
        tensor.start = start as usize;
        ends.push((start, end, tensor.name.as_str()));
    }
    ends.sort_unstable();
    if let Some(needs) = ends
        .iter()
        .map(|(_, end, _)| *end)
        .max()
        .filter(|end| *end > file_len as u64)
    {
        return Err(ModelError::Truncated {
            needs,
            has: file_len as u64,
        });
    }
    for pair in ends.windows(2) {
        if pair[0].1 > pair[1].0 {
            return malformed(format!("tensors {} and {} overlap", pair[0].2, pair[1].2));
        }
    }
    Ok(())
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Number of tensors, number of metadata pairs.
    fn header(&mut self) -> Result<(usize, usize), ModelError> {
        if !self.bytes.starts_with(b"GGUF") {
            let start = &self.bytes[..self.bytes.len().min(4)];
            let is_text = start.iter().all(u8::is_ascii_graphic);
            let start = String::from_utf8_lossy(start).into_owned();
            return Err(ModelError::NotGguf {
                start: if is_text { start } else { String::new() },
            });
        }
        self.at = 4;
        let version = self.u32()?;
        if version != 2 && version != 3 {
            return Err(ModelError::UnsupportedVersion { version });
        }
        let tensors = self.count("tensors", MAX_ENTRIES)?;
        Ok((tensors, self.count("metadata pairs", MAX_ENTRIES)?))
    }

    fn pair(&mut self, metadata: &mut HashMap<String, Value>) -> Result<(), ModelError> {
        let key = self.name("a metadata key")?;
        let kind = self.kind(&key)?;
        let value = self.value(kind, &key, 0)?;
        if metadata.insert(key.clone(), value).is_some() {
            return malformed(format!("metadata key {key:?} occurs twice"));
        }
        Ok(())
    }

    /// Reads the tensor entries of a file of `file_len` bytes.
    fn tensors(
        mut self,
        metadata: HashMap<String, Value>,
        count: usize,
        file_len: usize,
    ) -> Result<Gguf, ModelError> {
        let mut tensors: HashMap<String, TensorInfo> = HashMap::new();
        for _ in 0..count {
            let tensor = self.tensor()?;
            let name = tensor.name.clone();
            if tensors.insert(name.clone(), tensor).is_some() {
                return malformed(format!("tensor {name:?} occurs twice"));
            }
        }
        resolve_offsets(&mut tensors, file_len, self.at, alignment(&metadata)?)?;
        Ok(Gguf {
            files: Vec::new(),
            metadata,
            tensors,
            unused_bytes: 0,
        })
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], ModelError> {
        let end = self.at.saturating_add(len);
        let Some(taken) = self.bytes.get(self.at..end) else {
            return Err(ModelError::Truncated {
                needs: end as u64,
                has: self.bytes.len() as u64,
            });
        };
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ModelError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32, ModelError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, ModelError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn count(&mut self, of: &str, most: u64) -> Result<usize, ModelError> {
        let count = self.u64()?;
        if count > most {
            return malformed(format!(
                "the header declares {count} {of}; at most {most} are supported"
            ));
        }
        Ok(count as usize)
    }

    /// The byte range of a string.
    fn text(&mut self, of: &str) -> Result<Range<usize>, ModelError> {
        let len = self.u64()?;
        if len > MAX_LENGTH {
            return malformed(format!("{of} declares {len} bytes"));
        }
        let start = self.at;
        self.take(len as usize)?;
        Ok(start..self.at)
    }

    fn name(&mut self, of: &str) -> Result<String, ModelError> {
        let range = self.text(of)?;
        if range.len() > MAX_NAME {
            return malformed(format!("{of} is {} bytes long", range.len()));
        }
        match std::str::from_utf8(&self.bytes[range]) {
            Ok(name) => Ok(name.to_owned()),
            Err(_) => malformed(format!("{of} is not UTF-8")),
        }
    }

    fn kind(&mut self, key: &str) -> Result<ValueKind, ModelError> {
        let number = self.u32()?;
        ValueKind::from_number(number).map_or_else(
            || {
                malformed(format!(
                    "metadata {key:?} has a value of unknown kind {number}"
                ))
            },
            Ok,
        )
    }

    fn value(&mut self, kind: ValueKind, key: &str, depth: u32) -> Result<Value, ModelError> {
        if let Some(size) = kind.size() {
            let bytes = self.take(size)?;
            return Value::scalar(kind, bytes)
                .map_or_else(|| malformed(format!("metadata {key:?} is unreadable")), Ok);
        }
        if kind == ValueKind::Text {
            return Ok(Value::Text(self.text(key)?));
        }
        if depth == MAX_DEPTH {
            return malformed(format!(
                "metadata {key:?} nests lists deeper than {MAX_DEPTH}"
            ));
        }
        let kind = self.kind(key)?;
        let len = self.count("elements in a list", MAX_LENGTH)?;
        let start = self.at;
        match kind.size() {
            // Cannot overflow: the factors are at most 2^30 and 8.
            Some(size) => {
                self.take(len.saturating_mul(size))?;
            }
            // Every element takes at least the 8 bytes of its length, so an inflated `len` stops at the end of the
            // file.
            None => {
                for _ in 0..len {
                    self.value(kind, key, depth + 1)?;
                }
            }
        }
        Ok(Value::Array(Array {
            kind,
            len,
            bytes: start..self.at,
        }))
    }

    /// Reads a tensor entry. Its `start` is still the offset into the data section.
    fn tensor(&mut self) -> Result<TensorInfo, ModelError> {
        let name = self.name("a tensor name")?;
        let rank = self.u32()?;
        if rank == 0 || rank > MAX_RANK {
            return malformed(format!("tensor {name} has {rank} dimensions"));
        }
        let mut shape = Vec::with_capacity(rank as usize);
        let mut elements = 1u64;
        for _ in 0..rank {
            let dim = self.u64()?;
            elements = elements
                .checked_mul(dim)
                .filter(|n| (1..1 << 50).contains(n))
                .map_or_else(
                    || malformed(format!("tensor {name} has a dimension of {dim}")),
                    Ok,
                )?;
            shape.push(dim as usize);
        }
        let cols = shape[0];
        // Some writers pad the rank with ones.
        while shape.len() > 1 && shape.last() == Some(&1) {
            shape.pop();
        }
        shape.reverse();
        let kind = TensorType::from_number(self.u32()?);
        let offset = self.u64()?;
        let Some((block, block_bytes)) = kind.block() else {
            return Err(ModelError::UnsupportedType {
                tensor: name,
                name: kind.name(),
            });
        };
        if !cols.is_multiple_of(block) {
            return malformed(format!(
                "tensor {name} has rows of {cols}, no multiple of {block} ({kind:?})"
            ));
        }
        if offset >= 1 << 62 {
            return malformed(format!("tensor {name} lies at {offset}"));
        }
        let bytes = elements as usize / block * block_bytes;
        Ok(TensorInfo {
            name,
            kind,
            shape,
            part: 0,
            start: offset as usize,
            bytes,
        })
    }
}
