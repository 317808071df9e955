//! Synthetic cases: the tensors of `golden/selections.py` from the same generator, and a naive attention over them.
//!
//! The selection that a policy makes of a case is in `selecting`.

use std::ops::Range;

use kept_policies::{
    ExpectedQueriesRequest, ObservationWindow, PromptShape, Softmax, WeightedWindow,
};
use serde_json::Value;

/// The generator of `golden/selections.py`: 16 high bits of a 64-bit linear congruential state.
struct Draw(u64);

impl Draw {
    /// Sixteen bits.
    fn next(&mut self) -> i32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 48) as i32
    }

    /// Nearly normal, and exact in f32: the sum of four sixteen-bit numbers, shifted and scaled by a power of two.
    fn value(&mut self) -> f32 {
        let sum: i32 = (0..4).map(|_| self.next()).sum();
        (sum - 131_070) as f32 / 32_768.0
    }
}

/// The decode steps of a case: their number, and the position evicted after each.
#[derive(Debug, Clone)]
pub struct Answered {
    /// Decode steps.
    pub steps: usize,
    /// Bits of a random probability; few bits make ties.
    pub bits: u32,
    /// `[kv_heads][steps]`: the position evicted after each step, if any.
    pub evicted: Vec<Vec<Option<u32>>>,
}

/// The document of a case and its reconstruction pass.
#[derive(Debug, Clone)]
pub struct Repetition {
    /// Tokens before the document.
    pub before: usize,
    /// Tokens after the document.
    pub after: usize,
    /// Per chunk `[first, end, first row, end row]`: its tokens, and its rows of the reconstruction.
    pub chunks: Vec<[usize; 4]>,
    /// `[q_heads, m, head_dim]`, row-major.
    pub q: Vec<f32>,
    /// `[kv_heads, m, head_dim]`.
    pub k: Vec<f32>,
}

impl Repetition {
    /// Rows m of all chunks.
    pub fn rows(&self) -> usize {
        self.chunks.last().map_or(0, |chunk| chunk[3])
    }
}

/// The probabilities of the decode steps, one after the other.
pub struct Probabilities {
    draw: Draw,
    bits: u32,
}

impl Probabilities {
    /// The stream of `seed`, with `bits` bits per probability.
    pub fn new(seed: u64, bits: u32) -> Self {
        Self {
            draw: Draw(seed),
            bits,
        }
    }

    /// The next probability: a multiple of `2^-bits`, above 0 and at most 1.
    pub fn draw(&mut self) -> f32 {
        ((self.draw.next() >> (16 - self.bits)) + 1) as f32 / (1u32 << self.bits) as f32
    }
}

/// One case of `selections.json` or of a packed file, with its tensors.
#[derive(Debug, Clone)]
pub struct Case {
    /// Method, as in `--method`.
    pub method: String,
    /// Parameters, as in `--set`.
    pub set: Vec<(String, String)>,
    /// Rows per kv head.
    pub budget: usize,
    /// The layer, from 0.
    pub layer: usize,
    /// Layers of the model.
    pub layers: usize,
    /// Prompt length.
    pub n: usize,
    /// Query heads.
    pub q_heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// `[q_heads, n, head_dim]`, row-major.
    pub q: Vec<f32>,
    /// `[kv_heads, n, head_dim]`.
    pub k: Vec<f32>,
    /// `[kv_heads, n, head_dim]`.
    pub v: Vec<f32>,
    /// Kept positions per kv head, ascending.
    pub kept: Vec<Vec<u32>>,
    /// Seed of the random stream.
    pub seed: u64,
    /// The decode steps, if the case has any.
    pub answered: Option<Answered>,
    /// The reconstruction, if the case has one.
    pub repetition: Option<Repetition>,
}

