//! The vault's part in a prefill: it provides and stores the rows of the prefix, the tokens with which every
//! prompt on the document begins.
//!
//! ```text
//! prompt   template document ............................ | between question tail
//!          known: rows from a vault | read, and stored    | read
//!          0                        known            tokens                      n
//! ```
//!
//! Chunks end at the prefix's end, and the rest of the prompt uses the same kernels whether or not the prefix
//! was just read. The first question and later ones therefore compute the same results from the same rows. A
//! vault error never fails a question: it becomes a note, and the document is read.

mod estimated;
mod loading;
mod request;
mod rows;
mod shape;
mod turns;
mod writing;

use kept_kernels::PackedRows;
use kept_models::Model;
use kept_policies::PromptShape;

use super::input::PrefillTask;
use crate::backend;
use crate::plan::{FEW_ROWS, PrefillPlan};
use crate::shape::head_shape;
use kept_vault::{
    LAST_QUERIES, LayerElements, MAX_QUERIES, MIN_SHARED_TOKENS, StoredMeasurement, StoredRows,
    Vault, VaultAccess, VaultError, VaultFolder, VaultKey, VaultShape, VaultUse, VaultWriter,
    shared,
};

use request::MeasurementRequest;
pub(crate) use shape::file_bytes;
use shape::{fits_model, rows_shape};
use turns::TurnRows;
pub(super) use writing::MeasuredForVault;

/// The key of `vault`, if it ends within the document of these `ids`.
fn part_of(
    vault: &Vault,
    access: &VaultAccess<'_>,
    ids: &[u32],
) -> Option<(VaultFolder, VaultKey)> {
    let tokens = vault.shape().tokens;
    let is_part = tokens < ids.len() && shared(vault.ids(), ids) == tokens;
    let key = vault
        .key()
        .filter(|_| is_part && vault.document() == access.document)?;
    Some((access.vaults.folder.clone(), key))
}

/// The state of the vault in one prefill; see the module documentation.
#[derive(Default)]
pub(crate) struct Prefix {
    /// Tokens up to the document's end; the whole prompt without vaults.
    pub(super) tokens: usize,
    /// Tokens whose rows come from `vault`.
    known: usize,
    /// Type of the stored rows; `None` without vaults.
    kind: Option<PackedRows>,
    /// The vault that is read, if any.
    vault: Option<Vault>,
    /// Shape of `vault`.
    shape: Option<VaultShape>,
    /// Whether `vault` holds exactly this prefix.
    same: bool,
    /// The vault's measurements and queries of the current layer.
    elements: LayerElements,
    /// Measurements taken from the vault.
    taken: Vec<StoredMeasurement>,
    writer: Option<VaultWriter>,
    /// The vault that `writer` replaces: an unfinished reading of the same document.
    replaced: Option<(VaultFolder, VaultKey)>,
    /// The earlier turns of the conversation, if their rows may come from a vault.
    turns: Option<TurnRows>,
    /// `[.., q_heads, head_dim]`: rotated queries of the last tokens before `tokens`, for `writer`.
    queries: Vec<f32>,
    width: usize,
    /// Messages for the user.
    pub(super) notes: Vec<String>,
    /// Bytes of all vault buffers.
    pub(super) buffers: u64,
    /// Bytes of the vault file after the prefill.
    bytes: u64,
    written: bool,
}

/// Note on a method that drops tokens between layers.
pub(crate) const DROPS_TOKENS: &str =
    "this method drops tokens as it reads, so the document's vault is neither used nor made";

impl Prefix {
    /// A prefill of `tokens` tokens without vaults.
    pub(super) fn none(tokens: usize) -> Self {
        Self {
            tokens,
            ..Self::default()
        }
    }

