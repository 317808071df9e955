//! From logits to the next token: greedy, or temperature with top-k, top-p and min-p, from a seed.
//!
//! Drawing is candle-transformers' `LogitsProcessor`; min-p, which it does not have, is applied to the logits before it.

use candle_core::{Device, Tensor};
use candle_transformers::generation::{LogitsProcessor, Sampling as Drawing};

use crate::EngineError;

/// Below this, dividing by the temperature overflows f32 and only the most likely token is left anyway.
const LEAST_TEMPERATURE: f64 = 1e-4;
/// Below this, a sum of f32 probabilities cannot tell top-p from nothing.
const LEAST_TOP_P: f64 = 1e-6;

/// How the next token is chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// 0 takes the most likely token; larger is more varied.
    pub temperature: f64,
    /// Only the k most likely tokens.
    pub top_k: Option<usize>,
    /// Only the most likely tokens that make up this probability.
    pub top_p: Option<f64>,
    /// Only tokens at least this share as likely as the likeliest.
    pub min_p: Option<f64>,
    /// Same seed, same answer.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: None,
            top_p: None,
            min_p: None,
            seed: 0,
        }
    }
}

impl Sampling {
    /// Whether the most likely token is always taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature < LEAST_TEMPERATURE
    }

    /// Whether any of top-k, top-p and min-p is set.
    pub fn limits(&self) -> bool {
        self.top_k.is_some() || self.top_p.is_some() || self.min_p.is_some()
    }

    fn check(&self) -> Result<(), EngineError> {
        let refuse = |name, value: String, range| Err(EngineError::Sampling { name, value, range });
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return refuse(
                "temperature",
                self.temperature.to_string(),
                "a number from 0 (greedy)",
            );
        }
        if let Some(top_p) = self.top_p
            && top_p < LEAST_TOP_P
        {
            return refuse("top-p", top_p.to_string(), "a number from 0.000001 to 1");
        }
        if self.top_k == Some(0) {
            return refuse("top-k", "0".into(), "a whole number from 1");
        }
        for (name, value) in [("top-p", self.top_p), ("min-p", self.min_p)] {
            if let Some(value) = value
                && !(value > 0.0 && value <= 1.0)
            {
                return refuse(name, value.to_string(), "a number above 0, at most 1");
            }
        }
        Ok(())
    }
}

/// Chooses tokens.
pub struct Sampler {
    sampling: Sampling,
    /// `None`: greedy, which needs no random numbers and no memory.
    drawing: Option<LogitsProcessor>,
}

impl Sampler {
    /// A sampler with settings that are in range.
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
        })
    }

    /// How many of the likeliest tokens [`Sampler::next_of`] needs; `None` where it needs all of them, or too many to look for.
    pub(crate) fn candidates(&self) -> Option<usize> {
        let most = match &self.drawing {
            None => Some(1),
            Some(_) => self.sampling.top_k,
        };
        most.filter(|most| *most <= kept_cuda::MOST_CANDIDATES)
    }

    /// The next token of the likeliest ones, `tokens` with their `logits`, the likeliest first: as many as [`Sampler::candidates`] says. May change
    /// `logits`. A draw has the same chances as [`Sampler::next`]'s, but of one seed comes another token.
    pub(crate) fn next_of(
        &mut self,
        logits: &mut [f32],
        tokens: &[u32],
    ) -> Result<u32, EngineError> {
        let place = self.next(logits)?;
        Ok(tokens[place as usize])
    }

    /// The next token for `logits` `[vocab]`. Ties in greedy mode go to the lower id. May change `logits`.
    pub fn next(&mut self, logits: &mut [f32]) -> Result<u32, EngineError> {
        if logits.iter().any(|logit| logit.is_nan()) {
            return Err(EngineError::NotANumber);
        }
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
            EngineError::Draw(text.lines().next().unwrap_or_default().to_owned())
        })
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
    fn greedy_takes_the_first_of_equals() {
        assert_eq!(draws(&Sampling::default(), &[1.0, 3.0, 3.0])[0], 1);
    }

    #[test]
    fn the_seed_decides() {
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
        ] {
            assert!(Sampler::new(&wrong).is_err(), "{wrong:?}");
        }
    }
}
