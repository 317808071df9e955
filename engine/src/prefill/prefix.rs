//! What a reading takes from the vault and leaves there: the rows of the tokens that every prompt on the document begins with.
//!
//! ```text
//! prompt   template document ............................ | between question tail
//!          known: rows from a vault | read, and kept      | read
//!          0                        known            tokens                      n
//! ```
//!
//! Chunks end at the prefix's end, and what follows is multiplied in the same way whether or not the prefix was just read: so a
//! first question and a later one compute the same of the same rows. Nothing that goes wrong with a vault costs an answer: it is
//! noted, and the document is read.

mod estimated;
mod request;
mod writing;

use kept_kernels::{PackedRows, Stop};
use kept_models::Model;
use kept_policies::{Future, PromptShape, ScoreCacheKey};

use super::gpu::transfer_bytes;
use super::reader::Read;
use crate::observe::Measured;
use crate::shape::head_shape;
use crate::sizes::Sizes;
use crate::vault::{
    FEW_SHARED, LAST_QUERIES, LayerNumbers, Measurement, Numbers, Run, Vault, VaultAccess,
    VaultError, VaultKey, VaultRows, VaultShape, VaultUse, VaultWriter, shared,
};

use request::MeasurementRequest;
pub(super) use writing::Learned;

/// Whether `model` could have left `vault`.
fn is_of(vault: &Vault, model: &Model) -> bool {
    let windows = model.config().kinds.iter().map(|kind| kind.window);
    vault.is_of(head_shape(model).into(), windows)
}

/// Rows behind the prefix up to which weights are multiplied where they lie: rearranging them costs more than it saves.
pub(super) const FEW_ROWS: usize = 64;

/// See the head of this file.
pub(super) struct Prefix {
    /// Tokens up to the document's end; all of the prompt where there are no vaults.
    tokens: usize,
    /// Tokens whose rows come from `vault`.
    known: usize,
    /// How rows are stored, where there are vaults.
    kind: Option<PackedRows>,
    /// While the next layer's rows are brought ahead, whoever brings them has it.
    vault: Option<Vault>,
    /// What the vault is.
    shape: Option<VaultShape>,
    /// Whether `vault` is of exactly this prefix.
    same: bool,
    /// What the vault holds of this layer beside its rows.
    numbers: LayerNumbers,
    /// Measurements that are taken from the vault.
    taken: Vec<Measurement>,
    writer: Option<VaultWriter>,
    /// `[.., q_heads, head_dim]`: rotated queries of the last tokens before `tokens`, where they are written.
    queries: Vec<f32>,
    width: usize,
    notes: Vec<String>,
    /// Bytes of memory that all of it takes.
    buffers: u64,
    /// Bytes of the vault that there is in the end.
    bytes: u64,
    written: bool,
}

impl Prefix {
    /// Of a reading of `tokens` tokens without vaults.
    pub(super) fn none(tokens: usize) -> Self {
        Self {
            tokens,
            known: 0,
            kind: None,
            vault: None,
            shape: None,
            same: false,
            numbers: LayerNumbers::default(),
            taken: Vec::new(),
            writer: None,
            queries: Vec::new(),
            width: 0,
            notes: Vec::new(),
            buffers: 0,
            bytes: 0,
            written: false,
        }
    }

    /// Finds what is known of the document and begins a vault where something will be learned. Nothing is read yet but a footer.
    pub(super) fn open(
        access: &VaultAccess<'_>,
        read: Read<'_>,
        sizes: &Sizes,
        prompt: &PromptShape,
    ) -> Self {
        let mut prefix = Self::none(prompt.tokens);
        let end = prompt.document().end.min(prompt.tokens - 1);
        if end < FEW_SHARED {
            return prefix;
        }
        if sizes.drops_tokens() {
            prefix.notes.push(
                "this method drops tokens as it reads, so the document's vault is neither used nor made"
                    .to_owned(),
            );
            return prefix;
        }
        let kind = access.vaults.kind;
        let ids = &read.ids[..end];
        let key = VaultKey::new(access.model, read.rope, ids, kind);
        prefix.stand_at(end, kind, read.model);
        let request = MeasurementRequest::of(sizes, prompt);
        if !access.anew {
            match access.vaults.folder.find(&key, ids) {
                Ok(Some(vault)) if !is_of(&vault, read.model) => {
                    let key = vault.key();
                    drop(vault);
                    let error = VaultError::Foreign;
                    prefix.note_unread(&error);
                    key.iter()
                        .for_each(|key| access.vaults.folder.remove_or_warn(key));
                }
                Ok(Some(vault)) => {
                    access.vaults.folder.used(&vault);
                    prefix.use_vault(vault, ids, &request, prompt);
                }
                Ok(None) => {}
                Err(error) => prefix.note_unread(&error),
            }
        }
        if let Some(shape) = prefix.learns(read.model, &request) {
            let (folder, model) = (access.vaults.folder, read.model.name());
            match folder.begin(&key, access.document, model, shape) {
                Ok(writer) => prefix.writer = Some(writer),
                Err(error) => prefix.note_unwritten(&error),
            }
        }
        let left = prefix.writer.as_ref().map(|writer| writer.shape().clone());
        prefix.buffers = prefix.count_buffers(read.model, sizes, left.as_ref());
        prefix
    }

