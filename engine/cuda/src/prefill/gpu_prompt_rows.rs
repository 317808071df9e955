//! Methods' computations on a layer's rows, run on the GPU. Rows of merging methods are merged on the device;
//! only per-token numbers and the rows of classes are downloaded.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use kept_cuda::{
    CosineScratch, Device, DeviceError, HeadKeysValues, LayerRows, RopeTables, RowScoreScratch,
};
use kept_engine::EngineError;
use kept_engine::backend::{LayerRowsAccess, PrefillPlan, RowAccess};
use kept_policies::{BilinearForm, Needs, PromptRows};

use super::CudaPrefill;

/// Scratch buffers of the computations.
pub(super) struct Scratch {
    cosine: CosineScratch,
    row_score: RowScoreScratch,
}

impl Scratch {
    /// Allocates scratch for prompts of `tokens` tokens, if a method needs it.
    pub(super) fn new(
        device: &Device,
        plans: &[PrefillPlan],
        tokens: usize,
        head_dim: usize,
    ) -> Result<Option<Mutex<Self>>, DeviceError> {
        let mut needs = plans.iter().flat_map(|plan| &plan.needs);
        if !needs.any(|needs: &Needs| needs.rows) {
            return Ok(None);
        }
        Ok(Some(Mutex::new(Self {
            cosine: CosineScratch::new(device, tokens, head_dim)?,
            row_score: RowScoreScratch::new(device, tokens, head_dim)?,
        })))
    }
}

/// The current layer's rows on the GPU, as [`PromptRows`] for methods.
pub(super) struct GpuRows<'r> {
    device: &'r Device,
    keys: &'r LayerRows,
    values: &'r LayerRows,
    /// `None` if no method computes on rows.
    scratch: Option<&'r Mutex<Scratch>>,
    copies: Option<[&'r [f32]; 2]>,
    unrotated: Option<RopeTables<'r>>,
    /// The first error.
    failed: Mutex<Option<DeviceError>>,
}

impl std::fmt::Debug for GpuRows<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuRows").finish_non_exhaustive()
    }
}

impl GpuRows<'_> {
    /// Runs a computation, unless an earlier one failed.
    fn run(&self, computation: impl FnOnce(&mut Scratch) -> Result<(), DeviceError>) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.is_none() {
            let scratch = self.scratch.expect("a method that computes on rows");
            let mut scratch = scratch.lock().unwrap_or_else(PoisonError::into_inner);
            *failed = computation(&mut scratch).err();
        }
    }

    /// Only [`PromptRows::nearest_by_cosine`] supports keys before RoPE.
    fn assert_rotated(&self) {
        assert!(
            self.unrotated.is_none(),
            "only cosines of keys before RoPE are supported"
        );
    }
}

impl LayerRowsAccess for GpuRows<'_> {
    fn computations(&self) -> Option<&dyn PromptRows> {
        self.scratch.map(|_| self as _)
    }

    fn copies(&self) -> Option<[&[f32]; 2]> {
        self.copies
    }

    fn check(&self) -> Result<(), EngineError> {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.take().map_or(Ok(()), |error| Err(error.into()))
    }
}

impl PromptRows for GpuRows<'_> {
    fn nearest_by_cosine(
        &self,
        head: usize,
        tokens: &[u32],
        others: &[u32],
        best: &mut [(u32, f32)],
    ) {
        best.fill((0, f32::NEG_INFINITY));
        let of = HeadKeysValues {
            keys: self.keys,
            values: self.values,
            head,
            unrotated: self.unrotated,
        };
        self.run(|scratch| {
            (self.device).nearest_by_cosine(&of, tokens, others, best, &mut scratch.cosine)
        });
    }

    fn cosine_to_mean(&self, head: usize, document: usize, cosines: &mut [f32]) {
        self.assert_rotated();
        self.run(|scratch| {
            let keys = self.keys.head(head);
            (self.device).cosine_to_mean(keys, document, cosines, &mut scratch.row_score)
        });
        // The kernel computes scores: the less similar, the higher.
        cosines.iter_mut().for_each(|cosine| *cosine = -*cosine);
    }

    fn bilinear_forms(
        &self,
        head: usize,
        tokens: Range<usize>,
        form: BilinearForm<'_>,
        out: &mut [f32],
    ) {
        self.assert_rotated();
        self.run(|scratch| {
            let BilinearForm { linear, matrix } = form;
            let (keys, row_score) = (self.keys.head(head), &mut scratch.row_score);
            (self.device).bilinear_forms(keys, tokens, linear, matrix, out, row_score)
        });
    }

    fn softmax(&self, logits: &mut [f32]) {
        kept_kernels::softmax(logits);
    }

    fn key_norms(&self, head: usize, tokens: Range<usize>, norms: &mut [f32]) {
        self.assert_rotated();
        self.run(|scratch| {
            let keys = self.keys.head(head);
            (self.device).norms(keys, tokens, norms, &mut scratch.row_score)
        });
    }

    fn value_norms(&self, head: usize, tokens: Range<usize>, norms: &mut [f32]) {
        self.run(|scratch| {
            let values = self.values.head(head);
            (self.device).norms(values, tokens, norms, &mut scratch.row_score)
        });
    }
}

impl CudaPrefill<'_> {
    /// The current layer's rows.
    pub(super) fn method_rows(&self, access: RowAccess) -> GpuRows<'_> {
        let angles = self.rope.of_layer(access.layer);
        let [keys, values] = [self.buffers.method_keys(), &self.buffers.values];
        GpuRows {
            device: self.device(),
            keys: &self.keys,
            values: &self.values,
            scratch: self.method_scratch.as_ref().filter(|_| access.computations),
            copies: (access.copies).then(|| [keys.as_slice(), values.as_slice()]),
            unrotated: angles.filter(|_| access.before_rope),
            failed: Mutex::new(None),
        }
    }
}
