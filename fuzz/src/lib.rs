//! What the targets share.

use std::backtrace::Backtrace;
use std::fs::File;
use std::io::Write;
use std::panic;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::OnceLock;

use kept_documents::Document;
use kept_engine::kernels::Stop;
use kept_engine::{Ask, Engine, EngineError};
use kept_models::Model;
use kept_models::gguf::Header;
use tempfile::TempDir;

/// Parameters of a model that is asked a question; more would take long.
const LARGEST: u64 = 1 << 20;

/// The folder of this process's files. It is in the system's temporary folder, which `scripts/fuzz` makes and removes.
pub fn folder() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    FOLDER
        .get_or_init(|| tempfile::tempdir().expect("a temporary folder"))
        .path()
}

/// Writes a file of that folder: `bytes`, and a hole of `hole` bytes after them.
pub fn file(name: &str, bytes: &[u8], hole: u64) -> PathBuf {
    let path = folder().join(name);
    let mut file = File::create(&path).expect("a file");
    file.write_all(bytes).expect("written");
    file.set_len(bytes.len() as u64 + hole).expect("a hole");
    path
}

/// From now on a panic in a library is what the programs make of it, most often an error; a panic in Kept's own code ends
/// the process wherever it is caught.
pub fn forgive_libraries() {
    // The first document installs a hook of its own, which would hide panics of its threads.
    let _ = Document::from_bytes("a.html", b"<p>a".to_vec());
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        let mut place = panic.location().map_or("", |place| place.file()).to_owned();
        if is_standard(&place) {
            place = caller();
        }
        if !place.contains("/registry/src/") {
            eprintln!("{panic}");
            usual(panic);
            process::abort();
        }
    }));
}

fn is_standard(file: &str) -> bool {
    file.starts_with("/rustc/") || file.contains("/rustlib/src/")
}

/// The file of the function that called the standard library.
fn caller() -> String {
    let trace = Backtrace::force_capture().to_string();
    let files = trace
        .lines()
        .filter_map(|line| line.trim().strip_prefix("at "));
    let mut others = files.filter(|file| !is_standard(file) && !file.contains("/fuzz/src/"));
    others.next().unwrap_or_default().to_owned()
}

/// Checks what everybody relies on in a document: pages that tile the text, passages within it.
pub fn check(document: &Document) {
    let text = &document.text;
    let mut end = 0;
    for page in &document.pages {
        // Between two joined documents is a line that names them.
        let follows = page.range.start == end || !document.parts.is_empty();
        assert!(follows, "pages have no gaps");
        assert!(text.get(page.range.clone()).is_some());
        end = page.range.end;
    }
    assert!(document.pages.is_empty() || !document.parts.is_empty() || end == text.len());
    for heading in kept_documents::outline(text, &document.kind) {
        assert!(
            text.get(heading.start..).is_some(),
            "a heading begins a character"
        );
    }
    for byte in [0, text.len() / 3, text.len() / 2, text.len()] {
        assert!(text.get(document.passage_at(byte)).is_some());
        document.page_of(byte);
        document.page_noun_at(byte);
    }
    let mut last = 0;
    for passage in document.passages(0..text.len().min(5_000)) {
        assert!(last <= passage.start && text.get(passage.clone()).is_some());
        last = passage.end;
    }
}

/// Opens a model as every program does, and asks it a question if it opens.
pub fn open_model(path: &Path) {
    let header = Header::read(path);
    let Ok(model) = Model::open(path).map_err(|error| error.to_string()) else {
        return;
    };
    let header = header.expect("a model that opens has a header");
    assert_eq!(header.tensors, model.gguf().tensors().count());
    for (_, value) in model.gguf().metadata() {
        model.gguf().show(value);
    }
    let _ = (model.step_bytes(), model.layers_bytes(), model.part_bytes());
    let _ = model.tensor_not_finite();
    let own = ["tokenizer.chat_template", "tokenizer.chat_template.default"];
    // Templates have a target of their own, and a process in the programs.
    let has_template = own.iter().any(|key| model.gguf().get(key).is_some());
    if !has_template && model.parameters() <= LARGEST {
        drop(model);
        if let Ok(engine) = Engine::open(path) {
            let _ = ask(&engine).map_err(|error| error.to_string());
        }
    }
}

fn ask(engine: &Engine) -> Result<(), EngineError> {
    let document = Document::empty();
    let method = "snapkv[w=4]".parse().expect("a method");
    let ask = Ask {
        max_tokens: 3,
        ..Ask::new(&document, "Hello", &method)
    };
    engine.ask(&ask, &mut |_| (), &Stop::new()).map(|_| ())
}
