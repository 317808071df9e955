//! PDFs.
#![no_main]

use kept_documents::Document;
use kept_fuzz::{check, forgive_libraries};
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: forgive_libraries(), |data: &[u8]| {
    if let Ok(document) = Document::from_bytes("a.pdf", data.to_vec()) {
        check(&document);
    }
});
