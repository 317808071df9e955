//! Files of a test on disk: a separate home folder, and documents to open.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A user's folders: settings, data, cache, and files to open. Removed on drop.
#[derive(Debug)]
pub struct Home(tempfile::TempDir);

impl Home {
    /// A home for an app window; `None`, with a line, if none can be opened here.
    ///
    /// # Panics
    /// If the folder cannot be created, or with `CI=true` if a package is missing: CI requires the window tests.
    pub fn new() -> Option<Self> {
        super::can_open().then(Self::unused)
    }

    /// A home without a window.
    pub fn unused() -> Self {
        let home = Self(tempfile::tempdir().expect("a temporary folder"));
        for folder in ["data", "config", "cache", "run", "files"] {
            std::fs::create_dir(home.path().join(folder)).expect("a folder");
        }
        home
    }

    /// The home folder.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file into the home's `files` folder.
    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join("files").join(name);
        std::fs::write(&path, bytes).expect("a document is written");
        path
    }

    /// The app's data folder, with its database and settings.
    pub fn data(&self) -> PathBuf {
        self.path().join("data/app.kept.desktop")
    }

    /// Sets the variables that lead programs to these folders, and removes those that lead to the real ones.
    pub fn apply(&self, command: &mut Command) {
        let folder = |name: &str| self.path().join(name);
        // Variables of models and the hub belong to the real user.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let real = [
                "HF_",
                "HUGGING",
                "TRANSFORMERS",
                "OLLAMA",
                "LLAMA",
                "KEPT_MODELS",
                "KEPT_CONFIG",
            ];
            if real.iter().any(|start| text.starts_with(start))
                || text.to_lowercase().ends_with("_proxy")
            {
                command.env_remove(&name);
            }
        }
        command
            .env("HOME", self.path())
            .env("XDG_DATA_HOME", folder("data"))
            .env("XDG_CONFIG_HOME", folder("config"))
            .env("XDG_CACHE_HOME", folder("cache"))
            .env("XDG_STATE_HOME", folder("data"))
            .env("XDG_RUNTIME_DIR", folder("run"))
            .env_remove("DBUS_SESSION_BUS_ADDRESS");
    }
}

/// About `bytes` bytes of English in paragraphs, without repetition.
pub fn words(bytes: usize) -> String {
    const WHO: [&str; 7] = [
        "The keeper",
        "A clerk",
        "The pilot",
        "Her aunt",
        "The baker",
        "An old sailor",
        "The doctor",
    ];
    const DID: [&str; 6] = [
        "counted the boxes by",
        "wrote a letter about",
        "walked past",
        "waited behind",
        "painted",
        "spoke about",
    ];
    const WHAT: [&str; 5] = [
        "the harbour wall",
        "the north light",
        "a grey house",
        "the market",
        "the long stair",
    ];
    let mut text = String::with_capacity(bytes + 200);
    let mut sentence = 0usize;
    while text.len() < bytes {
        let (who, did, what) = (WHO[sentence % 7], DID[sentence % 6], WHAT[sentence % 5]);
        let day = sentence + 1;
        let _ = write!(text, "{who} {did} {what} on day {day}.");
        sentence += 1;
        text.push_str(if sentence.is_multiple_of(6) {
            "\n\n"
        } else {
            " "
        });
    }
    text
}

/// A PDF with one page per text, line by line, in Helvetica: written byte by byte, independent of the product's reader.
///
/// # Panics
/// If a text is not ASCII: fonts are tested elsewhere.
pub fn pages_pdf(pages: &[String]) -> Vec<u8> {
    // 1 catalogue, 2 page tree, 3 font, then page and content objects alternately.
    let mut objects = vec![
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        format!(
            "<< /Type /Pages /Count {} /Kids [{}] >>",
            pages.len(),
            (0..pages.len())
                .map(|i| format!("{} 0 R ", 4 + 2 * i))
                .collect::<String>()
        ),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>"
            .to_owned(),
    ];
    for (index, page) in pages.iter().enumerate() {
        assert!(page.is_ascii(), "this writer knows ASCII alone");
        let mut content = "BT /F1 10 Tf 12 TL 50 790 Td\n".to_owned();
        for line in page.lines() {
            let line = line
                .replace('\\', "\\\\")
                .replace('(', "\\(")
                .replace(')', "\\)");
            let _ = writeln!(content, "({line}) Tj T*");
        }
        content.push_str("ET");
        objects.push(format!(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F1 3 0 R >> >> /Contents {} 0 R >>",
            5 + 2 * index
        ));
        objects.push(format!(
            "<< /Length {} >>\nstream\n{content}\nendstream",
            content.len()
        ));
    }
    let mut pdf = "%PDF-1.4\n".to_owned();
    let mut places = Vec::new();
    for (index, object) in objects.iter().enumerate() {
        places.push(pdf.len());
        let _ = write!(pdf, "{} 0 obj\n{object}\nendobj\n", index + 1);
    }
    let table = pdf.len();
    let _ = write!(pdf, "xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1);
    for place in places {
        let _ = writeln!(pdf, "{place:010} 00000 n ");
    }
    let size = objects.len() + 1;
    let _ = write!(
        pdf,
        "trailer\n<< /Size {size} /Root 1 0 R >>\nstartxref\n{table}\n%%EOF\n"
    );
    pdf.into_bytes()
}
