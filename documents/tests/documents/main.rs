//! Files of every kind: their text, pages and passages.

mod passages;
mod pdf;
mod text;
