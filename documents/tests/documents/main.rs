//! Files of every kind: their text, pages, headings and passages.

mod hostile;
mod office;
mod outline;
mod passages;
mod pdf;
mod recognise;
mod stored;
mod text;
