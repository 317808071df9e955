//! The format of a file: from its first bytes, then from its extension.
//!
//! The bytes come first because extensions can be wrong. `text` finds out while decoding whether a text file really
//! contains text.

use std::path::Path;

use crate::extract::{self, Content};
use crate::found::Source;
use crate::{Format, Kind, Why};

const SAVE_AS: &str = "save it as PDF or plain text and open that";
const UNPACK: &str = "unpack it and open one file inside";
const FETCH_AGAIN: &str =
    "it is probably a failed download, so fetch the PDF again, or name it .html to read the page";
/// The first bytes of a compound file, the container of old Office documents.
const COMPOUND: &[u8] = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1";

/// Binary formats by their first bytes. The list has only signatures that a text file cannot plausibly begin with: "BM"
/// is a bitmap, but also the start of a sentence about a car. `text` detects other binary files by their control
/// characters.
const MAGIC: &[(&[u8], &str)] = &[
    (b"GIF87a", "a GIF image"),
    (b"GIF89a", "a GIF image"),
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

/// Images whose text can be recognised, by their first bytes.
const IMAGES: &[(&[u8], &str)] = &[
    (b"\x89PNG\r\n\x1a\n", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"II*\0", "a TIFF image"),
    (b"MM\0*", "a TIFF image"),
];

/// Documents and archives by their first bytes, each with a way to convert them.
const UNSUPPORTED_FORMATS: &[(&[u8], &str, &str)] = &[
    (b"{\\rtf", "a rich text (RTF) document", SAVE_AS),
    (
        b"%!PS",
        "a PostScript document",
        "turn it into PDF with `ps2pdf` and open that",
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

/// How a file is read.
pub(crate) enum Sniffed {
    /// As it is.
    Text(Kind),
    /// By a parser.
    Parsed(Source),
}

/// How a file is read.
///
/// # Errors
/// [`Why`], if the format is binary, unsupported or a broken PDF.
pub(crate) fn sniff(name: &str, bytes: &[u8]) -> Result<Sniffed, Why> {
    let extension = extension(name);

    if is_pdf(bytes, &extension) {
        return Ok(Sniffed::Parsed(Source::Pdf));
    }
    if let Some((_, format)) = IMAGES.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return Err(Why::Image {
            format: (*format).into(),
        });
    }
    if let Some((_, binary)) = MAGIC.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return Err(Why::Binary {
            looks_like: (*binary).into(),
        });
    }
    if bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"PK\x05\x06") {
        return Ok(Sniffed::Parsed(Source::Archive));
    }
    if bytes.starts_with(COMPOUND) {
        return Err(compound(bytes));
    }
    if let Some((_, format, remedy)) = UNSUPPORTED_FORMATS
        .iter()
        .find(|(magic, _, _)| bytes.starts_with(magic))
    {
        return Err(unsupported(format, remedy));
    }
    if bytes.get(60..68) == Some(b"BOOKMOBI") {
        return Err(unsupported("a Kindle (MOBI) book", SAVE_AS));
    }
    if extension == "pdf" && opens_like_html(bytes) {
        return Err(unsupported("a web page", FETCH_AGAIN));
    }
    if let Some(format) = in_text(bytes, &extension) {
        return Ok(Sniffed::Parsed(Source::Markup(format)));
    }
    if extension == "pdf" && !bytes.trim_ascii().is_empty() {
        return Err(Why::PdfBroken {
            reason: "it does not begin with %PDF".into(),
        });
    }
    Ok(Sniffed::Text(by_extension(name, &extension)))
}

/// A PDF begins with `%PDF-`. The format allows up to 1024 other bytes before it, but those are accepted only with the
/// extension "pdf", because a text can mention `%PDF-` too.
fn is_pdf(bytes: &[u8], extension: &str) -> bool {
    let head = &bytes[..bytes.len().min(1024)];
    head.trim_ascii_start().starts_with(b"%PDF-")
        || (extension == "pdf" && head.windows(5).any(|w| w == b"%PDF-"))
}

fn extension(name: &str) -> String {
    let extension = Path::new(name).extension();
    extension.map_or_else(String::new, |e| e.to_string_lossy().to_ascii_lowercase())
}

/// The format of an archive: office documents and books are ZIP archives. Their parts identify it; if they are damaged,
/// the extension.
///
/// # Errors
/// [`Why`], if it is no document that can be read.
pub(crate) fn archive(name: &str, bytes: &[u8]) -> Result<Format, Why> {
    let (format, remedy) = match extract::content(bytes) {
        Ok(Content::Document(format)) => return Ok(format),
        Ok(Content::Other(format, remedy)) => (format, remedy),
        Ok(Content::Files) => ("a ZIP archive", UNPACK),
        Err(failure) => match named(&extension(name)) {
            Some(format) => return Err(failure.of(format)),
            None => ("a ZIP archive", UNPACK),
        },
    };
    Err(unsupported(format, remedy))
}

