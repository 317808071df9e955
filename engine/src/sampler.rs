//! Sampling: greedy, or temperature with top-k, top-p and min-p from a seed; optionally with a repetition
//! penalty.
//!
//! Random sampling uses candle-transformers' `LogitsProcessor`. Min-p, which it lacks, is applied to the
//! logits first, and so is the repetition penalty: it counts the answer's own tokens and not the prompt's, so
//! that an answer may quote its document.

use std::ops::RangeInclusive;

use candle_core::{Device, Tensor};
use candle_transformers::generation::{LogitsProcessor, Sampling as Drawing};

use crate::EngineError;

/// Below this temperature, the division overflows f32, and only the most likely token is left anyway.
const MIN_TEMPERATURE: f64 = 1e-4;
/// Range of [`Sampling::repeat_penalty`]: from off to values that all but forbid common words.
pub const REPEAT_PENALTY: RangeInclusive<f64> = 1.0..=2.0;

/// Sampling parameters; greedy by default.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sampling {
    /// 0 selects the most likely token; larger values give more varied answers.
    pub temperature: f64,
    /// Keep only the k most likely tokens.
    pub top_k: Option<usize>,
    /// Keep only the most likely tokens whose probabilities add up to this value.
    pub top_p: Option<f64>,
    /// Keep only tokens with at least this fraction of the largest probability.
    pub min_p: Option<f64>,
    /// Penalty on tokens that the answer already contains: positive logits are divided by it, others
    /// multiplied, as in llama.cpp. 1 is off.
    pub repeat_penalty: Option<f64>,
    /// Seed; equal seeds give equal answers.
    pub seed: u64,
}

impl Sampling {
    /// The default.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: None,
        top_p: None,
        min_p: None,
        repeat_penalty: None,
        seed: 0,
    };
    /// Below this top-p or min-p, f32 rounding in the sum of probabilities is larger than the threshold.
    pub const MIN_SHARE: f64 = 1e-6;

    /// Whether the most likely token is always selected.
    pub fn is_greedy(&self) -> bool {
        self.temperature < MIN_TEMPERATURE
    }

    /// Whether any of top-k, top-p and min-p is set.
    pub fn limits(&self) -> bool {
        self.top_k.is_some() || self.top_p.is_some() || self.min_p.is_some()
    }

    fn check(&self) -> Result<(), EngineError> {
        const SHARE: &str = "a number from 0.000001 to 1";
        let refuse = |name, value: String, range| Err(EngineError::Sampling { name, value, range });
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return refuse(
                "temperature",
                self.temperature.to_string(),
                "a number from 0 (greedy)",
            );
        }
        if self.top_k == Some(0) {
            return refuse("top-k", "0".into(), "a whole number from 1");
        }
        for (name, value) in [("top-p", self.top_p), ("min-p", self.min_p)] {
            if let Some(value) = value
                && !(Self::MIN_SHARE..=1.0).contains(&value)
            {
                return refuse(name, value.to_string(), SHARE);
            }
        }
        if let Some(penalty) = self.repeat_penalty
            && !REPEAT_PENALTY.contains(&penalty)
        {
            return refuse(
                "repeat-penalty",
                penalty.to_string(),
                "a number from 1 (off) to 2",
            );
        }
        Ok(())
    }
}

/// Samples tokens.
pub struct Sampler {
    sampling: Sampling,
    /// `None` for greedy sampling, which needs no random numbers and no memory.
    drawing: Option<LogitsProcessor>,
    /// The distinct tokens of the answer in ascending order; empty without a penalty.
    said: Vec<u32>,
}

