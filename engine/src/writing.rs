//! The loop that writes the answer: draw a token, say its text, run it, until the model ends or a limit is reached.

use kept_kernels::Stop;
use kept_models::{Model, StreamDecoder};

use crate::{Decoder, EngineError, Event, Finish, Sampler, Votes};

/// What was written.
pub(crate) struct Written {
    pub(crate) text: String,
    pub(crate) tokens: usize,
    pub(crate) finish: Finish,
}

/// Everything the loop works with.
pub(crate) struct Writing<'w, 'a> {
    pub(crate) model: &'a Model,
    pub(crate) decoder: &'w mut Decoder<'a>,
    pub(crate) sampler: &'w mut Sampler,
    pub(crate) votes: &'w mut Votes,
    /// Tokens the model's context has room for.
    pub(crate) room: usize,
    /// Longest answer.
    pub(crate) max_tokens: usize,
    pub(crate) stop: &'w Stop,
}

impl Writing<'_, '_> {
    /// Writes the answer that follows `hidden`, the last layer's output for the prompt's last token.
    pub(crate) fn run(
        self,
        hidden: &[f32],
        on_event: &mut dyn FnMut(Event),
    ) -> Result<Written, EngineError> {
        let tokenizer = self.model.tokenizer()?;
        let mut stream = StreamDecoder::new();
        let mut text = String::new();
        let mut tokens = 0;
        let mut token = self.sampler.next(self.decoder.logits_of(hidden))?;
        let finish = loop {
            if tokenizer.is_end(token) {
                break Finish::End;
            }
            if tokens == self.room {
                break match self.room < self.max_tokens {
                    true => Finish::Context,
                    false => Finish::Length,
                };
            }
            tokens += 1;
            let said = text.len();
            stream.push(tokenizer, token, &mut text);
            if text.len() > said {
                let piece = text[said..].to_owned();
                on_event(Event::Token { text: piece });
            }
            if self.stop.is_requested() {
                break Finish::Stopped;
            }
            let logits = self.decoder.step(token, Some(self.votes));
            token = self.sampler.next(logits)?;
        };
        let said = text.len();
        stream.finish(&mut text);
        if text.len() > said {
            let rest = text[said..].to_owned();
            on_event(Event::Token { text: rest });
        }
        Ok(Written {
            text,
            tokens,
            finish,
        })
    }
}
