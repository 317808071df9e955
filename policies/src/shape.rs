//! The indices and dimensions that methods and engine share.
//!
//! Three indices, for a prompt of 8 tokens of which 4 are kept, one generated token later:
//!
//! ```text
//! Pos   (position in the text)     0  1  .  .  .  .  6  7  8      next_pos = 9
//! Row   (slot in the cache)        0  1              2  3  4      rows     = 5
//! rank  (order among kept rows)    0  1              2  3  4      re-assigned position of each row
//! ```

/// Position of a token in the text, from 0 over the whole prompt and answer. Feeds RoPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Pos(pub u32);

/// Slot of a row in one KV head's compact KV cache. Slots have no order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Row(pub u32);

/// The dimensions of a model that a method may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ModelShape {
    /// Transformer layers.
    pub layers: usize,
    /// Query heads per layer.
    pub q_heads: usize,
    /// KV heads per layer.
    pub kv_heads: usize,
    /// Dimension of one head.
    pub head_dim: usize,
}

impl ModelShape {
    /// Query heads per KV head: the GQA group.
    pub fn group(&self) -> usize {
        self.q_heads / self.kv_heads
    }
}

/// The shape of a prompt: its length, the range of the document, the end of the question, and the maximum length of the
/// answer.
///
/// ```text
/// <|im_start|> user DOCUMENT Question: What is the code ? <|im_end|> <|im_start|> assistant
/// before = 2       |        after = 13                                                    |
/// tokens = 16                                           | tail = 3                        |
///                                          window, w = 4 | plus the tail: 7 rows observed  |
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PromptShape {
    /// Tokens of the whole prompt, including template and question.
    pub tokens: usize,
    /// Tokens before the document, from the chat template.
    pub before: usize,
    /// Tokens after the document: the turns of a conversation, the question and the rest of the template. Without a
    /// document turns and question compete in its place, and these are the rest of the template.
    pub after: usize,
    /// Tokens after the question: the end of the template, the same for every question. An observation window of `w`
    /// covers the last `w` tokens of the question and these tokens. 0 without a template; the window is then that of
    /// the papers.
    pub tail: usize,
    /// Last tokens that methods with scores keep whatever the scores: the newest turns of a conversation and the
    /// question. 0: each method keeps what it keeps. Methods that evict during decode may evict them then.
    pub kept_last: usize,
    /// The most tokens of the answer.
    pub max_new_tokens: usize,
}

impl PromptShape {
    /// The most slots that a KV head fills if it holds `rows` rows between two steps: one more for the newest token,
    /// and never more than there are tokens.
    pub fn slots(&self, rows: usize) -> usize {
        let tokens = self.tokens.saturating_add(self.max_new_tokens);
        tokens.min(rows.saturating_add(1))
    }

    /// A prompt of `tokens` tokens without further information: all of it is the document, and the answer has no limit.
    pub fn of(tokens: usize) -> Self {
        Self {
            tokens,
            max_new_tokens: usize::MAX,
            ..Self::default()
        }
    }

    /// Positions of the document's tokens.
    pub fn document(&self) -> std::ops::Range<usize> {
        self.before..self.tokens - self.after
    }
}

/// The positions of the kept rows for RoPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Positions {
    /// Their positions in the text: keys are cached after RoPE.
    #[default]
    Original,
    /// Their ranks among the kept rows, updated after every eviction: keys are cached before RoPE and rotated at use.
    Reassigned,
}

/// The first and last tokens of a prompt, which a method keeps whatever their scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Protected {
    /// Number of first tokens.
    pub sinks: usize,
    /// Number of last tokens.
    pub recent: usize,
}

impl Protected {
    /// Positions of the tokens that compete, in a prompt of `n` tokens.
    pub(crate) fn between(&self, n: usize) -> std::ops::Range<usize> {
        let end = n.saturating_sub(self.recent);
        self.sinks.min(end)..end
    }

    /// Rows of the protected tokens.
    pub(crate) fn rows(&self) -> usize {
        self.sinks.saturating_add(self.recent)
    }
}
