//! The format of a file: from its first bytes, then from its extension.
//!
//! The bytes come first because extensions can be wrong. `text` finds out while decoding whether a text file really
//! contains text.

use std::path::Path;

use crate::{DocumentError, Kind};

const SAVE_AS: &str = "save it as PDF or plain text and open that";
const UNPACK: &str = "unpack it and open one file inside";
/// The tags, scripts and styles of a web page are several times longer than its text and would fill the context length.
const PRINT_PAGE: &str =
    "print it to PDF from a browser and open that, or name it .txt to read its tags as text";

/// Binary formats by their first bytes. The list has only signatures that a text file cannot plausibly begin with: "BM"
/// is a bitmap, but also the start of a sentence about a car. `text` detects other binary files by their control
/// characters.
const MAGIC: &[(&[u8], &str)] = &[
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF87a", "a GIF image"),
    (b"GIF89a", "a GIF image"),
    (b"II*\0", "a TIFF image"),
    (b"MM\0*", "a TIFF image"),
    (b"\x7fELF", "a program (ELF)"),
    (b"MZ\x90\0", "a Windows program"),
    (b"\xcf\xfa\xed\xfe", "a macOS program"),
    (b"\xca\xfe\xba\xbe", "a compiled program"),
    (b"\0asm", "a WebAssembly program"),
    (b"GGUF", "a GGUF model (give it as the model instead)"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"OggS\0", "an Ogg recording"),
    (b"ID3\x02", "an MP3 recording"),
    (b"ID3\x03", "an MP3 recording"),
    (b"ID3\x04", "an MP3 recording"),
    (b"fLaC\0", "a FLAC recording"),
    (b"\x1a\x45\xdf\xa3", "a Matroska video"),
    (b"wOFF\0", "a font"),
    (b"OTTO\0", "a font"),
    (b"\0\x01\0\0\0", "a font"),
];

/// Documents and archives by their first bytes, each with a way to convert them.
const NOT_YET: &[(&[u8], &str, &str)] = &[
    (b"{\\rtf", "a rich text (RTF) document", SAVE_AS),
    (
        b"%!PS",
        "a PostScript document",
        "turn it into PDF with `ps2pdf` and open that",
    ),
    (
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        "an old Office document",
        SAVE_AS,
    ),
    (
        b"AT&TFORM",
        "a DjVu document",
        "turn it into PDF with `ddjvu -format=pdf` and open that",
    ),
    (b"\x1f\x8b\x08", "a gzip archive", UNPACK),
    (b"BZh91AY&SY", "a bzip2 archive", UNPACK),
    (b"\xfd7zXZ\0", "an xz archive", UNPACK),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive", UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", UNPACK),
    (b"Rar!\x1a\x07", "a RAR archive", UNPACK),
];

/// The kind of a file.
///
/// # Errors
/// A [`DocumentError`] if the format is binary, unsupported or a broken PDF.
pub(crate) fn kind(name: &str, bytes: &[u8]) -> Result<Kind, DocumentError> {
    let unsupported = |format, remedy| {
        Err(DocumentError::Unsupported {
            name: name.to_owned(),
            format,
            remedy,
        })
    };
    let extension = Path::new(name)
        .extension()
        .map_or_else(String::new, |e| e.to_string_lossy().to_ascii_lowercase());

    if is_pdf(bytes, &extension) {
        return Ok(Kind::Pdf);
    }
    if let Some((_, looks_like)) = MAGIC.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return Err(DocumentError::Binary {
            name: name.to_owned(),
            looks_like,
        });
    }
    if bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"PK\x05\x06") {
        let (format, remedy) = zipped(bytes, &extension);
        return unsupported(format, remedy);
    }
    if let Some((_, format, remedy)) = NOT_YET
        .iter()
        .find(|(magic, _, _)| bytes.starts_with(magic))
    {
        return unsupported(format, remedy);
    }
    if bytes.get(60..68) == Some(b"BOOKMOBI") {
        return unsupported("a Kindle (MOBI) book", SAVE_AS);
    }
    let is_html = matches!(extension.as_str(), "html" | "htm" | "xhtml");
    // A ".pdf" file that is a web page is usually a failed download.
    if is_html || (matches!(extension.as_str(), "" | "pdf") && opens_like_html(bytes)) {
        return unsupported("a web page", PRINT_PAGE);
    }
    if extension == "pdf" && !bytes.trim_ascii().is_empty() {
        return Err(DocumentError::PdfBroken {
            name: name.to_owned(),
            reason: "it does not begin with %PDF".to_owned(),
        });
    }
    Ok(by_extension(name, &extension))
}

