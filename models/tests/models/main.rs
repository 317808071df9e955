//! Model files, tokenizers, chat templates, and consistency of the decoder.

mod activations;
mod architectures;
mod decoder;
mod expert_groups;
mod families;
mod hunyuan;
mod latent;
mod lenient;
mod ollama;
mod support;
mod templates;
mod tokenizer;
