//! The decode loop: sample a token, emit its text, decode it, until the model ends the answer, repeats itself or
//! reaches a limit.

use std::time::{Duration, Instant};

use kept_kernels::Stop;
use kept_models::{Model, StreamDecoder};

use crate::plan::full_cache_bytes;
use crate::progress_meter::ProgressMeter;
use crate::repetition::Repetition;
use crate::{Decoder, EngineError, Event, Finish, MemoryNow, Phase, Sampler, Votes};

/// Interval of layer reports to [`Event::Layer`], for methods that evict during decode.
const BETWEEN_LAYERS: Duration = Duration::from_secs(1);

/// The decoded answer.
pub(crate) struct DecodedAnswer {
    pub(crate) text: String,
    pub(crate) tokens: usize,
    pub(crate) finish: Finish,
}

/// The inputs of the decode loop.
pub(crate) struct DecodeLoop<'w, 'a> {
    pub(crate) model: &'a Model,
    pub(crate) decoder: &'w mut Decoder<'a>,
    pub(crate) sampler: &'w mut Sampler,
    pub(crate) votes: &'w mut Votes,
    /// Longest answer within the context length, in tokens.
    pub(crate) max_new_tokens: usize,
    /// Longest answer that was requested, in tokens.
    pub(crate) max_tokens: usize,
    pub(crate) stop: &'w Stop,
    /// Tokens of the prompt.
    pub(crate) prompt_tokens: usize,
    /// Memory in use other than rows: weights; in `tables` the method's data; in `scratch` RoPE tables and the loop's
    /// buffers.
    pub(crate) base_memory: MemoryNow,
}

impl DecodeLoop<'_, '_> {
    /// Decodes the answer that follows `hidden`, the last layer's output for the prompt's last token.
    pub(crate) fn run(
        self,
        hidden: &[f32],
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<DecodedAnswer, EngineError> {
        let tokenizer = self.model.tokenizer()?;
        let mut meter =
            ProgressMeter::new(Phase::Answering, self.max_new_tokens, self.max_new_tokens);
        let mut shown = Instant::now();
        let mut stream = StreamDecoder::of_answer(tokenizer);
        let mut text = String::new();
        let mut tokens = 0;
        let mut repetition = Repetition::default();
        self.sampler.reserve(self.max_new_tokens);
        let mut token = self.sampler.next(self.decoder.logits_of(hidden)?)?;
        if self.max_new_tokens > 0 {
            let attended = self.votes.end_step(0, token);
            watch(Event::Attended(&attended));
        }
        let finish = loop {
            if tokenizer.is_end(token) {
                break Finish::End;
            }
            if tokens == self.max_new_tokens {
                break if self.max_new_tokens < self.max_tokens {
                    Finish::Context
                } else {
                    Finish::Length
                };
            }
            tokens += 1;
            let said = text.len();
            stream.push(tokenizer, token, &mut text);
            if text.len() > said {
                watch(Event::Token {
                    text: &text[said..],
                });
            }
            if let Some(progress) = meter.progress_if_due(tokens) {
                watch(Event::Progress(progress, self.memory(tokens)));
            }
            if self.decoder.evicts() && shown.elapsed() >= BETWEEN_LAYERS {
                self.report_layers(watch);
                shown = Instant::now();
            }
            if self.stop.is_requested() {
                break Finish::Stopped;
            }
            if repetition.push(token) {
                break Finish::Repetition;
            }
            token = (self.decoder).next(token, self.sampler, Some(self.votes))?;
            let attended = self.votes.end_step(text.len(), token);
            watch(Event::Attended(&attended));
        };
        let said = text.len();
        stream.finish(&mut text);
        if text.len() > said {
            watch(Event::Token {
                text: &text[said..],
            });
        }
        watch(Event::Progress(meter.progress(tokens), self.memory(tokens)));
        if self.decoder.evicts() {
            self.report_layers(watch);
        }
        Ok(DecodedAnswer {
            text,
            tokens,
            finish,
        })
    }

    fn report_layers(&self, watch: &mut dyn FnMut(Event<'_>)) {
        for (layer, kept) in self.decoder.cache().compressed_layers().enumerate() {
            watch(Event::Layer { layer, kept });
        }
    }

    fn memory(&self, tokens: usize) -> MemoryNow {
        let cache = self.decoder.cache();
        let kept = cache.kv_bytes();
        MemoryNow {
            kept,
            tables: cache.table_bytes() + self.base_memory.tables,
            kept_full: full_cache_bytes(
                self.model.config(),
                self.prompt_tokens + tokens,
                cache.kind,
            ),
            scratch: self.base_memory.scratch + cache.allocated_bytes() - kept,
            ..self.base_memory
        }
    }
}