impl Sampler {
    /// A sampler for parameters that are in range.
    pub fn new(sampling: &Sampling) -> Result<Self, EngineError> {
        sampling.check()?;
        let temperature = sampling.temperature;
        let drawing = (!sampling.is_greedy()).then(|| {
            let how = match (sampling.top_k, sampling.top_p) {
                (None, None) => Drawing::All { temperature },
                (Some(k), None) => Drawing::TopK { k, temperature },
                (None, Some(p)) => Drawing::TopP { p, temperature },
                (Some(k), Some(p)) => Drawing::TopKThenTopP { k, p, temperature },
            };
            LogitsProcessor::from_sampling(sampling.seed, how)
        });
        Ok(Self {
            sampling: sampling.clone(),
            drawing,
            said: Vec::new(),
        })
    }

    /// The penalty, unless it is off.
    fn penalty(&self) -> Option<f32> {
        let penalty = self.sampling.repeat_penalty.filter(|&p| p != 1.0);
        penalty.map(|penalty| penalty as f32)
    }

    /// Allocates the memory for an answer of `tokens` tokens.
    pub(crate) fn reserve(&mut self, tokens: usize) {
        if self.penalty().is_some() {
            self.said.reserve(tokens + 1);
        }
    }

    /// Number of most likely tokens that [`Sampler::next_of`] needs; `None` if it needs all.
    pub(crate) fn candidates(&self) -> Option<usize> {
        let most = match &self.drawing {
            None => Some(1),
            Some(_) => self.sampling.top_k,
        };
        // With a penalty, any token may become the most likely.
        most.filter(|_| self.penalty().is_none())
    }

    /// Samples from the most likely tokens, as many as [`Sampler::candidates`] returns: `tokens` with their
    /// `logits` in descending order. May change `logits`. The distribution is that of [`Sampler::next`], but
    /// the same seed gives another token.
    pub(crate) fn next_of(
        &mut self,
        logits: &mut [f32],
        tokens: &[u32],
    ) -> Result<u32, EngineError> {
        let place = self.next(logits)?;
        Ok(tokens[place as usize])
    }

    /// Samples the next token from `logits` `[vocab]` and counts it as part of the answer. Greedy ties go to
    /// the lower id. May change `logits`.
    pub fn next(&mut self, logits: &mut [f32]) -> Result<u32, EngineError> {
        if !(logits.iter()).all(|logit| *logit < f32::INFINITY) {
            return Err(EngineError::NotANumber);
        }
        let Some(penalty) = self.penalty() else {
            return self.choose(logits);
        };
        apply_penalty(logits, &self.said, penalty);
        let token = self.choose(logits)?;
        if let Err(place) = self.said.binary_search(&token) {
            self.said.insert(place, token);
        }
        Ok(token)
    }

    fn choose(&mut self, logits: &mut [f32]) -> Result<u32, EngineError> {
        let Some(drawing) = &mut self.drawing else {
            return Ok(kept_kernels::argmax(logits) as u32);
        };
        if let Some(min_p) = self.sampling.min_p {
            apply_min_p(logits, min_p, self.sampling.temperature);
        }
        let mut draw = || -> candle_core::Result<u32> {
            let tensor = Tensor::from_slice(logits, logits.len(), &Device::Cpu)?;
            drawing.sample(&tensor)
        };
        draw().map_err(|error| {
            // candle appends a backtrace.
            let text = error.to_string();
            EngineError::SamplingFailed(text.lines().next().unwrap_or_default().to_owned())
        })
    }
}

/// Applies the penalty to the tokens `said`.
fn apply_penalty(logits: &mut [f32], said: &[u32], penalty: f32) {
    for &token in said {
        let logit = &mut logits[token as usize];
        if *logit > 0.0 {
            *logit /= penalty
        } else {
            *logit *= penalty
        }
    }
}