    /// Finds the document's vault and begins a new one if this prefill adds something to it. `plans` are those of the
    /// methods that share the prefill. Reads only the footer of a file.
    pub(super) fn open(
        access: &VaultAccess<'_>,
        input: PrefillTask<'_>,
        plans: &[PrefillPlan],
    ) -> Self {
        let plan = &plans[0];
        let prompt = &plan.row_plan.prompt;
        let mut prefix = Self::none(prompt.tokens);
        let request = MeasurementRequest::new(plans);
        // Without a document, turns and question take its place.
        let document = prompt.document();
        let has_document = access.turns.first().is_none_or(|&turn| turn > document.end);
        let end = if has_document {
            document.end.min(prompt.tokens - 1)
        } else {
            0
        };
        if end < MIN_SHARED_TOKENS {
            if request.measurements.is_empty() && !plan.drops_tokens() {
                prefix.open_turns(access, input, 0, input.ids.len() - request.query_rows);
                prefix.buffers = prefix.count_buffers(input.model, plan, None);
            }
            return prefix;
        }
        if plan.drops_tokens() {
            prefix.notes.push(DROPS_TOKENS.to_owned());
            return prefix;
        }
        let kind = access.vaults.kind;
        let ids = &input.ids[..end];
        let key = VaultKey::new(access.model, input.rope, ids, kind);
        prefix.enable(end, kind, input.model);
        if !access.rebuild {
            match access.vaults.folder.find(&key, ids) {
                Ok(Some(vault)) if !fits_model(&vault, input.model) => {
                    let key = vault.key();
                    drop(vault);
                    let error = VaultError::Foreign;
                    prefix.note_unread(&error);
                    key.iter()
                        .for_each(|key| access.vaults.folder.remove_or_warn(key));
                }
                Ok(Some(vault)) => {
                    access.vaults.folder.record_use(&vault);
                    prefix.replaced = part_of(&vault, access, ids);
                    prefix.use_vault(vault, ids, &request, prompt);
                }
                Ok(None) => {}
                Err(error) => prefix.note_unread(&error),
            }
        }
        if let Some(shape) = prefix.shape_to_write(input.model, &request) {
            let (folder, model) = (access.vaults.folder, input.model.name());
            match folder.begin(&key, access.document, model, shape) {
                Ok(writer) => prefix.writer = Some(writer),
                Err(error) => prefix.note_unwritten(&error),
            }
        }
        let has_sums = request.measurements.iter().any(|m| !m.is_of_one_document());
        // Sums over all queries exist only while the turns are read.
        if !has_sums && (prefix.same || prefix.writer.is_some()) {
            // Without all rows of the document, those of the turns are of no use; a reconstruction overwrites them. A
            // new file begins with the first turn.
            let repeats = plan.reconstruction_plan.is_some() && !prefix.knows_reconstruction();
            let latest = if prefix.known < end || repeats {
                0
            } else {
                input.ids.len() - request.query_rows
            };
            prefix.open_turns(access, input, end, latest);
        }
        let written = prefix.writer.as_ref().map(|writer| writer.shape().clone());
        prefix.buffers = prefix.count_buffers(input.model, plan, written.as_ref());
        prefix
    }

    /// Finds the rows of the earlier turns, which begin at `from`; those of the tokens up to `latest` can be used.
    fn open_turns(
        &mut self,
        access: &VaultAccess<'_>,
        input: PrefillTask<'_>,
        from: usize,
        latest: usize,
    ) {
        if access.turns.is_empty() {
            return;
        }
        if from == 0 {
            self.enable(0, access.vaults.kind, input.model);
        }
        self.turns = TurnRows::open(access, input, from, latest, &mut self.notes);
    }

    /// Enables vaults: prefix of `tokens` tokens, rows stored as `kind`.
    fn enable(&mut self, tokens: usize, kind: PackedRows, model: &Model) {
        self.tokens = tokens;
        self.kind = Some(kind);
        self.width = head_shape(model).q_heads * head_shape(model).head_dim;
    }