    /// There are vaults, of rows stored as `kind`, and what they hold ends at `tokens`.
    fn stand_at(&mut self, tokens: usize, kind: PackedRows, model: &Model) {
        self.tokens = tokens;
        self.kind = Some(kind);
        self.width = head_shape(model).q_heads * head_shape(model).head_dim;
    }

    /// The sizes of a reading behind what is known.
    pub(super) fn sizes(&self, mut sizes: Sizes) -> Sizes {
        sizes.begin_behind(self.known, self.buffers, self.knows_repetition());
        let mut sizes = sizes.with_vault(self.kind);
        sizes.rearranges = self.rearranges(&sizes);
        sizes.may_prefetch(self.prefetch_bytes());
        sizes
    }

    /// How far `vault` serves.
    fn use_vault(
        &mut self,
        vault: Vault,
        ids: &[u32],
        request: &MeasurementRequest,
        prompt: &PromptShape,
    ) {
        let shape = vault.shape();
        let mut known = shared(vault.ids(), ids);
        self.same = known == ids.len() && shape.tokens == known;
        // A window that reaches further back than queries are stored has these tokens read again.
        let from = prompt.tokens - request.query_rows;
        if from < known && from < shape.tokens - shape.queries {
            known = from;
        }
        // Of a layer with a window there must be what its next token sees, and what a vault of this prompt keeps.
        let there = |(layer, window): (usize, &Option<usize>)| {
            window.is_none_or(|window| {
                let kept = VaultShape::kept(Some(window), self.tokens).start;
                shape.rows(layer).start <= known.saturating_sub(window).min(kept)
            })
        };
        if known < FEW_SHARED || !shape.windows.iter().enumerate().all(there) {
            known = 0;
        }
        // Sums over tokens go on where they are of all tokens that are used; a repetition and scores are those of one document.
        let holds = |m: &&Measurement| shape.measurements.contains(m);
        let (own, sums): (Vec<Measurement>, Vec<Measurement>) =
            (request.measurements.iter()).partition(|m| m.is_of_one_document());
        self.taken
            .extend(own.iter().filter(holds).filter(|_| self.same));
        if known == shape.tokens && sums.iter().all(|m| holds(&m)) {
            self.taken.extend(&sums);
        } else if !sums.is_empty() {
            let lacking = sums.iter().filter(|m| !holds(m)).map(|m| m.name());
            let lacking: Vec<&str> = lacking.collect();
            if self.same && !lacking.is_empty() {
                self.notes.push(format!(
                    "the vault of this document did not hold {}, so the document was read again",
                    lacking.join(" and ")
                ));
            }
            known = 0;
        }
        self.known = known;
        // Without any use it is let go: an open one cannot be removed.
        if self.same || known > 0 {
            self.bytes = match self.same {
                true => vault.bytes(),
                false => 0,
            };
            self.shape = Some(vault.shape().clone());
            self.vault = Some(vault);
        }
    }

    /// The shape of the vault that this reading can leave, if it learns anything.
    fn learns(&self, model: &Model, request: &MeasurementRequest) -> Option<VaultShape> {
        let old = self.vault.as_ref().map(Vault::shape);
        let of_same = old.filter(|_| self.same).map(|old| &old.measurements);
        let mut measurements: Vec<Measurement> = of_same.cloned().unwrap_or_default();
        let new = request.everywhere.iter();
        let new = new.filter(|m| !measurements.contains(m)).copied();
        let new: Vec<Measurement> = new.collect();
        // Scores alone are not worth a copy of all rows: these give them again.
        if self.same && new.iter().all(Measurement::is_scores) {
            return None;
        }
        measurements.extend(new);
        let too_many = measurements.len().saturating_sub(Measurement::MOST);
        measurements.drain(..too_many);
        measurements.sort_by_key(Measurement::order);
        let mut first_query = self.tokens.saturating_sub(LAST_QUERIES);
        if let Some(old) = old
            && first_query < self.known
        {
            first_query = first_query.max((old.tokens - old.queries).min(self.known));
        }
        Some(VaultShape {
            tokens: self.tokens,
            heads: head_shape(model).into(),
            kind: self.kind?,
            queries: self.tokens - first_query,
            windows: (model.config().kinds.iter())
                .map(|kind| kind.window)
                .collect(),
            measurements,
        })
    }

