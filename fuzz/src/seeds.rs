//! Makes the seeds of model files and documents again, from the tests' tiny models and files:
//! `cargo +nightly fuzz run seeds`

use std::fmt::Write;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use kept_models::gguf::{Gguf, Value};
use kept_models::testing::TinyLlama;
use zip::ZipArchive;

/// The largest seed in bytes.
const LARGEST: usize = 8 << 10;
const ARCHITECTURES: [&str; 11] = [
    "llama", "gemma2", "gemma3", "gemma4", "phi3", "qwen3moe", "qwen35", "gpt-oss", "granite",
    "lfm2moe", "granitehybrid",
];
/// Archives, with the first byte that the target `documents` knows them by.
const ARCHIVES: [(&str, char); 8] = [
    ("contract.docx", 'd'),
    ("contract.odt", 't'),
    ("slides.pptx", 'p'),
    ("slides.odp", 'i'),
    ("book.xlsx", 'x'),
    ("strings.xlsx", 'x'),
    ("book.ods", 's'),
    ("book.epub", 'e'),
];
const TEXTS: [(&str, char); 7] = [
    ("contract.docx", 'z'),
    ("page.html", 'h'),
    ("plain.eml", 'm'),
    ("web.eml", 'm'),
    ("film.srt", 'r'),
    ("film.vtt", 'v'),
    ("utf16le-mark.txt", 'a'),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (seeds, files) = (here.join("seeds"), here.join("../documents/tests/fixtures"));
    for arch in ARCHITECTURES {
        let (head, lines) = model(arch)?;
        fs::write(seeds.join("gguf").join(arch), head)?;
        fs::write(seeds.join("models").join(arch), lines)?;
    }
    for (name, first) in ARCHIVES {
        let mut archive = ZipArchive::new(File::open(files.join(name))?)?;
        let mut out = first.to_string().into_bytes();
        for index in 0..archive.len() {
            let mut part = archive.by_index(index)?;
            let mut content = Vec::new();
            part.read_to_end(&mut content)?;
            let name = part.name()?;
            let is_shown = !name.contains("Layout") && !name.contains("Master");
            if is_shown && out.len() + content.len() <= LARGEST {
                out.extend(format!("=== {name}\n").bytes());
                out.extend(content);
                out.push(b'\n');
            }
        }
        fs::write(seeds.join("documents").join(name), out)?;
    }
    for (name, first) in TEXTS {
        let out = [first.to_string().as_bytes(), &fs::read(files.join(name))?].concat();
        fs::write(seeds.join("documents").join(format!("{name}-{first}")), out)?;
    }
    for file in fs::read_dir(files)? {
        let file = file?;
        let is_pdf = file.path().extension().is_some_and(|e| e == "pdf");
        if is_pdf && file.metadata()?.len() < 3_000 {
            fs::copy(file.path(), seeds.join("pdf").join(file.file_name()))?;
        }
    }
    Ok(())
}

/// A model without its weights, as bytes and as lines.
fn model(arch: &'static str) -> Result<(Vec<u8>, String), Box<dyn std::error::Error>> {
    let tiny = TinyLlama {
        arch,
        // The fewest of which one attends to every position.
        layers: if arch.starts_with("gemma") { 6 } else { 2 },
        width: 32,
        ffn: 32,
        q_heads: 2,
        kv_heads: 1,
        head_dim: 16,
        context: 128,
        kind: "F16",
        tied: true,
        ..TinyLlama::default()
    };
    let mut head = tiny.writer().bytes();
    let gguf = Gguf::open(&kept_fuzz::file("seed.gguf", &head, 0))?;
    let mut lines = format!("V llama {}\n", tiny.vocab());
    let mut metadata: Vec<_> = gguf.metadata().collect();
    metadata.sort_by_key(|(key, _)| *key);
    for (key, value) in metadata {
        let shown = gguf.show(value);
        match value {
            _ if key.starts_with("tokenizer") => {}
            Value::Text(_) => writeln!(lines, "S {key} {}", shown.trim_matches('"'))?,
            Value::Float(_) => writeln!(lines, "F {key} {shown}")?,
            Value::Flag(_) => writeln!(lines, "B {key} {shown}")?,
            Value::Array(_) => {
                let numbers = gguf.wholes(key)?.unwrap_or_default();
                let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
                writeln!(lines, "L {key} {}", numbers.join(" "))?;
            }
            _ => writeln!(lines, "W {key} {shown}")?,
        }
    }
    let mut tensors: Vec<_> = gguf.tensors().collect();
    tensors.sort_by_key(|tensor| tensor.start);
    for tensor in &tensors {
        let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
        let kind = tensor.kind.number();
        writeln!(lines, "T {} {kind} {}", tensor.name, shape.join(" "))?;
    }
    head.truncate(tensors[0].start);
    head.push(255);
    Ok((head, lines))
}