fn unsupported(format: &'static str, remedy: &'static str) -> Why {
    Why::Unsupported {
        format: format.into(),
        remedy: remedy.into(),
    }
}

/// The format of an archive by its extension.
fn named(extension: &str) -> Option<Format> {
    Some(match extension {
        "docx" | "docm" | "dotx" | "dotm" => Format::Docx,
        "pptx" | "pptm" | "ppsx" | "ppsm" | "potx" => Format::Pptx,
        "xlsx" | "xlsm" | "xltx" | "xltm" => Format::Xlsx,
        "odt" | "ott" => Format::Odt,
        "odp" | "otp" => Format::Odp,
        "ods" | "ots" => Format::Ods,
        "epub" => Format::Epub,
        _ => return None,
    })
}

/// Compound files: old Office documents, and new ones with a password. The names of their streams tell which.
fn compound(bytes: &[u8]) -> Why {
    let has = |stream: &str| {
        let stream: Vec<u8> = stream.encode_utf16().flat_map(u16::to_le_bytes).collect();
        // Each stream has an entry of 128 bytes that begins with its name.
        let mut entries = bytes.chunks(128);
        entries.any(|entry| entry.starts_with(&stream))
    };
    if has("EncryptedPackage") {
        return Why::Locked;
    }
    let (format, remedy) = if has("WordDocument") {
        (
            "an old Word document (DOC)",
            "save it as DOCX and open that",
        )
    } else if has("Workbook") || has("Book") {
        (
            "an old Excel workbook (XLS)",
            "save it as XLSX and open that",
        )
    } else if has("PowerPoint Document") {
        (
            "an old PowerPoint presentation (PPT)",
            "save it as PPTX and open that",
        )
    } else if has("__properties_version1.0") {
        (
            "an Outlook message (MSG)",
            "save it as EML or text and open that",
        )
    } else {
        (
            "an old Office document",
            "save it as DOCX, XLSX or PPTX and open that",
        )
    };
    unsupported(format, remedy)
}

/// Whether the first lines are those of an e-mail.
fn opens_like_email(bytes: &[u8]) -> bool {
    let head = String::from_utf8_lossy(&bytes[..bytes.len().min(8192)]).to_ascii_lowercase();
    let names: Vec<&str> = (head.lines())
        .take_while(|line| !line.is_empty())
        .filter_map(|line| Some(line.split_once(':')?.0))
        .collect();
    let sure = ["received", "return-path", "message-id", "mime-version"];
    names.contains(&"from") && names.iter().filter(|name| sure.contains(name)).count() >= 2
}

/// Formats that are text with markup. A page or an e-mail named .txt is read with its markup.
fn in_text(bytes: &[u8], extension: &str) -> Option<Format> {
    match extension {
        "html" | "htm" | "xhtml" | "xht" => Some(Format::Html),
        "eml" | "mht" | "mhtml" => Some(Format::Email),
        "srt" | "vtt" => Some(Format::Subtitles),
        // Programs also save pages under the names of old Office documents.
        "" | "doc" | "xls" if opens_like_html(bytes) => Some(Format::Html),
        "" if opens_like_email(bytes) => Some(Format::Email),
        _ => None,
    }
}

fn opens_like_html(bytes: &[u8]) -> bool {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let head = bytes[..bytes.len().min(64)]
        .trim_ascii_start()
        .to_ascii_lowercase();
    head.starts_with(b"<!doctype html") || head.starts_with(b"<html")
}

/// Extensions of source code, data and markup.
const CODE: &str = "\
    rs py pyi pyw js mjs cjs jsx ts mts cts tsx svelte vue c h cc cpp cxx hh hpp hxx inl cu cuh cs fs fsx java kt kts \
    scala sc go swift m mm rb php pl pm lua r jl hs ml mli ex exs erl hrl clj cljs lisp el scm zig dart f90 f95 f for \
    asm s sh bash zsh fish ps1 bat cmd sql css scss less xml svg xsd xsl json jsonl ndjson yaml yml toml ini cfg conf \
    properties csv tsv log diff patch proto cmake nix tf";
/// File names of source code without an extension that tells.
const CODE_NAMES: &str = "Makefile makefile GNUmakefile Dockerfile Containerfile CMakeLists.txt";

/// Text is prose unless its extension means otherwise; a wrong guess changes only how passages are cut.
fn by_extension(name: &str, extension: &str) -> Kind {
    let file = Path::new(name).file_name().and_then(|name| name.to_str());
    if matches!(extension, "md" | "markdown" | "mdown" | "mkd" | "mdx") {
        Kind::Markdown
    } else if CODE.split(' ').any(|code| code == extension)
        || CODE_NAMES.split(' ').any(|code| Some(code) == file)
    {
        Kind::SourceCode
    } else {
        Kind::PlainText
    }
}
