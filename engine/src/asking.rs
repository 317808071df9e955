//! One question from end to end: prompt, memory plan, prefill, answer.
//!
//! Streaming mode is in `streaming/ask.rs`, the choice of `auto` in `auto/`.

use std::ops::Range;
use std::time::Instant;

use kept_kernels::Stop;
use kept_models::RopeTable;
use kept_policies::{Method, PromptShape};

use crate::answering::{Answering, PrefilledPrompt};
use crate::note::Note;
use crate::plan::{PrefillPlan, PromptPlan, agnostic_note, budget_note};
use crate::prefill::{PlannedPrefill, PrefillTask};
use crate::{
    AUTO, Answer, Ask, Engine, EngineError, Event, MemoryLedger, Plan, PlanRequest, Prompt,
    Sampler, Streaming,
};
use kept_vault::VaultAccess;

/// A question whose plan is made.
pub(crate) struct PlannedQuestion<'a, 'q> {
    /// The question, with the plan's method and budget.
    pub(crate) ask: &'a Ask<'q>,
    pub(crate) prompt: Prompt,
    pub(crate) method: &'a dyn Method,
    /// What the memory limit led to.
    pub(crate) memory_note: Option<&'a Note>,
}

impl Engine {
    /// Turns `NotANumber` into an error that names the tensor with non-finite weights, if one is found.
    fn name_damaged_tensor(&self, error: EngineError) -> EngineError {
        match error {
            EngineError::NotANumber => match self.model().tensor_not_finite() {
                Some(tensor) => EngineError::DamagedTensor { tensor },
                None => error,
            },
            error => error,
        }
    }