    /// Tokens up to the document's end; all of the prompt where there are no vaults.
    pub(super) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Tokens whose rows come from the vault.
    pub(super) fn known(&self) -> usize {
        self.known
    }

    /// Whether the document's repetition for `reconstruction` need not be read.
    pub(super) fn knows_repetition(&self) -> bool {
        self.taken.iter().any(|m| m.is_repetition())
    }

    /// Whether there are or will be scores of the document, from a repetition or a method.
    pub(super) fn has_scores(&self) -> bool {
        self.has_scores_with(self.writer.as_ref().map(VaultWriter::shape))
    }

    /// The same, where a vault of the shape `left` is made.
    fn has_scores_with(&self, left: Option<&VaultShape>) -> bool {
        let mut written = left.iter().flat_map(|shape| &shape.measurements);
        self.taken.iter().any(Measurement::is_of_one_document)
            || written.any(Measurement::is_scores)
    }

    /// Whether a layer's weights are rearranged for many rows.
    pub(super) fn rearranges(&self, sizes: &Sizes) -> bool {
        let rest = sizes.tokens - self.tokens;
        self.known < self.tokens || sizes.reconstruction_plan.is_some() || rest > FEW_ROWS
    }

    /// What a person should know.
    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Bytes of memory that all of it takes.
    pub(super) fn buffer_bytes(&self) -> u64 {
        self.buffers
    }

    /// Bytes of memory that all of it takes, where a vault of the shape `left` is made.
    fn count_buffers(&self, model: &Model, sizes: &Sizes, left: Option<&VaultShape>) -> u64 {
        let numbers = |shape: &VaultShape| {
            let queries = shape.queries * self.width * size_of::<f32>();
            let measured = shape.measurements.iter();
            let measured = measured.map(|m| m.bytes(shape.heads, shape.tokens));
            (queries + measured.sum::<usize>()) as u64
        };
        let reading = |vault: &Vault| {
            let ids = size_of_val(vault.ids()) as u64;
            Vault::buffer_bytes() + numbers(vault.shape()) + ids
        };
        let writing = |shape: &VaultShape| {
            VaultWriter::buffer_bytes() + (shape.queries * self.width * size_of::<f32>()) as u64
        };
        let scores = usize::from(self.has_scores_with(left)) * head_shape(model).kv_heads;
        self.vault.as_ref().map_or(0, reading)
            + left.map_or(0, writing)
            + (self.kind).map_or(0, |kind| transfer_bytes(model, kind, sizes.chunk))
            + (scores * sizes.tokens * size_of::<f32>()) as u64
    }

    /// Rounds `rows [rows, heads * head_dim]` of the tokens from `first` on as they will be stored, where a first reading is to see
    /// what later ones will.
    pub(super) fn round(&self, first: usize, rows: &mut [f32], head_dim: usize) {
        if first < self.tokens && self.kind == Some(PackedRows::F16) {
            PackedRows::F16.round(rows, head_dim);
        }
    }

    /// Begins a layer: gives the rows of known tokens to `rows`, and to the vault that is being made. After a stop some of them.
    ///
    /// # Errors
    /// [`VaultError`] when the vault cannot be read to its end; the rows are then anything.
    pub(super) fn begin_layer(
        &mut self,
        layer: usize,
        rows: &mut dyn VaultRows,
        stop: &Stop,
    ) -> Result<(), VaultError> {
        self.queries.clear();
        self.numbers = LayerNumbers::default();
        let Some(vault) = &mut self.vault else {
            return Ok(());
        };
        // Of a document that is read again only measurements may be of use.
        if self.known > 0 || self.writer.is_some() || !self.taken.is_empty() {
            let mut both = Both {
                rows,
                writer: self.writer.as_mut(),
                outcome: Ok(()),
                stop,
            };
            self.numbers = vault.layer(layer, self.known, &mut both)?;
            if let Err(error) = both.outcome {
                self.give_up_writing(&error);
            }
        }
        if let Some(writer) = &self.writer {
            let from = self.tokens - writer.shape().queries;
            let mut queries = std::mem::take(&mut self.queries);
            self.append_queries(from, &mut queries);
            self.queries = queries;
        }
        Ok(())
    }

    /// Bytes of the packed rows of its largest layer, where nothing is wanted of the vault but rows and numbers: these may then come
    /// while something else is done, from the vault that [`Prefix::lend`] gives. 0 otherwise.
    pub(super) fn prefetch_bytes(&self) -> usize {
        let score_cache = self.known > 0 && self.writer.is_none();
        let shape = self.shape.as_ref().filter(|_| score_cache);
        shape.map_or(0, |shape| {
            let layers = 0..shape.windows.len();
            let rows = layers.map(|layer| 2 * shape.heads.kv_heads * shape.head_bytes(layer));
            rows.max().unwrap_or(0)
        })
    }

