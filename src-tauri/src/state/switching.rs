//! From one conversation to another. What runs or waits in the one that is left goes on, and the page says how far it is:
//! it stays in memory until it is opened again.

use std::sync::Arc;

use kept_worker::protocol::Request;

use super::AppState;
use super::conversation::Loaded;
use super::document::OpenDocument;
use super::effect::Save;
use super::parts::{Compared, Left, OpenConversation};
use crate::contract::{AppEvent, ComparisonState, Elsewhere, ElsewhereState, Turn, TurnState};

impl AppState {
    /// Chooses the conversation `id`, which [`AppState::conversation_loaded`] opens. It takes the place of one that is
    /// still being loaded, and of a file that is being opened.
    ///
    /// # Errors
    /// One sentence, if there is none.
    pub fn choose_conversation(&mut self, id: u64) -> Result<(), String> {
        self.conversation_mut(id)?;
        self.stop_opening();
        self.conversations.chosen = Some(id);
        Ok(())
    }

    /// Opens a conversation, if it is still the chosen one. Returns whether it is.
    ///
    /// # Errors
    /// As [`AppState::choose_conversation`].
    pub fn conversation_loaded(&mut self, loaded: Loaded) -> Result<bool, String> {
        if self.conversations.chosen != Some(loaded.conversation) {
            return Ok(false);
        }
        self.show_conversation(loaded)?;
        Ok(true)
    }

    /// Opens a conversation in place of the open one. One that was left goes on.
    ///
    /// # Errors
    /// As [`AppState::choose_conversation`].
    pub(super) fn show_conversation(&mut self, loaded: Loaded) -> Result<(), String> {
        let Loaded {
            conversation,
            document,
            comparison,
            turns,
        } = loaded;
        self.conversation_mut(conversation)?;
        self.stop_opening();
        if self.open.conversation == Some(conversation) {
            return Ok(());
        }
        self.interrupted.retain(|other| *other != conversation);
        let (left, compared) = match self.take_left(conversation) {
            Some(left) if left.without_turns => (None, left.compared),
            Some(left) => (Some(left.conversation), left.compared),
            None => (None, None),
        };
        let known = left.as_ref().and_then(|left| left.document.clone());
        let mut document = known.unwrap_or(document);
        let id = document.facts.id;
        let is_other = !self.open.is_about(id);
        if let Some(newest) = self.open.document.clone().filter(|_| !is_other) {
            document = newest;
        }
        self.leave_conversation(Some(document.clone()));
        match left {
            Some(left) => {
                self.set_thinking(left.thinking);
                self.open = left;
                self.open.document = Some(document);
            }
            None => {
                self.set_thinking(turns.last().is_some_and(|turn| turn.thinking));
                self.open.conversation = Some(conversation);
                // One that was stopped since it was loaded.
                self.open.turns = turns.into_iter().map(Turn::stopped_if_open).collect();
            }
        }
        if is_other {
            match compared.or_else(|| self.take_compared(id)) {
                Some(compared) => self.set_comparison(compared),
                None => self.load_comparison(comparison),
            }
            self.send_document();
        }
        self.save_open();
        self.emit_document();
        self.emit_conversations();
        self.emit_elsewhere();
        self.emit_running();
        if let Some(last) = self.open.turns.last().filter(|turn| !turn.has_lift) {
            self.want_neutral(last.id);
        }
        Ok(())
    }

    /// Sends how far the question of the conversation that was just opened is.
    fn emit_running(&mut self) {
        if self.running_here().is_some() {
            self.emit_progress();
            self.emit_map();
        }
    }

    /// Leaves the open conversation, which remains in the list, for a new one about `document`.
    pub(super) fn leave_conversation(&mut self, document: Option<Arc<OpenDocument>>) {
        self.flush_text();
        self.conversations.chosen = None;
        self.forget_pending();
        self.forget_neutral();
        self.forget_levels();
        let next = document.as_ref().map(|document| document.facts.id);
        let is_other = next
            != self
                .open
                .document
                .as_ref()
                .map(|document| document.facts.id);
        let compared = is_other.then(|| std::mem::take(&mut self.compared));
        // One that has not begun is given up.
        let begun = |compared: &Compared| compared.ticket().is_some() && compared.held.is_none();
        let compared = compared.filter(begun);
        let opened = OpenConversation {
            document,
            ..OpenConversation::default()
        };
        let conversation = std::mem::replace(&mut self.open, opened);
        let of = conversation.document.clone();
        let id = conversation.conversation;
        let (own, others) = match compared {
            Some(compared) if compared.conversation == id => (Some(compared), None),
            compared => (None, compared),
        };
        if self.works_in(&conversation) || own.is_some() {
            self.left.push(Left {
                conversation,
                compared: own,
                stopped: false,
                without_turns: false,
            });
        }
        if let Some(compared) = others {
            self.leave_comparison(compared, of);
        }
        self.set_thinking(false);
        self.forget_maps();
        self.emit_elsewhere();
        if is_other {
            self.reset_reading();
            self.title();
            self.clear_left_documents();
        }
    }

