//! Writes arbitrary GGUF files, including invalid ones.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use candle_core::quantized::QTensor;
use candle_core::{Device, Tensor};
use kept_kernels::WeightType;

/// A metadata value.
#[derive(Debug, Clone)]
pub enum MetaValue {
    /// As `u32`.
    Whole(u32),
    /// As `f32`.
    Number(f32),
    /// As `bool`.
    Flag(bool),
    /// As a string.
    Text(String),
    /// As an array of strings.
    Texts(Vec<String>),
    /// As an array of `u32`.
    Wholes(Vec<u32>),
    /// As an array of `f32`.
    Numbers(Vec<f32>),
}

/// Block types that the writer supports, by ggml's names.
pub const TYPES: [&str; 13] = [
    "F32", "F16", "BF16", "Q2_K", "Q3_K", "Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K",
    "Q8_0",
];

/// Builds a GGUF file.
#[derive(Debug, Clone)]
pub struct GgufWriter {
    /// GGUF version; 3 by default.
    pub version: u32,
    /// Alignment of tensor data; 32 by default. For another value, also set `general.alignment`.
    pub alignment: usize,
    pub(super) metadata: Vec<(String, MetaValue)>,
    /// Name, shape rows first, type number, data.
    tensors: Vec<(String, Vec<usize>, u32, Data)>,
}

/// A tensor's bytes.
#[derive(Debug, Clone)]
enum Data {
    Bytes(Vec<u8>),
    /// A number of zero bytes, written as a hole in file systems that support sparse files.
    Zeros(usize),
}

impl Data {
    fn len(&self) -> usize {
        match self {
            Data::Bytes(bytes) => bytes.len(),
            Data::Zeros(count) => *count,
        }
    }
}

impl Default for GgufWriter {
    fn default() -> Self {
        GgufWriter {
            version: 3,
            alignment: 32,
            metadata: Vec::new(),
            tensors: Vec::new(),
        }
    }
}

impl GgufWriter {
    /// Sets a metadata pair and replaces an earlier one with the same key.
    pub fn set(&mut self, key: &str, value: MetaValue) -> &mut Self {
        self.remove(key);
        self.metadata.push((key.to_owned(), value));
        self
    }

    /// Removes a metadata pair.
    pub fn remove(&mut self, key: &str) -> &mut Self {
        self.metadata.retain(|(k, _)| k != key);
        self
    }

