//! Tiny random GGUF files for tests (filled in shortly).