    /// Leaves a comparison of `document` that was begun in a conversation which is not open; without that, it ends.
    fn leave_comparison(&mut self, compared: Compared, document: Option<Arc<OpenDocument>>) {
        let id = compared.conversation;
        let is_it = |left: &&mut Left| left.conversation.conversation == id;
        if let Some(left) = self.left.iter_mut().find(is_it) {
            left.compared = Some(compared);
        } else if self
            .conversations
            .all
            .iter()
            .any(|known| Some(known.id) == id)
        {
            self.left.push(Left {
                conversation: OpenConversation {
                    document,
                    conversation: id,
                    ..OpenConversation::default()
                },
                compared: Some(compared),
                stopped: false,
                without_turns: true,
            });
        } else if let Some(ticket) = compared.ticket() {
            self.send(Request::Stop { ticket }, None);
        }
    }

    /// Takes the conversation `id` out of those that were left.
    pub(super) fn take_left(&mut self, id: u64) -> Option<Left> {
        let is_it = |left: &Left| left.conversation.conversation == Some(id);
        let at = self.left.iter().position(is_it)?;
        Some(self.left.remove(at))
    }

    /// Takes the comparison of `document` out of a conversation that was left.
    pub(super) fn take_compared(&mut self, document: u64) -> Option<Compared> {
        let is_of = |left: &Left| left.compared.is_some() && left.conversation.is_about(document);
        let at = self.left.iter().position(is_of)?;
        // Nothing may be left to say of it.
        let works = self.works_in(&self.left[at].conversation);
        self.left[at].stopped |= !works;
        self.left[at].compared.take()
    }

    /// Stops what runs in the conversation `id`, which was left, or forgets that it has ended.
    pub fn stop_elsewhere(&mut self, id: u64) {
        self.interrupted.retain(|other| *other != id);
        self.flush_text();
        let is_it = |left: &Left| left.conversation.conversation == Some(id);
        let Some(at) = self.left.iter().position(is_it) else {
            return self.emit_elsewhere();
        };
        let left = &mut self.left[at];
        let waiting = std::mem::take(&mut left.conversation.queue);
        let compared = left.compared.as_ref().and_then(Compared::ticket);
        let running = self.running.as_ref();
        let asked = running.filter(|r| r.turn.is_some_and(|turn| left.conversation.holds(turn)));
        if let Some(ticket) = compared.or(asked.map(|running| running.ticket)) {
            self.send(Request::Stop { ticket }, None);
        }
        for queued in waiting {
            self.end_turn(queued.turn, TurnState::Stopped, |_| {});
        }
        // It leaves memory when nothing works in it any more: its turns have to be stored before.
        self.left[at].stopped = true;
        self.emit_elsewhere();
    }

    /// Ends what runs in a conversation that was deleted after it was left.
    pub(super) fn end_left(&mut self, left: Left) {
        if let Some(ticket) = left.compared.as_ref().and_then(Compared::ticket) {
            self.send(Request::Stop { ticket }, None);
        }
        self.end_questions(left.conversation);
        self.emit_elsewhere();
    }

    /// Ends the questions of a conversation that is no longer in memory.
    pub(super) fn end_questions(&mut self, ended: OpenConversation) {
        if let Some(running) = &mut self.running
            && let Some(turn) = running.turn
            && ended.holds(turn)
        {
            running.turn = None;
            let ticket = running.ticket;
            self.forget_map(turn);
            self.send(Request::Stop { ticket }, None);
        }
        let Some(conversation) = ended.conversation else {
            return;
        };
        for turn in ended.turns.into_iter().filter(|turn| turn.state.is_open()) {
            let turn = Box::new(turn.stopped_if_open());
            self.save(Save::Turn { conversation, turn });
        }
    }

    /// Whether a question of `conversation` runs or waits.
    pub(super) fn works_in(&self, conversation: &OpenConversation) -> bool {
        let running = self.running.as_ref().and_then(|running| running.turn);
        !conversation.queue.is_empty() || running.is_some_and(|turn| conversation.holds(turn))
    }