    /// Adapts `plan` to the rows from the vault.
    pub(super) fn adapt(&self, plan: &mut PrefillPlan) {
        (plan.known, plan.vault, plan.vault_rows) = (self.known(), self.buffers, self.kind);
        if self.knows_reconstruction() {
            plan.reconstruction_plan = None;
        }
        plan.rearranges = self.rearranges(plan);
    }

    /// Determines how many tokens and which measurements of `vault` can be used.
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
        // If the observation window reaches further back than the stored queries, its tokens are read again.
        let from = prompt.tokens - request.query_rows;
        if from < known && from < shape.tokens - shape.queries {
            known = from;
        }
        // A sliding-window layer needs the positions that the next token sees and that a vault of this prompt
        // keeps.
        let covers = |(layer, rows): (usize, &StoredRows)| {
            // A state is that after all tokens of the vault.
            if shape.is_recurrent(layer) {
                return known == shape.tokens;
            }
            let StoredRows::Last(window) = *rows else {
                return true;
            };
            let kept = VaultShape::kept(window, self.tokens).start;
            shape.rows(layer).start <= known.saturating_sub(window).min(kept)
        };
        if known < MIN_SHARED_TOKENS || !shape.windows.iter().enumerate().all(covers) {
            known = 0;
        }
        // Sums over tokens can be continued if they cover exactly the tokens used; reconstructions and scores
        // belong to one document.
        let holds = |m: &&StoredMeasurement| shape.measurements.contains(m);
        let (own, sums): (Vec<StoredMeasurement>, Vec<StoredMeasurement>) =
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
        // An unused vault is dropped: an open file cannot be removed.
        if self.same || known > 0 {
            self.bytes = if self.same { vault.bytes() } else { 0 };
            self.shape = Some(vault.shape().clone());
            self.vault = Some(vault);
        }
    }

    /// Shape of the vault that this prefill can write; `None` if it adds nothing.
    fn shape_to_write(&self, model: &Model, request: &MeasurementRequest) -> Option<VaultShape> {
        let old = self.vault.as_ref().map(Vault::shape);
        let of_same = old.filter(|_| self.same).map(|old| &old.measurements);
        let mut measurements: Vec<StoredMeasurement> = of_same.cloned().unwrap_or_default();
        let new = request.everywhere.iter();
        let new = new.filter(|m| !measurements.contains(m)).copied();
        let new: Vec<StoredMeasurement> = new.collect();
        // Scores alone are not worth a copy of all rows: they can be recomputed from the rows.
        if self.same && new.iter().all(StoredMeasurement::is_scores) {
            return None;
        }
        measurements.extend(new);
        let too_many = measurements
            .len()
            .saturating_sub(StoredMeasurement::MAX_MEASUREMENTS);
        measurements.drain(..too_many);
        measurements.sort_by_key(StoredMeasurement::order);
        let queries = match request.query_rows {
            0..=LAST_QUERIES => LAST_QUERIES,
            _ => MAX_QUERIES,
        };
        let mut first_query = self.tokens.saturating_sub(queries);
        if let Some(old) = old
            && first_query < self.known
        {
            first_query = first_query.max((old.tokens - old.queries).min(self.known));
        }
        Some(VaultShape {
            queries: self.tokens - first_query,
            measurements,
            ..rows_shape(model, self.tokens, self.kind?)
        })
    }

    /// Tokens whose rows come from a vault, those of earlier turns included.
    pub(crate) fn known(&self) -> usize {
        let turns = self.turns.as_ref().map_or(0, |turns| turns.known);
        self.known.max(turns)
    }

    /// End of what is read by itself from token `first` on, in a prompt of `n` tokens: the prefix, a turn, or the
    /// rest.
    pub(super) fn section_end(&self, first: usize, n: usize) -> usize {
        let turns = self.turns.iter().flat_map(|turns| &turns.ends);
        let mut ends = std::iter::once(&self.tokens).chain(turns);
        ends.find(|&&end| end > first).map_or(n, |&end| end.min(n))
    }

    /// Whether rows from token `first` on are written to a vault.
    pub(super) fn writes(&self, first: usize) -> bool {
        if first < self.tokens {
            self.writer.is_some()
        } else {
            (self.turns.as_ref()).is_some_and(|turns| turns.writes() && first < turns.end())
        }
    }

    /// Whether the reconstruction's scores come from the vault.
    pub(super) fn knows_reconstruction(&self) -> bool {
        self.taken.iter().any(|m| m.is_reconstruction())
    }

    /// Whether scores of the document are read or written: of a reconstruction or of a method.
    pub(super) fn has_scores(&self) -> bool {
        self.has_scores_with(self.writer.as_ref().map(VaultWriter::shape))
    }

    /// As [`Prefix::has_scores`], if a vault of shape `written` is written.
    fn has_scores_with(&self, written: Option<&VaultShape>) -> bool {
        let mut new = written.iter().flat_map(|shape| &shape.measurements);
        self.taken.iter().any(StoredMeasurement::is_of_one_document)
            || new.any(StoredMeasurement::is_scores)
    }

    /// Whether a layer's weights are rearranged for many rows.
    pub(super) fn rearranges(&self, plan: &PrefillPlan) -> bool {
        if self.known < self.tokens || plan.reconstruction_plan.is_some() {
            return true;
        }
        let n = plan.tokens();
        let next = |&first: &usize| Some(self.section_end(first, n)).filter(|&end| end < n);
        let mut sections = std::iter::successors(Some(self.known()), next);
        sections.any(|first| self.section_end(first, n) - first > FEW_ROWS)
    }

    /// Bytes of all vault buffers, if a vault of shape `written` is written.
    fn count_buffers(
        &self,
        model: &Model,
        plan: &PrefillPlan,
        written: Option<&VaultShape>,
    ) -> u64 {
        let elements = |shape: &VaultShape| {
            let queries = shape.queries * self.width * size_of::<f32>();
            let measured = shape.measurements.iter();
            let measured = measured.map(|m| m.bytes(shape.heads, shape.tokens));
            (queries + measured.sum::<usize>()) as u64
        };
        let reading = |vault: &Vault| {
            let ids = size_of_val(vault.ids()) as u64;
            Vault::buffer_bytes() + elements(vault.shape()) + ids
        };
        let writing = |shape: &VaultShape| {
            VaultWriter::buffer_bytes() + (shape.queries * self.width * size_of::<f32>()) as u64
        };
        let scores = usize::from(self.has_scores_with(written)) * head_shape(model).kv_heads;
        self.vault.as_ref().map_or(0, reading)
            + written.map_or(0, writing)
            + self.turns.as_ref().map_or(0, TurnRows::buffer_bytes)
            + (self.kind).map_or(0, |kind| {
                backend::of(model).transfer_bytes(kind, plan.chunk)
            })
            + (scores * plan.tokens() * size_of::<f32>()) as u64
    }

    /// The type to which new rows of the tokens from `first` on are rounded, so that the first prefill computes with
    /// the same values as later ones.
    pub(super) fn rounds(&self, first: usize) -> Option<PackedRows> {
        let end = self.turns.as_ref().map_or(self.tokens, TurnRows::end);
        let kind = self.kind.filter(|_| first < end);
        kind.filter(|kind| *kind == PackedRows::F16)
    }

    /// Ends all passes over the prompt: removes the vault that was replaced. Returns a summary for the user, `None`
    /// without vaults; `read` tokens ran through the model.
    pub(super) fn into_use(mut self, read: usize) -> Option<VaultUse> {
        if let Some((folder, key)) = self.replaced.take().filter(|_| self.written) {
            // An open file cannot be removed.
            self.vault = None;
            folder.remove_or_warn(&key);
        }
        Some(VaultUse {
            used: self.known() > 0,
            tokens_from_vault: self.known(),
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