    /// Reads the document with the question and answers. `stop` ends prefill with [`EngineError::Stopped`], and decode
    /// with the text so far.
    pub fn ask(
        &self,
        ask: &Ask<'_>,
        watch: &mut dyn FnMut(Event<'_>),
        stop: &Stop,
    ) -> Result<Answer, EngineError> {
        // Without a document and turns there is nothing to store.
        let is_empty = ask.document.text.is_empty() && ask.turns.is_empty();
        let ask = &Ask {
            vault: ask.vault.filter(|_| !is_empty),
            ..*ask
        };
        let (prompt, plan, left_out) = self.plan_conversation(ask, stop)?;
        let reasons = plan.reasons.iter();
        reasons.for_each(|note| watch(Event::Chosen { note }));
        let asked = PlannedQuestion {
            ask: &Ask {
                method: &plan.spec,
                budget: plan.budget,
                vault: ask.vault.filter(|_| plan.uses_vault()),
                ..*ask
            },
            prompt,
            method: &*plan.method,
            memory_note: plan.memory_note.as_ref(),
        };
        let engine = &plan.engine;
        let answer = match plan.reading {
            PromptPlan::Prefill(prefill) => engine.ask_with_prefill(asked, *prefill, watch, stop),
            PromptPlan::Stream(stream) => engine.ask_streaming(asked, &stream, watch, stop),
        };
        let mut answer = answer.map_err(|error| self.name_damaged_tensor(error))?;
        answer.notes.splice(0..0, plan.reasons);
        answer.notes.extend(left_out);
        answer.chosen = plan.chosen;
        Ok(answer)
    }

    /// The prompt of a question with its plan, and a note if the model does not see all turns: the oldest are left out
    /// if they exceed the context length or, under methods that cannot forget them, [`Engine::TURN_SHARE`] of the
    /// budget.
    fn plan_conversation(
        &self,
        ask: &Ask<'_>,
        stop: &Stop,
    ) -> Result<(Prompt, Plan, Option<Note>), EngineError> {
        let mut context = Some(self.model().config().context);
        let mut turns = ask.turns;
        let (mut prompt, plan) = loop {
            let asked = Ask { turns, ..*ask };
            let prompt = self.prompt_of(&asked, stop)?;
            let seen = &turns[prompt.turns_left_out..];
            let fitting = match self.plan_with_turns(&asked, &prompt) {
                Ok((plan, fitting)) if fitting == seen.len() => break (prompt, plan),
                Ok((_, fitting)) => fitting,
                Err(refusal) if !seen.is_empty() && refusal.concerns_length() => seen.len() - 1,
                Err(error) => return Err(error),
            };
            turns = &seen[seen.len() - fitting..];
            context = None;
        };
        prompt.turns_left_out = ask.turns.len() - prompt.turns.len();
        let note = (prompt.turns_left_out > 0).then_some(Note::TurnsLeftOut {
            turns: prompt.turns_left_out,
            context,
        });
        Ok((prompt, plan, note))
    }

    /// The plan of a question, and how many of its turns the model can see. The newest turns are kept whole, as many as
    /// fit into [`Engine::TURN_SHARE`] of the budget; older ones compete with the document, or cannot be seen if the
    /// method keeps everything behind the document.
    ///
    /// Leaving out what does not fit into half of the budget, so that nothing competes, made no difference: of 42 facts
    /// asked after three long answers, Qwen2.5 1.5B had 31 right instead of 30 (SnapKV, 25 %).
    fn plan_with_turns(
        &self,
        ask: &Ask<'_>,
        prompt: &Prompt,
    ) -> Result<(Plan, usize), EngineError> {
        let plan = |kept_last: usize| {
            let shape = PromptShape {
                kept_last,
                ..prompt.shape()
            };
            let request = PlanRequest {
                limits: ask.limits,
                text_bytes: ask.document.text.len() as u64,
                vault: ask.vault.map(|vaults| vaults.kind),
                ..PlanRequest::new(&shape, ask.method, ask.budget, ask.max_tokens)
            };
            match ask.vault {
                Some(vaults) => {
                    let prefix_ids = &prompt.ids[..prompt.document.end];
                    self.plan_with_vault(&request, prefix_ids, vaults)
                }
                None => self.plan(&request),
            }
        };
        let first = plan(0)?;
        let turns = prompt.turns.len();
        let row_plan = match &first.reading {
            PromptPlan::Prefill(plan) if turns > 0 && first.rows() < prompt.len() => &plan.row_plan,
            // There are no turns, or the full cache keeps them all, or streaming mode keeps what its method keeps.
            _ => return Ok((first, turns)),
        };
        let share = (first.rows() as f64 * Self::TURN_SHARE) as usize;
        let length = |turn: &Range<usize>| prompt.len() - turn.start;
        let fitting = prompt.turns.iter().filter(|turn| length(turn) <= share);
        let fitting: Vec<usize> = fitting.map(length).collect();
        // The document would be left with what the turns do not take.
        if !prompt.document.is_empty() && row_plan.protected.recent == prompt.shape().after {
            return Ok((first, fitting.len()));
        }
        match fitting.first() {
            None => Ok((first, turns)),
            Some(&kept_last) => Ok((plan(kept_last)?, turns)),
        }
    }

    /// The prompt of a question, of any length that its method can read.
    fn prompt_of(&self, ask: &Ask<'_>, stop: &Stop) -> Result<Prompt, EngineError> {
        let streaming = ask.limits.streaming;
        let text = ask.text();
        let encode = || Prompt::of(self.model(), &text, stop);
        let encode_long = || Prompt::of_any_length(self.model(), &text, stop);
        if ask.method.name == AUTO {
            return match streaming {
                Streaming::Off => encode(),
                _ => encode_long(),
            };
        }
        let method = ask.method.build()?.name();
        match streaming {
            Streaming::Off => encode(),
            Streaming::Auto if !kept_policies::STREAMING.contains(&method) => {
                encode().map_err(|e| e.under_method(method))
            }
            _ => encode_long(),
        }
    }

    /// Prefills the whole prompt, layer by layer, and answers.
    fn ask_with_prefill(
        &self,
        asked: PlannedQuestion<'_, '_>,
        plan: PrefillPlan,
        watch: &mut dyn FnMut(Event<'_>),
        stop: &Stop,
    ) -> Result<Answer, EngineError> {
        let PlannedQuestion {
            ask,
            prompt,
            method,
            memory_note,
        } = asked;
        let sampler = Sampler::new(ask.sampling)?;
        let (n, max_new_tokens) = (prompt.len(), plan.max_new_tokens());
        let budget = plan.row_plan.budget;
        let notes = self.reading_notes(ask, memory_note, budget, n)?;
        // With the upper bound of the vault's bytes: prefill determines how much of the document is in the vault.
        let vault = (ask.vault).map_or(0, |vaults| self.vault_bytes(n, vaults.kind));
        self.check_memory(&MemoryLedger {
            vault,
            ..self.ledger_of(&plan)?
        })?;
        let rope = RopeTable::new(self.model().config(), n + max_new_tokens);

        let chosen = memory_note.into_iter();
        chosen.for_each(|note| watch(Event::Chosen { note }));
        watch(Event::Prompt(&prompt));
        let started = Instant::now();
        let turns: Vec<usize> = prompt.turns.iter().map(|turn| turn.end).collect();
        let _span =
            tracing::info_span!("reading", tokens = n, method = &ask.method.name, budget).entered();
        let read = self.read_in_sections(ask, &prompt, &rope, &plan, watch, stop)?;
        let planned = PlannedPrefill {
            input: PrefillTask {
                model: self.model(),
                ids: &prompt.ids,
                rope: &rope,
                every_row: false,
            },
            method,
            plan,
            vault: ask.vault.map(|vaults| VaultAccess {
                turns: &turns,
                ..self.vault_access(vaults, &ask.document.name)
            }),
            gpu_memory: ask.limits.memory,
        };
        let outcome = match read {
            Some(read) => read.complete(planned, watch, stop)?,
            None => planned.run(watch, stop)?,
        };
        drop(_span);
        let mut read = PrefilledPrompt::new(prompt, outcome, started.elapsed(), notes);
        if read.vault.used {
            let note = agnostic_note(ask.method);
            read.notes.extend(note.map(Note::from));
        }
        let answering = Answering {
            ask,
            sampler,
            rope: &rope,
            max_new_tokens,
            stop,
        };
        self.write_answer(read, answering, watch)
    }

    /// Notes for the user before a prefill of `tokens` tokens, one sentence each.
    pub(crate) fn reading_notes(
        &self,
        ask: &Ask<'_>,
        memory_note: Option<&Note>,
        rows: usize,
        tokens: usize,
    ) -> Result<Vec<Note>, EngineError> {
        let mut notes: Vec<Note> = self.notes_on(ask.document)?;
        notes.extend(self.gpu_note().map(Note::from));
        notes.extend(memory_note.cloned());
        let of_budget = (ask.budget).and_then(|_| budget_note(ask.method, rows, tokens));
        notes.extend(of_budget.map(Note::from));
        if ask.sampling.is_greedy() && ask.sampling.limits() {
            notes.push("top-k, top-p and min-p do nothing at temperature 0".into());
        }
        let template = self.model().chat_template()?;
        notes.extend(template.note().map(Note::from));
        if ask.thinking && !template.can_think() {
            notes.push("the model's chat template has no switch for thinking".into());
        }
        Ok(notes)
    }
}
