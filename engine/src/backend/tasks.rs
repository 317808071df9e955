//! What the traits of `traits.rs` pass to a device and get back.

use std::any::Any;
use std::ops::Range;

use kept_kernels::{PackedRows, RowStore};
use kept_models::RopeTable;
use kept_policies::{ObservationWindow, Selection, WeightedWindow};

use crate::compact::Gather;
use crate::plan::PrefillPlan;

/// Rows of a compact cache in device memory, in the form of the device's crate.
pub type DeviceRows = Box<dyn Any + Send>;

/// What a prefill starts with.
pub struct PrefillInput<'m> {
    /// RoPE angles of all positions.
    pub rope: &'m RopeTable,
    /// One for each method.
    pub plans: &'m [PrefillPlan],
    /// `[rows]`: the tokens that run through the layers.
    pub ids: &'m [u32],
    /// `[rows, width]`: their embeddings.
    pub residual: Vec<f32>,
}

/// A chunk of tokens in a layer.
pub struct Chunk<'c> {
    /// Index among all layers of the model.
    pub layer: usize,
    /// First row, in the layer's keys and values.
    pub first: usize,
    /// First row, in the residual stream.
    pub at: usize,
    /// Number of rows.
    pub count: usize,
    /// Residual stream rows of the layer's next chunk, if any.
    pub next: Range<usize>,
    /// Positions of the rows, if they differ from row indices.
    pub positions: Option<&'c [u32]>,
    /// Attention window of a sliding-window layer, in positions including the row's own.
    pub window: Option<usize>,
    /// How many of the chunk's last rows need the rest of the layer (attention output and MLP).
    pub needed: usize,
    /// How many of its last rows belong to the observation window.
    pub observed: usize,
    /// Whether the attention that each key receives is summed.
    pub column_sums: bool,
    /// The type to which new rows in f32 are rounded, if the vault's rows have another.
    pub rounds: Option<PackedRows>,
    /// Whether the rows are written to a vault.
    pub writes: bool,
    /// Whether this is the last chunk that is written to a vault.
    pub ends_prefix: bool,
}

/// A method's access to the rows of a layer.
#[derive(Debug, Clone, Copy)]
pub struct RowAccess {
    /// Index among all layers of the model.
    pub layer: usize,
    /// Rows of the layer.
    pub tokens: usize,
    /// Whether the method reads copies of keys and values in host memory.
    pub copies: bool,
    /// Whether it computes on the rows where they are.
    pub computations: bool,
    /// Whether it sees keys before RoPE.
    pub before_rope: bool,
    /// Whether other methods need the rotated keys afterwards.
    pub shared: bool,
}

/// A method's selection in a layer.
pub struct GatherTask<'g> {
    /// Index among all layers of the model.
    pub layer: usize,
    /// Index among the method's layers.
    pub in_policy: usize,
    /// The method's plan.
    pub plan: &'g PrefillPlan,
    /// RoPE angles of all positions.
    pub rope: &'g RopeTable,
    /// What the method keeps.
    pub selection: &'g Selection,
    /// Positions of the layer's rows, if they differ from row indices.
    pub positions: Option<&'g [u32]>,
}

/// Where a gather takes its rows from, and what is already done with them.
pub struct GatherSource<'g> {
    /// Keys of the layer's tokens, row == index.
    pub keys: &'g RowStore,
    /// As `keys`.
    pub values: &'g RowStore,
    /// Whether RoPE is undone on keys that are stored before RoPE.
    pub unrotated: bool,
    /// Sums of evicted values, as in [`Gather`].
    pub value_sums: Option<&'g [f32]>,
    /// Whether the rows of classes are merged.
    pub merged: bool,
}

impl GatherTask<'_> {
    /// Runs `build` on the construction of the compact layer from `source`.
    pub fn gather<T>(&self, source: &GatherSource<'_>, build: impl FnOnce(&Gather<'_>) -> T) -> T {
        let (plan, selection) = (self.plan, self.selection);
        let rope = self.rope.of_layer(self.layer);
        let unrotates = plan.reassigns_positions() && !source.unrotated;
        build(&Gather {
            keys: source.keys,
            values: source.values,
            tokens: plan.layer_input_tokens(self.in_policy),
            retention: &selection.retention,
            capacities: &plan.head_capacities(self.in_policy, &selection.retention),
            positions: plan.row_plan.positions,
            storage: plan.row_storage(),
            row_positions: self.positions,
            // Methods that re-assign positions store keys before RoPE.
            unrotate: rope.filter(|_| unrotates),
            value_merges: &selection.value_merges,
            merge_sums: source.value_sums,
            merged: source.merged,
        })
    }
}

/// Attention of a layer's last queries.
#[derive(Debug, Clone, Copy)]
pub enum LastRows<'r> {
    /// Probabilities of the observation window.
    Window(ObservationWindow),
    /// Probabilities of a window, weighted towards the newest row. Keys outside the given ones may be left out.
    WeightedWindow(WeightedWindow, Option<&'r [u32]>),
    /// Keys to which this many last queries pay less than average attention.
    LowAttention(usize),
}

/// What is kept of a layer.
pub enum Keep<'k> {
    /// A method's selection.
    Selection(GatherTask<'k>),
    /// The last positions of a sliding-window layer, as many as its window.
    Window(&'k PrefillPlan, usize),
    /// The state of a recurrent layer after all tokens.
    State,
}

/// What a prefill leaves after its last layer.
pub struct PrefillEnd {
    /// `[rows, width]`: rows of the residual stream.
    pub residual: Vec<f32>,
    /// The kept rows of all layers, if they stayed on the device.
    pub cache: Option<DeviceRows>,
    /// Memory of all buffers.
    pub memory: PrefillMemory,
}

/// Memory of a prefill's buffers, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub struct PrefillMemory {
    /// A layer's keys and values on the host.
    pub layer_kv: u64,
    /// Other host buffers, except the residual stream.
    pub activations: u64,
    /// Device memory, weights included.
    pub device: u64,
}

/// Time of one part of a decode step: of all layers together.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct PartTime {
    /// In plain words.
    pub part: &'static str,
    /// How often it runs in a step: once for each of its layers.
    pub times: usize,
    /// Seconds of a step.
    pub seconds: f64,
    /// Bytes of weights and kept rows that it reads in a step.
    pub bytes: u64,
}

/// The logits after a token.
pub enum StepOutput<'a> {
    /// `[vocab]`
    Logits(&'a mut [f32]),
    /// The most likely tokens in descending order: their logits and ids.
    TopK(&'a mut [f32], &'a [u32]),
}