impl Case {
    /// Reads one entry of `selections.json` and generates its tensors.
    pub fn from_json(value: &Value) -> Self {
        let number = |name: &str| value[name].as_u64().expect(name) as usize;
        let (n, head_dim) = (number("n"), number("head_dim"));
        let (q_heads, kv_heads) = (number("q_heads"), number("kv_heads"));
        let seed = value["seed"].as_u64().expect("seed");
        let mut draw = Draw(seed);
        // Deliberate ties: multiples of one half make every sum of products exact, and repeated keys make equal sums.
        let repeat = value["repeat"].as_u64().map(|period| period as usize);
        let mut tensor = |heads: usize, rows: usize| -> Vec<f32> {
            let values = (0..heads * rows * head_dim).map(|_| draw.value());
            match repeat {
                Some(_) => values.map(|x| (2.0 * x + 0.5).floor() / 2.0).collect(),
                None => values.collect(),
            }
        };
        let (q, k, v) = (tensor(q_heads, n), tensor(kv_heads, n), tensor(kv_heads, n));
        let chunks = value["chunks"].as_array().map(|chunks| {
            let number = |bound: &Value| bound.as_u64().expect("a bound") as usize;
            let bounds = |chunk: &Value| std::array::from_fn(|i| number(&chunk[i]));
            chunks.iter().map(bounds).collect::<Vec<[usize; 4]>>()
        });
        let repetition = chunks.map(|chunks| {
            let rows = chunks.last().map_or(0, |chunk| chunk[3]);
            Repetition {
                before: number("before"),
                after: number("after"),
                chunks,
                q: tensor(q_heads, rows),
                k: tensor(kv_heads, rows),
            }
        });
        let repeated = |tensor: Vec<f32>| -> Vec<f32> {
            let Some(period) = repeat else { return tensor };
            (0..kv_heads * n)
                .map(|row| row / n * n + row % n % period)
                .flat_map(|row| tensor[row * head_dim..][..head_dim].iter().copied())
                .collect()
        };
        let plain = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
        Self {
            method: value["method"].as_str().expect("method").to_owned(),
            set: (value["set"].as_object().expect("set").iter())
                .map(|(name, v)| (name.clone(), plain(v)))
                .collect(),
            budget: number("budget"),
            layer: value["layer"].as_u64().unwrap_or(0) as usize,
            layers: value["layers"].as_u64().unwrap_or(1) as usize,
            n,
            q_heads,
            kv_heads,
            head_dim,
            q,
            k: repeated(k),
            v: repeated(v),
            kept: (value["kept"].as_array().expect("kept").iter())
                .map(|row| ranges(row.as_str().expect("ranges")))
                .collect(),
            seed,
            answered: value["steps"].as_u64().map(|steps| Answered {
                steps: steps as usize,
                bits: number("bits") as u32,
                evicted: (value["evicted"].as_array().expect("evicted").iter())
                    .map(|gone| evictions(gone.as_str().expect("positions")))
                    .collect(),
            }),
            repetition,
        }
    }

    /// The prompt's shape as passed to a policy.
    pub fn prompt(&self) -> PromptShape {
        let repetition = self.repetition.as_ref();
        PromptShape {
            before: repetition.map_or(0, |r| r.before),
            after: repetition.map_or(0, |r| r.after),
            ..PromptShape::of(self.n)
        }
    }

    /// The same case restricted to `tokens`.
    pub fn only(&self, tokens: &[u32]) -> Self {
        let d = self.head_dim;
        let rows = |tensor: &[f32]| -> Vec<f32> {
            let heads = tensor.chunks_exact(self.n * d);
            heads
                .flat_map(|head| tokens.iter().flat_map(|&t| &head[t as usize * d..][..d]))
                .copied()
                .collect()
        };
        Self {
            n: tokens.len(),
            q: rows(&self.q),
            k: rows(&self.k),
            v: rows(&self.v),
            ..self.clone()
        }
    }