    /// Adds a tensor of `numbers`, quantised to the type `kind`, and replaces an earlier one with the same name.
    ///
    /// # Panics
    /// If the type is unknown, or the numbers are not whole blocks.
    pub fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        kind: &str,
        numbers: &[f32],
    ) -> &mut Self {
        assert_eq!(numbers.len(), shape.iter().product::<usize>());
        let (number, data) = quantise(kind, numbers);
        self.raw_tensor(name, shape, number, data)
    }

    /// Adds a tensor from a type number and bytes, without validation, and replaces an earlier one with the same name.
    pub fn raw_tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        kind: u32,
        data: Vec<u8>,
    ) -> &mut Self {
        self.add(name, shape, kind, Data::Bytes(data))
    }

    /// Adds a matrix of zeros of the type `kind` and replaces an earlier tensor, for files of a real model's size.
    ///
    /// # Panics
    /// If the type is unknown, or a row is not whole blocks.
    pub fn zeros(&mut self, name: &str, [rows, cols]: [usize; 2], kind: &str) -> &mut Self {
        let (number, row) = quantise(kind, &vec![0.0; cols]);
        self.add(name, &[rows, cols], number, Data::Zeros(rows * row.len()))
    }

    fn add(&mut self, name: &str, shape: &[usize], kind: u32, data: Data) -> &mut Self {
        self.remove_tensor(name);
        self.tensors
            .push((name.to_owned(), shape.to_vec(), kind, data));
        self
    }

    /// Renames a tensor; one of a layer in all layers.
    ///
    /// # Panics
    /// If there is no such tensor.
    pub fn rename_tensor(&mut self, old: &str, new: &str) -> &mut Self {
        let of_layers = format!(".{old}");
        let mut found = false;
        for (name, ..) in &mut self.tensors {
            if name == old || (name.starts_with("blk.") && name.ends_with(&of_layers)) {
                name.replace_range(name.len() - old.len().., new);
                found = true;
            }
        }
        assert!(found, "a tensor {old}");
        self
    }

    /// Gives the architecture another name, in its keys too.
    pub fn rename_architecture(&mut self, old: &str, new: &str) -> &mut Self {
        let prefix = format!("{old}.");
        for (key, _) in &mut self.metadata {
            if key.starts_with(&prefix) {
                key.replace_range(..old.len(), new);
            }
        }
        self.set("general.architecture", MetaValue::Text(new.to_owned()))
    }

    /// Renames a metadata key.
    ///
    /// # Panics
    /// If there is no such key.
    pub fn rename(&mut self, old: &str, new: &str) -> &mut Self {
        let found = self.metadata.iter_mut().find(|(key, _)| key == old);
        new.clone_into(&mut found.expect("the key").0);
        self
    }

    /// Removes a tensor.
    pub fn remove_tensor(&mut self, name: &str) -> &mut Self {
        self.tensors.retain(|(n, ..)| n != name);
        self
    }

    /// Splits the file into `parts` files like `llama-gguf-split`: the first has the metadata, each has some of the
    /// tensors.
    pub fn split(&self, parts: usize) -> Vec<GgufWriter> {
        let each = self.tensors.len().div_ceil(parts);
        let part = |(number, tensors): (usize, &[_])| {
            let mut part = GgufWriter {
                metadata: match number {
                    0 => self.metadata.clone(),
                    _ => Vec::new(),
                },
                tensors: tensors.to_vec(),
                ..GgufWriter::default()
            };
            part.set("split.no", MetaValue::Whole(number as u32));
            part.set("split.count", MetaValue::Whole(parts as u32));
            let all = MetaValue::Whole(self.tensors.len() as u32);
            part.set("split.tensors.count", all);
            part
        };
        self.tensors.chunks(each).enumerate().map(part).collect()
    }

    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = self.head();
        for (.., data) in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            match data {
                Data::Bytes(bytes) => out.extend(bytes),
                Data::Zeros(count) => out.resize(out.len() + count, 0),
            }
        }
        out
    }

    /// The part of the file before the tensor data.
    fn head(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_text(&mut out, key);
            put_value(&mut out, value);
        }
        let mut offset = 0usize;
        for (name, shape, kind, data) in &self.tensors {
            put_text(&mut out, name);
            out.extend((shape.len() as u32).to_le_bytes());
            for dim in shape.iter().rev() {
                out.extend((*dim as u64).to_le_bytes());
            }
            out.extend(kind.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += data.len().next_multiple_of(self.alignment);
        }
        out
    }

    /// Writes the file.
    ///
    /// # Errors
    /// I/O errors.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        let head = self.head();
        let mut file = File::create(path)?;
        file.write_all(&head)?;
        let mut end = head.len() as u64;
        for (.., data) in &self.tensors {
            let start = end.next_multiple_of(self.alignment as u64);
            end = start + data.len() as u64;
            if let Data::Bytes(bytes) = data {
                file.seek(SeekFrom::Start(start))?;
                file.write_all(bytes)?;
            }
        }
        file.set_len(end)
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_array<T>(out: &mut Vec<u8>, kind: u32, items: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    out.extend(9u32.to_le_bytes());
    out.extend(kind.to_le_bytes());
    out.extend((items.len() as u64).to_le_bytes());
    items.iter().for_each(|item| put(out, item));
}

fn put_value(out: &mut Vec<u8>, value: &MetaValue) {
    let put_kind = |out: &mut Vec<u8>, kind: u32| out.extend(kind.to_le_bytes());
    match value {
        MetaValue::Whole(n) => {
            put_kind(out, 4);
            out.extend(n.to_le_bytes());
        }
        MetaValue::Number(n) => {
            put_kind(out, 6);
            out.extend(n.to_le_bytes());
        }
        MetaValue::Flag(flag) => {
            put_kind(out, 7);
            out.push(u8::from(*flag));
        }
        MetaValue::Text(text) => {
            put_kind(out, 8);
            put_text(out, text);
        }
        MetaValue::Texts(texts) => put_array(out, 8, texts, |out, text| put_text(out, text)),
        MetaValue::Wholes(numbers) => {
            put_array(out, 4, numbers, |out, n| out.extend(n.to_le_bytes()))
        }
        MetaValue::Numbers(numbers) => {
            put_array(out, 6, numbers, |out, n| out.extend(n.to_le_bytes()))
        }
    }
}

/// The number of a type, and `numbers` quantised to it by candle.
fn quantise(kind: &str, numbers: &[f32]) -> (u32, Vec<u8>) {
    let mut all = WeightType::ALL.iter();
    let weights = all.find(|weights| weights.name() == kind);
    let candle = weights.and_then(|weights| Some((weights.number(), weights.candle()?)));
    let Some((number, kind)) = candle else {
        panic!("{kind} is none of {TYPES:?}");
    };
    let tensor = Tensor::from_slice(numbers, numbers.len(), &Device::Cpu).expect("a vector");
    let tensor = QTensor::quantize(&tensor, kind).expect("whole blocks");
    (number, tensor.data().expect("on the CPU").into_owned())
}
