//! Model files, byte by byte. The weights behind what is drawn are zeros: a hole of 4 KiB times the last byte.
#![no_main]

use kept_fuzz::{file, open_model};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let hole = data.last().map_or(0, |last| u64::from(*last) << 12);
    open_model(&file("model.gguf", data, hole));
});