    /// `[kv_heads, n]`: for each key of a chunk, the largest probability that a row of the chunk's reconstruction gives
    /// it, over the GQA group. The softmax of a row covers the first `sinks` keys that lie before the chunk, the
    /// chunk's keys, and the reconstruction up to the row itself.
    pub fn reconstruction(&self, sinks: usize) -> Vec<f32> {
        let repetition = self.repetition.as_ref().expect("a repetition");
        let (n, d, group, m) = (
            self.n,
            self.head_dim,
            self.q_heads / self.kv_heads,
            repetition.rows(),
        );
        let mut largest = vec![0.0f64; self.kv_heads * n];
        for head in 0..self.q_heads {
            let kv = head / group;
            for &[first, end, from, to] in &repetition.chunks {
                let ahead = sinks.min(first);
                for row in from..to {
                    let prompt = (0..ahead).chain(first..end);
                    let keys = prompt.map(|t| &self.k[(kv * n + t) * d..][..d]);
                    let own = (from..=row).map(|r| &repetition.k[(kv * m + r) * d..][..d]);
                    let q = &repetition.q[(head * m + row) * d..][..d];
                    let dot = |k: &[f32]| -> f64 {
                        q.iter().zip(k).map(|(a, b)| *a as f64 * *b as f64).sum()
                    };
                    let logits: Vec<f64> = keys
                        .chain(own)
                        .map(|k| dot(k) / (d as f64).sqrt())
                        .collect();
                    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let total: f64 = logits.iter().map(|x| (x - most).exp()).sum();
                    for (token, x) in (first..end).zip(&logits[ahead..]) {
                        let largest = &mut largest[kv * n + token];
                        *largest = largest.max((x - most).exp() / total);
                    }
                }
            }
        }
        largest.into_iter().map(|x| x as f32).collect()
    }

    /// The next `count` values of the stream after the case's tensors.
    pub fn drawn_after(&self, count: usize) -> Vec<f32> {
        let mut draw = Draw(self.seed);
        let tensors = self.q.len() + self.k.len() + self.v.len();
        let values = (0..tensors + count).map(|_| draw.value());
        values.skip(tensors).collect()
    }

    /// The probabilities of the decode steps, from a separate stream.
    pub fn probabilities(&self) -> Probabilities {
        Probabilities {
            draw: Draw(self.seed + 1),
            bits: self.answered.as_ref().map_or(16, |answered| answered.bits),
        }
    }

    /// One line that identifies the case.
    pub fn describe(&self) -> String {
        format!(
            "{} {:?} budget {} of {}, {}/{} heads of {}, layer {} of {}, seed {}",
            self.method,
            self.set,
            self.budget,
            self.n,
            self.q_heads,
            self.kv_heads,
            self.head_dim,
            self.layer,
            self.layers,
            self.seed
        )
    }

    /// The observation window's scores as a policy requests them: `[q_heads, n]`.
    pub fn observed(&self, window: ObservationWindow) -> Vec<f32> {
        let first = self.n.saturating_sub(window.rows);
        match window.softmax {
            Softmax::All => self.attention(first..self.n, self.n),
            Softmax::Prefix => self.attention(first..self.n, first),
        }
    }

    /// Attention that every key receives, summed over all queries: `[q_heads, n]`.
    pub fn column_sums(&self) -> Vec<f32> {
        let mean = self.attention(0..self.n, self.n);
        mean.into_iter().map(|x| x * self.n as f32).collect()
    }

    /// Softmax probability over the first `keys` keys, causally masked, averaged over the query rows `rows`: `[q_heads,
    /// n]`. In f64, one key at a time.
    pub fn attention(&self, rows: Range<usize>, keys: usize) -> Vec<f32> {
        let count = rows.len() as f64;
        self.weighted(rows, keys, |_| 1.0 / count)
    }

    /// Attention of the last rows, weighted towards the newest: `[q_heads, n]`.
    pub fn weighted_window(&self, weighted_window: WeightedWindow) -> Vec<f32> {
        let first = self.n - weighted_window.rows;
        let rise = f64::from(weighted_window.newest) - 1.0;
        self.weighted(first..self.n, self.n, |query| {
            let part = (query - first) as f64 / (weighted_window.rows - 1).max(1) as f64;
            (1.0 + rise * part) / weighted_window.rows as f64
        })
    }

