//! Model files, tokenizers, chat templates and logits, against transformers, llama.cpp and real models.

mod architectures;
mod cache_types;
mod golden_logits;
mod hostile_documents;
mod hostile_models;
mod llama_cpp;
mod prompts;
mod real_models;
mod vocabularies;
mod weight_types;