    /// The vault, until [`Prefix::begin_brought`].
    pub(super) fn lend(&mut self) -> Option<Vault> {
        self.vault.take()
    }

    /// Begins a layer whose rows were brought ahead; `numbers` are what the vault holds of it besides.
    pub(super) fn begin_brought(&mut self, vault: Vault, numbers: LayerNumbers) {
        self.queries.clear();
        self.vault = Some(vault);
        self.numbers = numbers;
    }

    /// Appends the rotated queries of the known tokens from `from` on, in a layer that has them.
    pub(super) fn append_queries(&self, from: usize, out: &mut Vec<f32>) {
        let Some(shape) = &self.shape else { return };
        let first = shape.tokens - shape.queries;
        if from < self.known && !self.numbers.queries.is_empty() {
            let stored = from.max(first) - first..self.known - first;
            out.extend_from_slice(
                &self.numbers.queries[stored.start * self.width..stored.end * self.width],
            );
        }
    }

    /// Writes the column sums of the known tokens into `sums [q_heads, n]`.
    pub(super) fn fill_column_sums(&self, sums: &mut [f32], n: usize) {
        if self.known > 0
            && let Some(stored) = self.stored(Measurement::ColumnSums)
        {
            spread(stored.single(), sums, n);
        }
    }

    /// Goes on with the sums of the known tokens' queries.
    pub(super) fn fill_query_sums(&self, future: Future, measured: &mut Measured) {
        if self.known > 0
            && let Some(stored) = self.stored(Measurement::of_future(future))
        {
            measured.restore(future, self.known, stored.double());
        }
    }

    /// Writes the scores of the document's repetition into `scores [kv_heads, n]`; 0 elsewhere.
    pub(super) fn fill_repetition(&self, scores: &mut [f32], n: usize) {
        scores.fill(0.0);
        let mut taken = self.taken.iter().filter(|m| m.is_repetition());
        if let Some(stored) = taken.next().and_then(|m| self.stored(*m)) {
            spread(stored.single(), scores, n);
        }
    }

    /// Writes the scores of the document into `scores [kv_heads, n]`, 0 behind it, and says whether there are any.
    pub(super) fn fill_scores(
        &self,
        score_cache: ScoreCacheKey,
        scores: &mut [f32],
        n: usize,
    ) -> bool {
        let request = Measurement::of_scores(score_cache);
        let stored = self.taken.contains(&request).then(|| self.stored(request));
        let Some(stored) = stored.flatten() else {
            return false;
        };
        scores.fill(0.0);
        spread(stored.single(), scores, n);
        true
    }

    fn stored(&self, measurement: Measurement) -> Option<&Numbers> {
        self.numbers.of(self.shape.as_ref()?, measurement)
    }

    /// What came of it; `read` tokens ran through the model. `None` where there are no vaults.
    pub(super) fn into_use(self, read: usize) -> Option<VaultUse> {
        Some(VaultUse {
            used: self.known > 0,
            tokens_from_vault: self.known,
            tokens_read: read,
            bytes: self.bytes,
            kind: self.kind?.name().to_owned(),
            written: self.written,
        })
    }

    fn note_unread(&mut self, error: &VaultError) {
        self.notes.push(error.unread());
    }
}

/// Rows of a vault on their way to a layer, and, where another vault is made, into that.
struct Both<'a> {
    rows: &'a mut dyn VaultRows,
    writer: Option<&'a mut VaultWriter>,
    outcome: Result<(), VaultError>,
    stop: &'a Stop,
}

impl VaultRows for Both<'_> {
    fn space(&mut self) -> Option<&mut [u8]> {
        match self.stop.is_requested() {
            true => None,
            false => self.rows.space(),
        }
    }

    fn take(&mut self, kind: PackedRows, runs: &[Run]) {
        if let Some(writer) = &mut self.writer
            && let Some(space) = self.rows.space()
        {
            for run in runs {
                if self.outcome.is_ok() {
                    let packed = &space[run.at.clone()];
                    self.outcome = writer.packed((run.of, run.head), run.first, packed);
                }
            }
        }
        self.rows.take(kind, runs);
    }
}

/// Copies `from [heads, stored]` to the first columns of `to [heads, n]`.
fn spread(from: &[f32], to: &mut [f32], n: usize) {
    let stored = from.len() / (to.len() / n).max(1);
    for (to, from) in to.chunks_exact_mut(n).zip(from.chunks_exact(stored.max(1))) {
        to[..stored].copy_from_slice(from);
    }
}
