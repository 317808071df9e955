//! Pre-tokenizers (filled in shortly).
