//! The input tensors of `kept select`: q, k and v of a prompt, and of the reconstruction pass for kvzip.
//!
//! ```text
//! q [q_heads, n, d]   k, v [kv_heads, n, d]      as given: no rotation is applied
//! q_repeat [q_heads, m, d]   k_repeat [kv_heads, m, d]   chunks [c, 4]      for kvzip only
//! ```
//!
//! `chunks` (I32 or I64) has a row per chunk of the document: its first token, one past its last token, the first row
//! of its repetition in `q_repeat` and `k_repeat`, and one past the last row. Chunks are contiguous, and so are their
//! rows. Tokens before the first and after the last chunk do not belong to the document.

use anyhow::{Context, ensure};
use kept_engine::HostRows;
use kept_engine::policies::{ModelShape, PromptShape};
use safetensors::{Dtype, SafeTensors};

/// A tensor `[heads, n, d]` as given.
#[derive(Clone)]
pub struct HeadMajor {
    pub data: Vec<f32>,
    pub heads: usize,
    pub n: usize,
    pub d: usize,
}

impl HeadMajor {
    fn read(file: &SafeTensors<'_>, name: &str, needed: &str) -> anyhow::Result<Self> {
        let tensor = file
            .tensor(name)
            .ok()
            .with_context(|| format!("the input has no tensor '{name}'; {needed}"))?;
        ensure!(
            tensor.dtype() == Dtype::F32,
            "tensor '{name}' is {:?}; write it as F32",
            tensor.dtype()
        );
        let &[heads, n, d] = tensor.shape() else {
            anyhow::bail!(
                "tensor '{name}' has the shape {:?}; it needs [heads, n, d]",
                tensor.shape()
            );
        };
        let data = tensor
            .data()
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect::<Vec<f32>>();
        ensure!(
            data.iter().all(|x| x.is_finite()),
            "tensor '{name}' holds values that are no numbers (NaN or infinite)"
        );
        Ok(Self { data, heads, n, d })
    }

    pub fn row(&self, head: usize, row: usize) -> &[f32] {
        &self.data[(head * self.n + row) * self.d..][..self.d]
    }

    /// The tensor of only the given rows.
    fn take_rows(&self, rows: &[u32]) -> Self {
        let heads = (0..self.heads).flat_map(|head| rows.iter().map(move |&row| (head, row)));
        let data = heads.flat_map(|(head, row)| self.row(head, row as usize));
        Self {
            data: data.copied().collect(),
            n: rows.len(),
            ..*self
        }
    }
}

/// A chunk of the document and its rows in the repetition.
pub struct Chunk {
    pub tokens: std::ops::Range<usize>,
    pub rows: std::ops::Range<usize>,
}

/// Queries and keys of the reconstruction pass, in which the model repeats the document.
pub struct Repetition {
    pub q: HeadMajor,
    pub k: HeadMajor,
    pub chunks: Vec<Chunk>,
}

impl Repetition {
    const NEEDED: &'static str =
        "what repeats the document is given as q_repeat, k_repeat and chunks, all three";

