//! Typed access to the metadata keys of one architecture. Every number is range-checked.

use crate::ModelError;
use crate::gguf::{Gguf, Value};

/// Largest count accepted; products of a few such counts fit in 64 bits.
pub(super) const MAX_COUNT: u64 = 1 << 24;

/// KV heads, of all layers or of each.
pub(super) const KV_HEADS: &str = "attention.head_count_kv";

/// The keys `{name}.*` of a file.
#[derive(Clone, Copy)]
pub(super) struct Keys<'a> {
    pub(super) gguf: &'a Gguf,
    /// `general.architecture`
    pub(super) name: &'a str,
}

impl Keys<'_> {
    /// The full key: `llama.block_count` for `block_count`.
    pub(super) fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    pub(super) fn bad(&self, key: &str, value: impl ToString, needs: String) -> ModelError {
        bad(&self.full(key), value, needs)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.gguf.get(&self.full(key)).is_some()
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        self.gguf.text(&self.full(key))
    }

    pub(super) fn whole(&self, key: &str) -> Result<Option<u64>, ModelError> {
        self.gguf.whole(&self.full(key))
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        self.gguf.number(&self.full(key))
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.gguf.flag(&self.full(key))
    }

    /// A list of booleans; `None` if the key is absent or its value is not a list.
    pub(super) fn flags(&self, key: &str) -> Result<Option<Vec<bool>>, ModelError> {
        match self.gguf.get(&self.full(key)) {
            Some(Value::Array(_)) => self.gguf.flags(&self.full(key)),
            _ => Ok(None),
        }
    }

    /// A positive number, or `None` if the key is absent.
    pub(super) fn positive(&self, key: &str) -> Result<Option<f64>, ModelError> {
        match self.number(key)? {
            Some(n) if n <= 0.0 => Err(self.bad(key, n, "a number above 0 is needed".to_owned())),
            n => Ok(n),
        }
    }

    /// A non-negative number, or `None` if the key is absent.
    pub(super) fn non_negative(&self, key: &str) -> Result<Option<f64>, ModelError> {
        match self.number(key)? {
            Some(n) if n < 0.0 => Err(self.bad(key, n, "a number from 0 is needed".to_owned())),
            n => Ok(n),
        }
    }

    /// A required count.
    pub(super) fn count(&self, key: &str) -> Result<usize, ModelError> {
        let n = self.optional_count(key)?;
        n.ok_or_else(|| missing(&self.full(key)))
    }

    pub(super) fn optional_count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        let n = self.whole(key)?;
        n.map(|n| self.checked_count(key, n)).transpose()
    }

    pub(super) fn checked_count(&self, key: &str, n: u64) -> Result<usize, ModelError> {
        if n == 0 || n > MAX_COUNT {
            let needs = format!("a number from 1 to {MAX_COUNT} is needed");
            return Err(self.bad(key, n, needs));
        }
        Ok(n as usize)
    }

    /// `[layers]`: a list of whole numbers; `None` if the key is absent or its value is not a list.
    pub(super) fn list(&self, key: &str, layers: usize) -> Result<Option<Vec<u64>>, ModelError> {
        let full = self.full(key);
        let Some(Value::Array(_)) = self.gguf.get(&full) else {
            return Ok(None);
        };
        let mut numbers = self.gguf.wholes(&full)?.unwrap_or_default();
        if numbers.len() < layers {
            let needs = format!("one for each of the {layers} layers is needed");
            return Err(self.bad(key, format!("{} numbers", numbers.len()), needs));
        }
        numbers.truncate(layers);
        Ok(Some(numbers))
    }

    /// `[layers]`: required counts, given as a list, or as one number for all layers.
    pub(super) fn counts(&self, key: &str, layers: usize) -> Result<Vec<usize>, ModelError> {
        match self.list(key, layers)? {
            None => Ok(vec![self.count(key)?; layers]),
            Some(counts) => {
                let counts = counts.into_iter();
                counts.map(|n| self.checked_count(key, n)).collect()
            }
        }
    }

    /// A required count, given as one number or as a list of equal numbers, one per layer.
    pub(super) fn uniform_count(&self, key: &str) -> Result<usize, ModelError> {
        let full = self.full(key);
        let Some(Value::Array(_)) = self.gguf.get(&full) else {
            return self.count(key);
        };
        let mut counts = self.gguf.wholes(&full)?.unwrap_or_default();
        // Layers without attention have no heads.
        counts.retain(|&n| n != 0);
        match counts.first() {
            Some(&first) if counts.iter().all(|&n| n == first) => self.checked_count(key, first),
            Some(_) => Err(self.bad(
                key,
                "a list of different numbers",
                "only models whose layers are all alike are supported".to_owned(),
            )),
            None => Err(self.bad(key, "an empty list", "a number is needed".to_owned())),
        }
    }
}

pub(super) fn missing(key: &str) -> ModelError {
    ModelError::MissingKey {
        key: key.to_owned(),
    }
}

pub(super) fn missing_tensor(name: &str) -> ModelError {
    ModelError::MissingTensor {
        name: name.to_owned(),
    }
}

pub(super) fn bad(key: &str, value: impl ToString, needs: String) -> ModelError {
    ModelError::BadValue {
        key: key.to_owned(),
        value: value.to_string(),
        needs,
    }
}