/// A PDF begins with `%PDF-`. The format allows up to 1024 other bytes before it, but those are accepted only with the
/// extension "pdf", because a text can mention `%PDF-` too.
fn is_pdf(bytes: &[u8], extension: &str) -> bool {
    let head = &bytes[..bytes.len().min(1024)];
    head.trim_ascii_start().starts_with(b"%PDF-")
        || (extension == "pdf" && head.windows(5).any(|w| w == b"%PDF-"))
}

/// Office documents and books are ZIP archives; their first entries identify the format.
fn zipped(bytes: &[u8], extension: &str) -> (&'static str, &'static str) {
    let head = &bytes[..bytes.len().min(4096)];
    let has = |needle: &[u8]| head.windows(needle.len()).any(|w| w == needle);
    match extension {
        "docx" | "docm" => ("a Word document", SAVE_AS),
        "xlsx" | "xlsm" => ("an Excel workbook", "save each sheet as CSV and open that"),
        "pptx" => ("a PowerPoint presentation", SAVE_AS),
        "odt" => ("an OpenDocument text", SAVE_AS),
        "epub" => ("an EPUB book", SAVE_AS),
        _ if has(b"application/epub+zip") => ("an EPUB book", SAVE_AS),
        _ if has(b"application/vnd.oasis.opendocument") => ("an OpenDocument file", SAVE_AS),
        _ if has(b"word/") => ("a Word document", SAVE_AS),
        _ if has(b"[Content_Types].xml") => ("an Office document", SAVE_AS),
        _ => ("a ZIP archive", UNPACK),
    }
}

fn opens_like_html(bytes: &[u8]) -> bool {
    let head = bytes[..bytes.len().min(64)]
        .trim_ascii_start()
        .to_ascii_lowercase();
    head.starts_with(b"<!doctype html") || head.starts_with(b"<html")
}

/// Text is prose unless its extension means otherwise; a wrong guess changes only how passages are cut.
fn by_extension(name: &str, extension: &str) -> Kind {
    let language = match extension {
        "md" | "markdown" | "mdown" | "mkd" | "mdx" => return Kind::Markdown,
        "rs" => "Rust",
        "py" | "pyi" | "pyw" => "Python",
        "js" | "mjs" | "cjs" | "jsx" => "JavaScript",
        "ts" | "mts" | "cts" | "tsx" => "TypeScript",
        "svelte" => "Svelte",
        "vue" => "Vue",
        "c" | "h" => "C",
        "cc" | "cpp" | "cxx" | "hh" | "hpp" | "hxx" | "inl" => "C++",
        "cu" | "cuh" => "CUDA",
        "cs" => "C#",
        "fs" | "fsx" => "F#",
        "java" => "Java",
        "kt" | "kts" => "Kotlin",
        "scala" | "sc" => "Scala",
        "go" => "Go",
        "swift" => "Swift",
        "m" | "mm" => "Objective-C",
        "rb" => "Ruby",
        "php" => "PHP",
        "pl" | "pm" => "Perl",
        "lua" => "Lua",
        "r" => "R",
        "jl" => "Julia",
        "hs" => "Haskell",
        "ml" | "mli" => "OCaml",
        "ex" | "exs" => "Elixir",
        "erl" | "hrl" => "Erlang",
        "clj" | "cljs" => "Clojure",
        "lisp" | "el" | "scm" => "Lisp",
        "zig" => "Zig",
        "dart" => "Dart",
        "f90" | "f95" | "f" | "for" => "Fortran",
        "asm" | "s" => "Assembly",
        "sh" | "bash" | "zsh" | "fish" => "Shell",
        "ps1" => "PowerShell",
        "bat" | "cmd" => "Batch",
        "sql" => "SQL",
        "css" | "scss" | "less" => "CSS",
        "xml" | "svg" | "xsd" | "xsl" => "XML",
        "json" | "jsonl" | "ndjson" => "JSON",
        "yaml" | "yml" => "YAML",
        "toml" => "TOML",
        "ini" | "cfg" | "conf" | "properties" => "configuration",
        "csv" => "CSV",
        "tsv" => "TSV",
        "log" => "log",
        "diff" | "patch" => "diff",
        "proto" => "Protocol Buffers",
        "srt" | "vtt" => "subtitles",
        "cmake" => "CMake",
        "nix" => "Nix",
        "tf" => "Terraform",
        _ => match Path::new(name).file_name().and_then(|n| n.to_str()) {
            Some("Makefile" | "makefile" | "GNUmakefile") => "Makefile",
            Some("Dockerfile" | "Containerfile") => "Dockerfile",
            Some("CMakeLists.txt") => "CMake",
            _ => return Kind::PlainText,
        },
    };
    Kind::SourceCode { language }
}