    fn read(file: &SafeTensors<'_>) -> anyhow::Result<Option<Self>> {
        let names = ["q_repeat", "k_repeat", "chunks"];
        if names.iter().all(|name| file.tensor(name).is_err()) {
            return Ok(None);
        }
        let tensor = file
            .tensor("chunks")
            .ok()
            .with_context(|| format!("the input has no tensor 'chunks'; {}", Self::NEEDED))?;
        let bytes = tensor.data();
        let bounds: Vec<i64> = match (tensor.dtype(), tensor.shape()) {
            (Dtype::I64, &[_, 4]) => (bytes.chunks_exact(8))
                .map(|b| i64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
                .collect(),
            (Dtype::I32, &[_, 4]) => (bytes.chunks_exact(4))
                .map(|b| i64::from(i32::from_le_bytes([b[0], b[1], b[2], b[3]])))
                .collect(),
            (dtype, shape) => anyhow::bail!(
                "tensor 'chunks' is {dtype:?} {shape:?}; it needs whole numbers (I32 or I64), [chunks, 4]"
            ),
        };
        let bound = |b: &i64| {
            usize::try_from(*b)
                .ok()
                .with_context(|| format!("'chunks' holds {b}; tokens and rows count from 0"))
        };
        let bounds = bounds
            .iter()
            .map(bound)
            .collect::<anyhow::Result<Vec<_>>>()?;
        let chunks = bounds.chunks_exact(4).map(|b| Chunk {
            tokens: b[0]..b[1],
            rows: b[2]..b[3],
        });
        Ok(Some(Self {
            q: HeadMajor::read(file, "q_repeat", Self::NEEDED)?,
            k: HeadMajor::read(file, "k_repeat", Self::NEEDED)?,
            chunks: chunks.collect(),
        }))
    }

    fn check(&self, q: &HeadMajor, k: &HeadMajor) -> anyhow::Result<()> {
        let (mine, its) = (&self.q, &self.k);
        ensure!(
            (mine.heads, mine.d) == (q.heads, q.d)
                && (its.heads, its.d) == (k.heads, k.d)
                && mine.n == its.n,
            "q_repeat [{}, {}, {}] and k_repeat [{}, {}, {}] do not belong to q and k; heads and d must be theirs, and the rows equal",
            mine.heads,
            mine.n,
            mine.d,
            its.heads,
            its.n,
            its.d
        );
        let (mut token, mut row) = (self.chunks.first().map(|c| c.tokens.start), 0);
        for chunk in &self.chunks {
            ensure!(
                Some(chunk.tokens.start) == token
                    && chunk.rows.start == row
                    && chunk.tokens.end > chunk.tokens.start
                    && chunk.rows.end > row,
                "the chunk [{}, {}, {}, {}] does not go on where the one before it ended, or is empty",
                chunk.tokens.start,
                chunk.tokens.end,
                chunk.rows.start,
                chunk.rows.end
            );
            (token, row) = (Some(chunk.tokens.end), chunk.rows.end);
        }
        ensure!(
            token.is_some_and(|end| end <= k.n) && row == its.n,
            "the chunks end at token {} and row {row}; the prompt has {} tokens and the repetition {} rows",
            token.unwrap_or(0),
            k.n,
            its.n
        );
        Ok(())
    }
}

/// All input tensors.
pub struct Tensors {
    pub q: HeadMajor,
    pub k: HeadMajor,
    pub v: HeadMajor,
    pub repetition: Option<Repetition>,
}

impl Tensors {
    /// Keys and values, for methods that read them.
    pub fn rows(&self) -> HostRows<'_> {
        HostRows {
            keys: &self.k.data,
            values: &self.v.data,
            kv_heads: self.k.heads,
            head_dim: self.k.d,
        }
    }

    /// Parses and checks a file's bytes; `shown` is its name in errors.
    pub fn read(bytes: &[u8], shown: &str) -> anyhow::Result<Self> {
        let file = SafeTensors::deserialize(bytes)
            .ok()
            .with_context(|| format!("'{shown}' is not a safetensors file, or is cut short"))?;
        let needed = "it needs q, k and v";
        let (q, k, v) = (
            HeadMajor::read(&file, "q", needed)?,
            HeadMajor::read(&file, "k", needed)?,
            HeadMajor::read(&file, "v", needed)?,
        );
        ensure!(
            (k.heads, k.n, k.d) == (v.heads, v.n, v.d) && (q.n, q.d) == (k.n, k.d),
            "q [{}, {}, {}], k [{}, {}, {}] and v [{}, {}, {}] do not belong together; n and d must be equal, and k's heads v's",
            q.heads,
            q.n,
            q.d,
            k.heads,
            k.n,
            k.d,
            v.heads,
            v.n,
            v.d
        );
        ensure!(
            k.n > 0 && k.d > 0 && k.heads > 0 && q.heads > 0 && q.heads % k.heads == 0,
            "{} query heads cannot share {} kv heads of {} tokens; query heads must be a multiple of kv heads, and nothing empty",
            q.heads,
            k.heads,
            k.n
        );
        let repetition = Repetition::read(&file)?;
        if let Some(repetition) = &repetition {
            repetition.check(&q, &k)?;
        }
        Ok(Self {
            q,
            k,
            v,
            repetition,
        })
    }

    /// The shape of a model with these heads and `layers` layers.
    pub fn shape(&self, layers: usize) -> ModelShape {
        ModelShape {
            layers,
            q_heads: self.q.heads,
            kv_heads: self.k.heads,
            head_dim: self.k.d,
        }
    }

    /// The shape of the prompt, as a method receives it.
    pub fn prompt(&self) -> PromptShape {
        let chunks = self.repetition.as_ref().map(|r| r.chunks.as_slice());
        let ends = chunks.and_then(|chunks| Some((chunks.first()?, chunks.last()?)));
        ends.map_or(PromptShape::of(self.k.n), |(first, last)| PromptShape {
            before: first.tokens.start,
            after: self.k.n - last.tokens.end,
            ..PromptShape::of(self.k.n)
        })
    }

    /// The prompt reduced to the given tokens, without the repetition.
    pub fn take_tokens(&self, tokens: &[u32]) -> Self {
        Self {
            q: self.q.take_rows(tokens),
            k: self.k.take_rows(tokens),
            v: self.v.take_rows(tokens),
            repetition: None,
        }
    }
}
