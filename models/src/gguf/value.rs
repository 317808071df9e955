//! Metadata values. Strings and lists are not copied: the value holds their byte range, which the parser has checked.

use std::ops::Range;

/// Kinds of metadata values, numbered as in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the names are self-explanatory
pub enum ValueKind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl ValueKind {
    /// The kind with number `number` in a file.
    pub fn from_number(number: u32) -> Option<ValueKind> {
        use ValueKind::*;
        const KINDS: [ValueKind; 13] = [
            U8, I8, U16, I16, U32, I32, F32, Bool, Text, Array, U64, I64, F64,
        ];
        KINDS.get(number as usize).copied()
    }

    /// Bytes of one value, or `None` for strings and lists, whose size varies.
    pub fn size(self) -> Option<usize> {
        use ValueKind::*;
        match self {
            U8 | I8 | Bool => Some(1),
            U16 | I16 => Some(2),
            U32 | I32 | F32 => Some(4),
            U64 | I64 | F64 => Some(8),
            Text | Array => None,
        }
    }
}

/// One metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any unsigned integer.
    Unsigned(u64),
    /// Any signed integer.
    Signed(i64),
    /// Any floating-point number.
    Float(f64),
    /// A string that stands for a missing or another one of the file.
    Given(&'static str),
    /// True or false.
    Flag(bool),
    /// A string, as a byte range of the file; not yet checked to be UTF-8.
    Text(Range<usize>),
    /// A list.
    Array(Array),
}

/// A list of values of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    /// Kind of the elements.
    pub kind: ValueKind,
    /// Number of elements.
    pub len: usize,
    /// Byte range of the elements in the file.
    pub bytes: Range<usize>,
}

impl Value {
    /// Decodes a fixed-size value from exactly its bytes.
    pub(super) fn scalar(kind: ValueKind, bytes: &[u8]) -> Option<Value> {
        use ValueKind::*;
        Some(match kind {
            U8 => Value::Unsigned(u64::from(*bytes.first()?)),
            I8 => Value::Signed(i64::from(*bytes.first()? as i8)),
            U16 => Value::Unsigned(u64::from(u16::from_le_bytes(bytes.try_into().ok()?))),
            I16 => Value::Signed(i64::from(i16::from_le_bytes(bytes.try_into().ok()?))),
            U32 => Value::Unsigned(u64::from(u32::from_le_bytes(bytes.try_into().ok()?))),
            I32 => Value::Signed(i64::from(i32::from_le_bytes(bytes.try_into().ok()?))),
            F32 => Value::Float(f64::from(f32::from_le_bytes(bytes.try_into().ok()?))),
            U64 => Value::Unsigned(u64::from_le_bytes(bytes.try_into().ok()?)),
            I64 => Value::Signed(i64::from_le_bytes(bytes.try_into().ok()?)),
            F64 => Value::Float(f64::from_le_bytes(bytes.try_into().ok()?)),
            Bool => Value::Flag(*bytes.first()? != 0),
            Text | Array => return None,
        })
    }

    pub(super) fn text<'a>(&self, file: &'a [u8]) -> Option<&'a str> {
        match self {
            Value::Text(range) => std::str::from_utf8(file.get(range.clone())?).ok(),
            Value::Given(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn whole(&self) -> Option<u64> {
        match *self {
            Value::Unsigned(n) => Some(n),
            Value::Signed(n) => u64::try_from(n).ok(),
            _ => None,
        }
    }

    pub(super) fn number(&self) -> Option<f64> {
        match *self {
            Value::Unsigned(n) => Some(n as f64),
            Value::Signed(n) => Some(n as f64),
            Value::Float(n) => n.is_finite().then_some(n),
            _ => None,
        }
    }

    pub(super) fn flag(&self) -> Option<bool> {
        match *self {
            Value::Flag(flag) => Some(flag),
            _ => None,
        }
    }

    pub(super) fn array(&self) -> Option<&Array> {
        match self {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }

    pub(super) fn show(&self, file: &[u8]) -> String {
        match self {
            Value::Unsigned(n) => n.to_string(),
            Value::Signed(n) => n.to_string(),
            Value::Float(n) => n.to_string(),
            Value::Flag(flag) => flag.to_string(),
            Value::Given(text) => format!("{text:?}"),
            Value::Text(range) => {
                const SHOWN: usize = 80;
                let bytes = file.get(range.clone()).unwrap_or_default();
                let text = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN * 4)]);
                let mut shown: String = text.chars().take(SHOWN).collect();
                if shown.len() < bytes.len() {
                    shown.push_str("...");
                }
                format!("{shown:?}")
            }
            Value::Array(array) => format!("a list of {} x {:?}", array.len, array.kind),
        }
    }
}

impl Array {
    /// The values, as `read` takes them; `None` if they are not of a fixed size or it refuses one.
    pub(super) fn scalars<T>(
        &self,
        file: &[u8],
        read: impl Fn(Value) -> Option<T>,
    ) -> Option<Vec<T>> {
        let each = file
            .get(self.bytes.clone())?
            .chunks_exact(self.kind.size()?);
        each.map(|bytes| read(Value::scalar(self.kind, bytes)?))
            .collect()
    }

    pub(super) fn texts<'a>(&self, file: &'a [u8]) -> Option<Vec<&'a str>> {
        if self.kind != ValueKind::Text {
            return None;
        }
        let mut rest = file.get(self.bytes.clone())?;
        let mut texts = Vec::with_capacity(self.len); // the parser has read `len` strings
        for _ in 0..self.len {
            let (len, after) = rest.split_first_chunk::<8>()?;
            let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
            texts.push(std::str::from_utf8(after.get(..len)?).ok()?);
            rest = &after[len..];
        }
        Some(texts)
    }
}
