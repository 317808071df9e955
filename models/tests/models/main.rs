//! Model files, tokenizers and chat templates; the decoder against itself.

mod architectures;
mod decoder;
mod families;
mod lenient;
mod support;
mod templates;
mod tokenizer;
