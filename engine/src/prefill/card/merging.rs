//! Tokens of a layer on a card that share rows: they are compared there and merged there, and what comes to the host is how alike they are, and
//! the rows of classes.

use std::sync::{Mutex, PoisonError};

use kept_cuda::{Angles, Compared, Comparing, Device, DeviceError, LayerRows};
use kept_kernels::RowStore;
use kept_policies::{MergedHead, MostAlike};

use super::CardReading;
use super::kept::KeptGo;

/// The rows of the layer that was just read, as a method compares them.
pub(in crate::prefill) struct CardAlike<'r> {
    device: &'r Device,
    keys: &'r LayerRows,
    values: &'r LayerRows,
    room: &'r Mutex<Comparing>,
    unrotated: Option<Angles<'r>>,
    /// What went wrong first.
    failed: Mutex<Option<DeviceError>>,
}

impl std::fmt::Debug for CardAlike<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CardAlike").finish_non_exhaustive()
    }
}

impl CardAlike<'_> {
    /// What a card refused while a method compared: its choice is then worth nothing.
    pub(in crate::prefill) fn check(self) -> Result<(), DeviceError> {
        let failed = self.failed.into_inner();
        failed
            .unwrap_or_else(PoisonError::into_inner)
            .map_or(Ok(()), Err)
    }
}

impl MostAlike for CardAlike<'_> {
    fn most_alike(&self, head: usize, tokens: &[u32], others: &[u32], best: &mut [(u32, f32)]) {
        best.fill((0, f32::NEG_INFINITY));
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.is_some() {
            return;
        }
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let of = Compared {
            keys: self.keys,
            values: self.values,
            head,
            unrotated: self.unrotated,
        };
        let found = (self.device).most_alike(&of, (tokens, others), best, &mut room);
        *failed = found.err();
    }
}

impl CardReading<'_> {
    /// Who compares rows of the layer that was just read: keys as they were before RoPE, where that is `layer`'s and `raw`.
    ///
    /// # Panics
    /// Where no method asked for it.
    pub(in crate::prefill) fn alike(&self, layer: usize, raw: bool) -> CardAlike<'_> {
        CardAlike {
            device: self.device(),
            keys: &self.keys,
            values: &self.values,
            room: self.comparing.as_ref().expect("a method that compares"),
            unrotated: self.rope.of_layer(layer).filter(|_| raw),
            failed: Mutex::new(None),
        }
    }

    /// The rows of classes, on the host, each at its centre's number; of all entries how long their keys are, by head. Keys are merged as they
    /// were before RoPE, where that is `layer`'s and `raw`.
    ///
    /// # Panics
    /// Where kept rows stay on the card, or no method merges.
    pub(in crate::prefill) fn bring_merged(
        &mut self,
        heads: &[MergedHead],
        (layer, raw): (usize, bool),
        keys: &mut RowStore,
        values: &mut RowStore,
    ) -> Result<Vec<Vec<f32>>, DeviceError> {
        let device = self.device();
        let unrotated = self.rope.of_layer(layer).filter(|_| raw);
        let KeptGo::ToHost(way) = &mut self.kept else {
            panic!("kept rows stay on the card");
        };
        let all = [(&self.keys, keys), (&self.values, values)];
        way.bring_merged(device, heads, unrotated, all)
    }
}