    /// Per key, one bit for each of the last `rows` queries (fewer in a short prompt): set where the query gave the key
    /// less than average attention. Returns the number of queries and `[kv_heads, n, words]`.
    pub fn low_attention(&self, rows: usize) -> (usize, Vec<u64>) {
        let rows = rows.min(self.n);
        let (n, group, words) = (self.n, self.q_heads / self.kv_heads, rows.div_ceil(64));
        let mut bits = vec![0u64; self.kv_heads * n * words];
        for row in 0..rows {
            let query = n - rows + row;
            let seen = self.attention(query..query + 1, n);
            for head in 0..self.kv_heads {
                for key in 0..=query {
                    let of = |member| f64::from(seen[(head * group + member) * n + key]);
                    let mean = (0..group).map(of).sum::<f64>() / group as f64;
                    if mean < 1.0 / (query + 1) as f64 {
                        bits[(head * n + key) * words + row / 64] |= 1 << (row % 64);
                    }
                }
            }
        }
        (rows, bits)
    }

    /// Mean `[q_heads, head_dim]` and covariance `[q_heads, head_dim, head_dim]` (empty unless requested) of the
    /// queries before RoPE.
    pub fn expected_queries(&self, request: ExpectedQueriesRequest) -> (Vec<f32>, Vec<f32>) {
        let (n, d) = (self.n, self.head_dim);
        let count = (n - request.skip) as f64;
        let (mut means, mut covariances) = (Vec::new(), Vec::new());
        for head in self.q.chunks_exact(n * d) {
            let rows = || head.chunks_exact(d).skip(request.skip);
            let mean: Vec<f64> = (0..d)
                .map(|i| rows().map(|row| f64::from(row[i])).sum::<f64>() / count)
                .collect();
            for i in (0..d).filter(|_| request.covariance) {
                for j in 0..d {
                    let product =
                        |row: &[f32]| (f64::from(row[i]) - mean[i]) * (f64::from(row[j]) - mean[j]);
                    covariances.push((rows().map(product).sum::<f64>() / count) as f32);
                }
            }
            means.extend(mean.iter().map(|x| *x as f32));
        }
        (means, covariances)
    }

    /// Softmax probability as in [`Case::attention`], with a weight per query row.
    fn weighted(&self, rows: Range<usize>, keys: usize, weight: impl Fn(usize) -> f64) -> Vec<f32> {
        let (n, d, group) = (self.n, self.head_dim, self.q_heads / self.kv_heads);
        let mut mean = vec![0.0f64; self.q_heads * n];
        for head in 0..self.q_heads {
            for query in rows.clone() {
                let q = &self.q[(head * n + query) * d..][..d];
                let logits: Vec<f64> = (0..keys.min(query + 1))
                    .map(|key| {
                        let k = &self.k[((head / group) * n + key) * d..][..d];
                        let dot: f64 = q.iter().zip(k).map(|(a, b)| *a as f64 * *b as f64).sum();
                        dot / (d as f64).sqrt()
                    })
                    .collect();
                let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = logits.iter().map(|x| (x - largest).exp()).sum();
                for (key, x) in logits.iter().enumerate() {
                    mean[head * n + key] += (x - largest).exp() / total * weight(query);
                }
            }
        }
        mean.into_iter().map(|x| x as f32).collect()
    }
}

/// `"0-2 9"` -> `[0, 1, 2, 9]`.
pub fn ranges(text: &str) -> Vec<u32> {
    let number = |digits: &str| digits.parse::<u32>().expect("a position");
    text.split_whitespace()
        .flat_map(|part| match part.split_once('-') {
            Some((first, last)) => number(first)..=number(last),
            None => number(part)..=number(part),
        })
        .collect()
}

/// `"-1 4"` -> `[None, Some(4)]`.
fn evictions(text: &str) -> Vec<Option<u32>> {
    text.split_whitespace()
        .map(|position| match position {
            "-1" => None,
            _ => Some(position.parse().expect("a position")),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_values_equal_pythons() {
        let mut draw = Draw(1);
        let drawn = [draw.value(), draw.value(), draw.value()];
        assert_eq!(drawn, [-0.072_326_66, -0.169_372_56, 0.639_373_8]);
    }

    #[test]
    fn ranges_are_parsed() {
        assert_eq!(ranges("0-2 9"), [0, 1, 2, 9]);
        assert_eq!(ranges(""), [0u32; 0]);
    }
}
