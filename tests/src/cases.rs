//! Drawn cases: the same tensors as `golden/selections.py` draws, and a slow and obvious attention over them.

use std::ops::Range;

use kept_policies::{Softmax, Window};
use serde_json::Value;

/// The generator of `golden/selections.py`: 16 high bits of a 64-bit linear congruential state.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> i32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 48) as i32
    }

    /// Nearly normal, and exact in f32: four sixteen-bit numbers, shifted and scaled by a power of two.
    fn value(&mut self) -> f32 {
        let sum: i32 = (0..4).map(|_| self.next()).sum();
        (sum - 131_070) as f32 / 32_768.0
    }
}

/// One case of `selections.json`, tensors drawn.
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
}

impl Case {
    /// Reads one entry of `selections.json` and draws its tensors.
    pub fn from_json(value: &Value) -> Self {
        let number = |name: &str| value[name].as_u64().expect(name) as usize;
        let (n, head_dim) = (number("n"), number("head_dim"));
        let (q_heads, kv_heads) = (number("q_heads"), number("kv_heads"));
        let mut draw = Draw(value["seed"].as_u64().expect("seed"));
        let mut tensor = |heads: usize| -> Vec<f32> {
            (0..heads * n * head_dim).map(|_| draw.value()).collect()
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
            q: tensor(q_heads),
            k: tensor(kv_heads),
            v: tensor(kv_heads),
            kept: (value["kept"].as_array().expect("kept").iter())
                .map(|row| ranges(row.as_str().expect("ranges")))
                .collect(),
        }
    }

    /// A line that finds the case again.
    pub fn describe(&self) -> String {
        format!(
            "{} {:?} budget {} of {}, {}/{} heads of {}, layer {} of {}",
            self.method,
            self.set,
            self.budget,
            self.n,
            self.q_heads,
            self.kv_heads,
            self.head_dim,
            self.layer,
            self.layers
        )
    }

    /// What a policy asked to see of the last rows: `[q_heads, n]`.
    pub fn observed(&self, window: Window) -> Vec<f32> {
        let first = self.n.saturating_sub(window.rows);
        match window.softmax {
            Softmax::All => self.attention(first..self.n, self.n),
            Softmax::Prefix => self.attention(first..self.n, first),
        }
    }

    /// Attention that every key gets from all queries together: `[q_heads, n]`.
    pub fn column_sums(&self) -> Vec<f32> {
        let mean = self.attention(0..self.n, self.n);
        mean.into_iter().map(|x| x * self.n as f32).collect()
    }

    /// Softmax probability over the first `keys` keys, as far as a query sees them, mean over the query rows in `rows`:
    /// `[q_heads, n]`. In f64, one key at a time.
    pub fn attention(&self, rows: Range<usize>, keys: usize) -> Vec<f32> {
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
                    mean[head * n + key] += (x - largest).exp() / total / rows.len() as f64;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_what_python_draws() {
        let mut draw = Draw(1);
        let drawn = [draw.value(), draw.value(), draw.value()];
        assert_eq!(drawn, [-0.072_326_66, -0.169_372_56, 0.639_373_8]);
    }

    #[test]
    fn reads_ranges() {
        assert_eq!(ranges("0-2 9"), [0, 1, 2, 9]);
        assert_eq!(ranges(""), [0u32; 0]);
    }
}