/// Removes tokens whose probability at `temperature` is below `min_p` times the largest.
fn apply_min_p(logits: &mut [f32], min_p: f64, temperature: f64) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let floor = largest + (min_p.ln() * temperature) as f32;
    for logit in logits {
        if *logit < floor {
            *logit = f32::NEG_INFINITY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(sampling: &Sampling, logits: &[f32]) -> Vec<u32> {
        let mut sampler = Sampler::new(sampling).unwrap();
        (0..200)
            .map(|_| sampler.next(&mut logits.to_vec()).unwrap())
            .collect()
    }

    #[test]
    fn greedy_breaks_ties_to_the_lower_token() {
        assert_eq!(draws(&Sampling::default(), &[1.0, 3.0, 3.0])[0], 1);
    }

    fn penalised(penalty: f64) -> Sampling {
        Sampling {
            repeat_penalty: Some(penalty),
            ..Sampling::default()
        }
    }

    #[test]
    fn repeat_penalty_lowers_earlier_tokens() {
        // 3 / 2 < 2; then 2 / 2 < 1.5 = 3 / 2, which is not divided again.
        let greedy = draws(&penalised(2.0), &[3.0, 2.0, -1.0]);
        assert_eq!(greedy[..4], [0, 1, 0, 0]);
        // A negative logit also becomes smaller, as do those of all the answer's tokens.
        assert_eq!(
            draws(&penalised(2.0), &[-1.0, -1.5, -3.0])[..4],
            [0, 1, 0, 0]
        );
        assert_eq!(draws(&penalised(1.0), &[3.0, 2.9])[..3], [0, 0, 0]);
    }

    #[test]
    fn repeat_penalty_needs_all_logits() {
        let candidates = |sampling: &Sampling| Sampler::new(sampling).unwrap().candidates();
        assert_eq!(candidates(&Sampling::default()), Some(1));
        assert_eq!(candidates(&penalised(1.0)), Some(1));
        assert_eq!(candidates(&penalised(1.1)), None);
    }

    #[test]
    fn reserved_sampler_does_not_allocate() {
        let mut sampler = Sampler::new(&penalised(1.5)).unwrap();
        sampler.reserve(100);
        let capacity = sampler.said.capacity();
        for likely in 0..100 {
            let mut logits = vec![0.0; 100];
            logits[likely] = 9.0;
            assert_eq!(sampler.next(&mut logits).unwrap(), likely as u32);
        }
        assert_eq!(
            (sampler.said.len(), sampler.said.capacity()),
            (100, capacity)
        );
    }

    #[test]
    fn seed_determines_the_samples() {
        let logits = [1.0, 1.1, 0.9, 1.0];
        let warm = |seed| Sampling {
            temperature: 1.0,
            seed,
            ..Sampling::default()
        };
        assert_eq!(draws(&warm(7), &logits), draws(&warm(7), &logits));
        assert_ne!(draws(&warm(7), &logits), draws(&warm(8), &logits));
    }

    #[test]
    fn limits_exclude_unlikely_tokens() {
        let logits = [5.0, 4.9, 1.0, 0.0];
        let warm = Sampling {
            temperature: 1.0,
            ..Sampling::default()
        };
        assert!(draws(&warm, &logits).iter().any(|&t| t > 1));
        for limited in [
            Sampling {
                top_k: Some(2),
                ..warm.clone()
            },
            Sampling {
                top_p: Some(0.9),
                ..warm.clone()
            },
            Sampling {
                min_p: Some(0.5),
                ..warm.clone()
            },
        ] {
            let drawn = draws(&limited, &logits);
            assert!(drawn.iter().all(|&t| t <= 1), "{limited:?}");
            assert!(
                drawn.contains(&0) && drawn.contains(&1),
                "{limited:?} draws both"
            );
        }
    }

    #[test]
    fn refuses_settings_out_of_range() {
        for wrong in [
            Sampling {
                temperature: -1.0,
                ..Sampling::default()
            },
            Sampling {
                top_k: Some(0),
                ..Sampling::default()
            },
            Sampling {
                top_p: Some(1.5),
                ..Sampling::default()
            },
            Sampling {
                min_p: Some(0.0),
                ..Sampling::default()
            },
            penalised(0.9),
            penalised(2.1),
            penalised(f64::NAN),
        ] {
            assert!(Sampler::new(&wrong).is_err(), "{wrong:?}");
        }
    }
}
