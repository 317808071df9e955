//! Reads `golden/`: safetensors as plain vectors, JSON as values.

use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::cases::Case;

/// The repository's root folder.
pub fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// A file of `golden/`.
pub fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("golden")
        .join(name)
}

/// A JSON file of `golden/`.
pub fn json(name: &str) -> Value {
    read_json(&path(name))
}

/// Any JSON file.
pub fn read_json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A gzipped JSON file of `golden/`, for example `selections/snapkv.json.gz`.
pub fn packed(name: &str) -> Value {
    let path = path(name);
    let file = std::fs::File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let reader = std::io::BufReader::new(flate2::read::GzDecoder::new(file));
    serde_json::from_reader(reader).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The integers of a JSON list.
pub fn ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().expect("a list of ids");
    list.iter()
        .map(|id| id.as_u64().expect("an id") as u32)
        .collect()
}

/// The models with golden logits, by file stem.
pub const MODELS: [&str; 5] = [
    "group1-plain-tied",
    "group2-llama3-tied",
    "group4-linear-untied",
    "group2-plain-f16",
    "group4-plain-q8_0",
];

/// A model of `golden/`.
pub fn model(stem: &str) -> PathBuf {
    path(&format!("{stem}.gguf"))
}

/// The tiny models of `golden/architectures`, by file stem: one for each architecture.
pub const ARCHITECTURES: [&str; 50] = [
    "arcee",
    "llama-bias-yarn",
    "qwen2",
    "qwen3",
    "qwen3moe",
    "qwen2moe",
    "olmoe",
    "minimax-m2",
    "glm4",
    "glm4moe",
    "apertus",
    "hunyuan-dense",
    "hunyuan-moe",
    "seed_oss",
    "exaone4",
    "exaone4-windows",
    "internlm2",
    "minicpm",
    "exaone",
    "command-r",
    "cohere2",
    "ernie4_5",
    "ernie4_5-moe",
    "deepseek_v2",
    "deepseek_v3",
    "bailingmoe2",
    "glm4_moe_lite",
    "mixtral",
    "qwen35",
    "qwen35moe",
    "qwen3next",
    "gpt-oss",
    "phi-4-mini",
    "gemma",
    "gemma2",
    "gemma3",
    "smollm3",
    "mistral3",
    "granite",
    "granitemoe",
    "granitehybrid",
    "granitehybrid-experts",
    "olmo3",
    "gemma4-dense",
    "gemma4-e",
    "gemma4-experts",
    "lfm2",
    "lfm2moe",
    "nemotron_h",
    "nemotron_h_moe",
];

/// A decompressed model in a temporary folder, removed on drop.
pub struct Unpacked {
    folder: tempfile::TempDir,
    name: String,
}

impl Unpacked {
    /// A model of `golden/architectures`.
    pub fn architecture(stem: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let name = format!("{stem}.gguf");
        let bytes = gunzip(&path(&format!("architectures/{name}.gz")));
        std::fs::write(folder.path().join(&name), bytes).expect("the model is written");
        Self { folder, name }
    }

    /// Path of the decompressed file.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join(&self.name)
    }
}

fn gunzip(path: &Path) -> Vec<u8> {
    let packed = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(
        &mut flate2::read::GzDecoder::new(packed.as_slice()),
        &mut bytes,
    )
    .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    bytes
}

/// A safetensors file in memory.
pub struct Tensors(Vec<u8>);

impl Tensors {
    /// The tensors of a golden model, by file stem.
    pub fn golden(stem: &str) -> Self {
        Self::read(&path(&format!("{stem}.safetensors")))
    }

    /// The tensors of a model of `golden/architectures`.
    pub fn architecture(stem: &str) -> Self {
        Self(gunzip(&path(&format!(
            "architectures/{stem}.safetensors.gz"
        ))))
    }

    /// Any safetensors file.
    pub fn read(path: &Path) -> Self {
        Self(std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }

    fn view<T>(&self, name: &str, dtype: Dtype, from: fn([u8; 4]) -> T) -> (Vec<usize>, Vec<T>) {
        let file = SafeTensors::deserialize(&self.0).expect("a safetensors file");
        let tensor = file
            .tensor(name)
            .unwrap_or_else(|e| panic!("tensor {name}: {e}"));
        assert_eq!(tensor.dtype(), dtype, "the type of tensor {name}");
        let (words, rest) = tensor.data().as_chunks::<4>();
        assert!(rest.is_empty());
        (
            tensor.shape().to_vec(),
            words.iter().copied().map(from).collect(),
        )
    }

    /// Rows of a two-dimensional f32 tensor.
    pub fn rows(&self, name: &str) -> Vec<Vec<f32>> {
        let (shape, values) = self.view(name, Dtype::F32, f32::from_le_bytes);
        assert_eq!(shape.len(), 2, "tensor {name} has two dimensions");
        values.chunks_exact(shape[1]).map(<[f32]>::to_vec).collect()
    }

    /// The bytes of a tensor.
    pub fn bytes(&self, name: &str) -> Vec<u8> {
        let file = SafeTensors::deserialize(&self.0).expect("a safetensors file");
        let tensor = file.tensor(name);
        tensor
            .unwrap_or_else(|e| panic!("tensor {name}: {e}"))
            .data()
            .to_vec()
    }

    /// A list of integers, `[n]`.
    pub fn whole(&self, name: &str) -> Vec<u32> {
        self.view(name, Dtype::I32, u32::from_le_bytes).1
    }

    /// A table of integers, `[rows][columns]`.
    pub fn whole_rows(&self, name: &str) -> Vec<Vec<u32>> {
        let (shape, values) = self.view(name, Dtype::I32, u32::from_le_bytes);
        values.chunks_exact(shape[1]).map(<[u32]>::to_vec).collect()
    }
}

/// FNV-1a of a file in words of eight bytes, as in `make_golden.py`: identifies the model file of a golden.
pub fn fingerprint(path: &Path) -> String {
    let mut bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let (words, _) = bytes.as_chunks::<8>();
    let value = words.iter().fold(0xCBF2_9CE4_8422_2325_u64, |value, word| {
        (value ^ u64::from_le_bytes(*word)).wrapping_mul(0x100_0000_01B3)
    });
    format!("{value:016x}")
}

/// The toy case of the specification's worked examples (24 tokens, 4 query heads, 2 KV heads, head_dim 8) for a method;
/// `inputs` are the fixture's. Its `kept` is left to the caller.
pub fn toy(inputs: &Value, method: &str, set: &[(&str, &str)], budget: usize) -> Case {
    let flat = |tensor: &Value| -> Vec<f32> {
        let heads: Vec<Vec<Vec<f32>>> = serde_json::from_value(tensor.clone()).expect("a tensor");
        heads.into_iter().flatten().flatten().collect()
    };
    let (q, k) = (flat(&inputs["q"]), flat(&inputs["k"]));
    let v = match &inputs["v"] {
        Value::Null => vec![0.0; k.len()],
        v => flat(v),
    };
    Case {
        method: method.to_owned(),
        set: (set.iter())
            .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
            .collect(),
        budget,
        layer: 0,
        layers: 1,
        n: 24,
        q_heads: 4,
        kv_heads: 2,
        head_dim: 8,
        q,
        k,
        v,
        kept: Vec::new(),
        seed: 0,
        answered: None,
        repetition: None,
    }
}