    /// Whether a question of the open conversation runs or waits, or its document is compared.
    pub(super) fn open_works(&self) -> bool {
        self.works_in(&self.open) || self.compared.ticket().is_some()
    }

    /// The open conversation, then those that were left.
    pub(super) fn in_memory(&self) -> impl Iterator<Item = &OpenConversation> {
        let left = self.left.iter().map(|left| &left.conversation);
        std::iter::once(&self.open).chain(left)
    }

    pub(super) fn in_memory_mut(&mut self) -> impl Iterator<Item = &mut OpenConversation> {
        let left = self.left.iter_mut().map(|left| &mut left.conversation);
        std::iter::once(&mut self.open).chain(left)
    }

    /// The conversation of a turn that runs or waits, or of the open one.
    pub(super) fn conversation_of(&self, turn: u64) -> Option<&OpenConversation> {
        self.in_memory().find(|known| known.holds(turn))
    }

    /// The comparison of the open document, then those of documents that were left.
    pub(super) fn comparisons(&self) -> impl Iterator<Item = &Compared> {
        let left = self.left.iter().filter_map(|left| left.compared.as_ref());
        std::iter::once(&self.compared).chain(left)
    }

    pub(super) fn comparisons_mut(&mut self) -> impl Iterator<Item = &mut Compared> {
        let left = self.left.iter_mut();
        std::iter::once(&mut self.compared).chain(left.filter_map(|left| left.compared.as_mut()))
    }

    pub(super) fn emit_elsewhere(&mut self) {
        let mut left = std::mem::take(&mut self.left);
        left.retain(|left| {
            let compared = left.compared.as_ref().and_then(Compared::ticket);
            !left.stopped || compared.is_some() || self.works_in(&left.conversation)
        });
        self.left = left;
        let elsewhere = self.elsewhere();
        self.emit(AppEvent::Elsewhere { elsewhere });
    }

    /// What goes on in conversations that are not open, or has ended there.
    pub(super) fn elsewhere(&self) -> Vec<Elsewhere> {
        let known = |id: &u64| self.conversations.all.iter().find(|known| known.id == *id);
        let interrupted = self.interrupted.iter().filter_map(known);
        let interrupted = interrupted.map(|known| Elsewhere {
            conversation: known.id,
            document: known.document.clone(),
            question: known.title.clone(),
            state: ElsewhereState::Interrupted,
            waiting: 0,
            runs: None,
            progress: None,
        });
        let left = self.left.iter().filter(|left| !left.stopped);
        let left = left.filter_map(|left| self.seen(left));
        interrupted.chain(left).collect()
    }

    fn seen(&self, left: &Left) -> Option<Elsewhere> {
        let OpenConversation {
            document,
            conversation,
            turns,
            queue,
            ..
        } = &left.conversation;
        let turn = |id: u64| turns.iter().find(|turn| turn.id == id);
        let running = self.running.as_ref();
        let asked = running.and_then(|running| turn(running.turn?));
        let waits = queue.front().and_then(|queued| turn(queued.turn));
        let compared = left.compared.as_ref().and_then(|c| c.comparison.as_ref());
        let compares = compared.filter(|c| c.state == ComparisonState::Running);
        let last = turns.last();
        let failed = match compared {
            Some(compared) => compared.state == ComparisonState::Failed,
            None => last.is_some_and(|turn| turn.state == TurnState::Failed),
        };
        let progress = running.and_then(|running| running.progress);
        let (state, progress) = match (compares, asked, waits) {
            (Some(compared), ..) => (ElsewhereState::Comparing, compared.progress),
            (_, Some(_), _) => (ElsewhereState::Answering, progress.map(|(now, _)| now)),
            (_, _, Some(_)) => (ElsewhereState::Waiting, None),
            _ if failed => (ElsewhereState::Failed, None),
            _ => (ElsewhereState::Done, None),
        };
        let question = compared.map(|compared| &compared.question);
        let shown = asked.or(waits).or(last).map(|turn| &turn.question);
        Some(Elsewhere {
            conversation: (*conversation)?,
            document: document.as_ref()?.info.name.clone(),
            question: question.or(shown)?.clone(),
            state,
            waiting: queue.len() - usize::from(state == ElsewhereState::Waiting),
            runs: compared.map(|compared| {
                let done = compared.runs.iter().filter(|run| run.result.is_some());
                [done.count(), compared.runs.len()]
            }),
            progress,
        })
    }
}
