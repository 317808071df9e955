//! Host buffers of one prefill, allocated before it begins.

use kept_kernels::{HeadShape, RowStore};
use kept_models::{Model, RopeTable};

use crate::plan::PrefillPlan;

/// Host buffers for one layer, reused for all layers. A backend with its own memory uses them for rows that the host
/// reads.
pub struct HostBuffers {
    /// `[n]` rows per KV head, or more if a reconstruction is appended to the document.
    pub keys: RowStore,
    /// As `keys`.
    pub values: RowStore,
    /// `[chunk, q_heads, head_dim]`
    pub q: Vec<f32>,
    /// `[chunk, kv_heads, head_dim]`
    pub k: Vec<f32>,
    /// `[chunk, kv_heads, head_dim]`
    pub v: Vec<f32>,
    /// `[chunk, q_heads, head_dim]`
    pub attention: Vec<f32>,
    /// `[q_heads, chunk]`: log-sum-exp of one chunk's rows, if a measurement needs it.
    pub log_sum_exp: Vec<f32>,
    /// `[rows, head_dim]`: kept rows of one head before rounding.
    pub gathered: Vec<f32>,
    /// Packed rows read from a vault; counted in the vault's memory.
    pub packed: Vec<u8>,
    /// Keys before RoPE for the current method, if it needs them.
    raw: RawKeys,
    /// Copy of the keys before RoPE for one of several methods: the others need the rotated keys.
    raw_copy: Option<RowStore>,
    /// Rows per KV head.
    rows: usize,
    /// Which layer's rows are in `keys` and `values`, if they are of use to later layers.
    holds: Option<usize>,
    /// Rows of earlier layers that later ones attend to.
    shared: Vec<SharedRows>,
    /// The most bytes of rows so far.
    largest_rows: usize,
}

/// Keys and values of a layer that later layers attend to.
struct SharedRows {
    layer: usize,
    keys: RowStore,
    values: RowStore,
}

/// Where keys before RoPE are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RawKeys {
    /// Nowhere.
    None,
    /// In `keys`.
    InPlace,
    /// In a copy.
    Copied,
}

impl HostBuffers {
    /// Allocates the buffers for methods of these plans on one prefill.
    pub fn new(plans: &[PrefillPlan], heads: HeadShape) -> Self {
        let rows = || RowStore::uniform(heads.kv_heads, plans[0].layer_rows(), heads.head_dim);
        let most = |size: fn(&PrefillPlan) -> usize| plans.iter().map(size).max().unwrap_or(0);
        Self {
            keys: rows(),
            values: rows(),
            q: vec![0.0; most(PrefillPlan::q)],
            k: vec![0.0; most(PrefillPlan::kv)],
            v: vec![0.0; most(PrefillPlan::kv)],
            attention: vec![0.0; most(PrefillPlan::q)],
            log_sum_exp: vec![0.0; most(PrefillPlan::log_sum_exp)],
            gathered: Vec::with_capacity(most(PrefillPlan::gathered)),
            rows: plans[0].layer_rows(),
            ..Self::none()
        }
    }

    /// Makes `keys` and `values` those of `layer`: empty rows, or those of the earlier layer that it attends to.
    pub fn begin_layer(&mut self, model: &Model, layer: usize) {
        self.largest_rows = self.most_bytes();
        let none = || RowStore::uniform(0, 0, 1);
        if let Some(held) = self.holds.take() {
            self.shared.push(SharedRows {
                layer: held,
                keys: std::mem::replace(&mut self.keys, none()),
                values: std::mem::replace(&mut self.values, none()),
            });
        }
        let config = model.config();
        let (kind, source) = (&config.kinds[layer], config.kinds[layer].kv_source_layer());
        if let Some(at) =
            source.and_then(|source| self.shared.iter().position(|s| s.layer == source))
        {
            let SharedRows { keys, values, .. } = self.shared.swap_remove(at);
            (self.keys, self.values) = (keys, values);
            self.holds = source;
            return;
        }
        if (self.keys.kv_heads(), self.keys.head_dim()) != (kind.kv_heads, kind.head_dim) {
            // One after the other: both at once would need the memory of two.
            (self.keys, self.values) = (none(), none());
            let rows = || RowStore::uniform(kind.kv_heads, self.rows, kind.head_dim);
            (self.keys, self.values) = (rows(), rows());
        }
        self.holds = config.is_shared(layer).then_some(layer);
    }

    /// No buffers, to measure the memory of a device.
    pub fn none() -> Self {
        let rows = || RowStore::uniform(1, 0, 1);
        Self {
            keys: rows(),
            values: rows(),
            q: Vec::new(),
            k: Vec::new(),
            v: Vec::new(),
            attention: Vec::new(),
            log_sum_exp: Vec::new(),
            gathered: Vec::new(),
            packed: Vec::new(),
            raw: RawKeys::None,
            raw_copy: None,
            rows: 0,
            holds: None,
            shared: Vec::new(),
            largest_rows: 0,
        }
    }

    /// The current method sees rotated keys.
    pub fn keep_rotated(&mut self) {
        self.raw = RawKeys::None;
    }

    /// Whether the current method sees keys before RoPE.
    pub fn unrotated(&self) -> bool {
        self.raw != RawKeys::None
    }

    /// Undoes RoPE on the keys: in place, or on a copy if the rotated keys are needed again (`shared`).
    pub fn unrotate(&mut self, rope: Option<&RopeTable>, shared: bool) {
        let keys = if shared {
            self.raw = RawKeys::Copied;
            self.raw_copy.insert(self.keys.clone())
        } else {
            self.raw = RawKeys::InPlace;
            &mut self.keys
        };
        let Some(rope) = rope else { return };
        for head in 0..keys.kv_heads() {
            for position in 0..keys.capacity(head) {
                rope.unrotate_at(keys.row_mut(head, position), position);
            }
        }
    }

    /// The keys that the current method sees, the values, and the buffer for gathered rows.
    pub fn of_method(&mut self) -> (&RowStore, &RowStore, &mut Vec<f32>) {
        let copy = self.raw_copy.as_ref();
        let keys = copy.filter(|_| self.raw == RawKeys::Copied);
        (keys.unwrap_or(&self.keys), &self.values, &mut self.gathered)
    }

    /// The keys that the current method sees.
    pub fn method_keys(&self) -> &RowStore {
        let copy = self.raw_copy.as_ref();
        copy.filter(|_| self.raw == RawKeys::Copied)
            .unwrap_or(&self.keys)
    }

    /// Bytes of keys and values, the most so far.
    pub fn row_bytes(&self) -> u64 {
        let raw = self.raw_copy.as_ref().map_or(0, RowStore::bytes);
        (self.most_bytes() + raw) as u64
    }

    /// As [`Self::row_bytes`], without the copy of the keys before RoPE.
    fn most_bytes(&self) -> usize {
        let shared = self
            .shared
            .iter()
            .map(|s| s.keys.bytes() + s.values.bytes());
        let now = self.keys.bytes() + self.values.bytes() + shared.sum::<usize>();
        self.largest_rows.max(now)
    }

    /// Bytes of all buffers except keys and values.
    pub fn bytes(&self) -> u64 {
        let floats = self.q.len()
            + self.k.len()
            + self.v.len()
            + self.attention.len()
            + self.log_sum_exp.len()
            + self.gathered.capacity();
        (floats * size_of::<f32>()) as u64
    }
}
