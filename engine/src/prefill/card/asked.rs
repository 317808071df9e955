//! What methods ask about a layer's rows, answered by the card that has them; and tokens that share rows, which are merged there: what comes to
//! the host are numbers of each token, and the rows of classes.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use kept_cuda::{Angles, Asking, Compared, Comparing, Device, DeviceError, LayerRows};
use kept_kernels::RowStore;
use kept_policies::{MergedHead, Needs, PromptRows};

use super::CardReading;
use super::kept::KeptGo;
use crate::sizes::Sizes;

/// Memory for answers.
pub(super) struct Room {
    comparing: Comparing,
    asking: Asking,
}

impl Room {
    /// For prompts of `tokens` tokens, if any method asks.
    pub(super) fn new(
        device: &Device,
        sizes: &[Sizes],
        (tokens, head_dim): (usize, usize),
    ) -> Result<Option<Mutex<Self>>, DeviceError> {
        let mut needs = sizes.iter().flat_map(|sizes| &sizes.needs);
        if !needs.any(|needs: &Needs| needs.rows) {
            return Ok(None);
        }
        Ok(Some(Mutex::new(Self {
            comparing: Comparing::new(device, tokens, head_dim)?,
            asking: Asking::new(device, tokens, head_dim)?,
        })))
    }

    /// Bytes on the card.
    pub(super) fn bytes(room: &Option<Mutex<Self>>) -> u64 {
        room.as_ref().map_or(0, |room| {
            let room = room.lock().unwrap_or_else(PoisonError::into_inner);
            room.comparing.bytes() + room.asking.bytes()
        })
    }
}

/// The rows of the layer that was just read, as a method asks about them.
pub(in crate::prefill) struct CardRows<'r> {
    device: &'r Device,
    keys: &'r LayerRows,
    values: &'r LayerRows,
    room: &'r Mutex<Room>,
    unrotated: Option<Angles<'r>>,
    /// What went wrong first.
    failed: Mutex<Option<DeviceError>>,
}

impl std::fmt::Debug for CardRows<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CardRows").finish_non_exhaustive()
    }
}

impl CardRows<'_> {
    /// What the card refused while a method asked: its choice is then worth nothing.
    pub(in crate::prefill) fn check(self) -> Result<(), DeviceError> {
        let failed = self.failed.into_inner();
        let failed = failed.unwrap_or_else(PoisonError::into_inner);
        failed.map_or(Ok(()), Err)
    }

    /// Asks the card, unless it refused before.
    fn ask(&self, of: impl FnOnce(&mut Room) -> Result<(), DeviceError>) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.is_none() {
            let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
            *failed = of(&mut room).err();
        }
    }

    /// Methods that compare keys as they were before RoPE ask how alike they are, and nothing else.
    fn as_they_are(&self) {
        assert!(
            self.unrotated.is_none(),
            "keys are asked about as they stand"
        );
    }
}

impl PromptRows for CardRows<'_> {
    fn most_alike(&self, head: usize, tokens: &[u32], others: &[u32], best: &mut [(u32, f32)]) {
        best.fill((0, f32::NEG_INFINITY));
        let of = Compared {
            keys: self.keys,
            values: self.values,
            head,
            unrotated: self.unrotated,
        };
        self.ask(|room| (self.device).most_alike(&of, (tokens, others), best, &mut room.comparing));
    }

    fn apart(&self, head: usize, document: usize, scores: &mut [f32]) {
        self.as_they_are();
        self.ask(|room| {
            let task = (head, document);
            (self.device).apart(self.keys, task, scores, &mut room.asking)
        });
    }

    fn forms(
        &self,
        head: usize,
        tokens: Range<usize>,
        of: (&[f32], Option<&[f32]>),
        out: &mut [f32],
    ) {
        self.as_they_are();
        self.ask(|room| {
            let task = (head, tokens);
            (self.device).forms(self.keys, task, of, out, &mut room.asking)
        });
    }

    fn value_lengths(&self, head: usize, tokens: Range<usize>, lengths: &mut [f32]) {
        self.ask(|room| {
            let task = (head, tokens);
            (self.device).lengths(self.values, task, lengths, &mut room.asking)
        });
    }
}

impl CardReading<'_> {
    /// The rows of the layer that was just read: keys as they were before RoPE, where that is `layer`'s and `raw`.
    ///
    /// # Panics
    /// Where no method asks about them.
    pub(in crate::prefill) fn rows(&self, layer: usize, raw: bool) -> CardRows<'_> {
        CardRows {
            device: self.device(),
            keys: &self.keys,
            values: &self.values,
            room: self.asked.as_ref().expect("a method that asks"),
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
