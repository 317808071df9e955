//! PDF to text with pages.
//!
//! `pdf-extract` handles fonts and their encodings. This module protects the program from hostile or damaged PDFs: the
//! work runs on its own thread with a large stack, a panic loses only one page, a page without progress is an error
//! after a timeout, and the amount of text is limited. `pdf_content` cleans each page before it is drawn; `pdf_layout`
//! arranges the drawn glyphs into lines.

use std::borrow::Cow;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use pdf_extract::{
    Dictionary, Document as Pdf, Error as PdfError, LoadOptions, Object, ObjectId, OutputError,
};

use crate::found::{BETWEEN_PAGES, Found};
use crate::pdf_bookmarks::{self, Bookmark};
use crate::pdf_cmaps::RecodedFonts;
use crate::pdf_headings::{self, Sizes};
use crate::{
    Page, Why, guarded, hyphens, pdf_content, pdf_layout, pdf_repair, pdf_to_unicode, running_heads,
};

/// Timeout for loading the file, and for each page. A page takes milliseconds; the margin is for slow machines.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The most text of one PDF, in bytes.
const MAX_TEXT_BYTES: usize = 256 << 20;
/// Stack size of the thread, in bytes. Parsers recurse once per nested object.
const STACK_BYTES: usize = 64 << 20;
/// A file that says that it has more pages is wrong.
const MAX_PAGES: usize = 20_000;
/// Numbers of objects are below it. Kept adds two objects for each page.
const MAX_OBJECT_NUMBER: u32 = 1 << 30;

/// Messages from the thread. Each message restarts the timeout.
enum Progress {
    Loaded {
        pages: usize,
        bookmarks: Vec<Bookmark>,
    },
    /// The page's text, and whether it may show an image.
    Page(Result<(pdf_layout::PageText, bool), ()>),
    Failed(Why),
}

/// Extracts the text and the pages of a PDF, which `password` opens if it is encrypted.
pub(crate) fn read(password: Option<String>, bytes: Vec<u8>) -> Result<Found, Why> {
    let stop = Arc::new(AtomicBool::new(false));
    let (sender, receiver) = mpsc::channel();
    let stop_reading = stop.clone();
    guarded::thread(STACK_BYTES)
        .spawn(move || extract(&bytes, password.as_deref(), &sender, &stop_reading))
        .map_err(Why::Read)?;
    let received = receive(&receiver);
    // A thread cannot be killed; this one stops at the next glyph it draws.
    stop.store(true, Ordering::Relaxed);
    received?.checked()
}

/// Receives all pages.
fn receive(receiver: &Receiver<Progress>) -> Result<Received, Why> {
    let mut received = Received::default();
    let mut count = None;
    while count != Some(received.pages.len()) {
        match receiver.recv_timeout(TIMEOUT) {
            Ok(Progress::Loaded { pages, bookmarks }) => {
                count = Some(pages);
                received.bookmarks = bookmarks;
            }
            Ok(Progress::Page(page)) => {
                received.add(page);
                if received.bytes > MAX_TEXT_BYTES {
                    return Err(Why::TooMuchText {
                        limit: MAX_TEXT_BYTES as u64,
                    });
                }
            }
            Ok(Progress::Failed(why)) => return Err(why),
            Err(RecvTimeoutError::Timeout) => {
                return Err(Why::PdfTooSlow {
                    seconds: TIMEOUT.as_secs(),
                });
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(broken("its structure makes no sense"));
            }
        }
    }
    Ok(received)
}

fn broken(reason: impl Into<Cow<'static, str>>) -> Why {
    Why::PdfBroken {
        reason: reason.into(),
    }
}

/// The pages received so far.
#[derive(Default)]
struct Received {
    /// Their texts.
    pages: Vec<String>,
    bytes: usize,
    unread: Vec<u32>,
    images: Vec<u32>,
    letters: usize,
    nameless: usize,
    /// Sizes of the letters of each page.
    sizes: Vec<Sizes>,
    bookmarks: Vec<Bookmark>,
}

impl Received {
    /// Appends the next page; `Err` if it could not be read.
    fn add(&mut self, page: Result<(pdf_layout::PageText, bool), ()>) {
        let number = self.pages.len() as u32 + 1;
        let (mut text, mut sizes) = (String::new(), Sizes::new());
        match page {
            Ok((page, has_image)) => {
                if has_image && page.text.trim().is_empty() {
                    self.images.push(number);
                }
                self.bytes += page.text.len();
                self.letters += page.letters;
                self.nameless += page.nameless;
                (text, sizes) = (page.text, page.sizes);
            }
            Err(()) => self.unread.push(number),
        }
        self.pages.push(text);
        self.sizes.push(sizes);
    }

    /// The pages as one text.
    fn joined(&mut self) -> Found {
        let large = pdf_headings::large_lines(&self.pages, &self.sizes);
        running_heads::remove(&mut self.pages);
        hyphens::join(&mut self.pages);
        let mut found = Found {
            unread: std::mem::take(&mut self.unread),
            images: std::mem::take(&mut self.images),
            ..Found::default()
        };
        for (number, text) in (1..).zip(&self.pages) {
            if let Some(last) = found.pages.last_mut() {
                found.text.push_str(BETWEEN_PAGES);
                last.range.end = found.text.len();
            }
            let start = found.text.len();
            found.text.push_str(text);
            found.pages.push(Page {
                number,
                range: start..found.text.len(),
            });
        }
        let bookmarks = std::mem::take(&mut self.bookmarks);
        found.headings = pdf_headings::headings(&found.text, &found.pages, bookmarks, large);
        found
    }

    /// The text, if it is readable.
    fn checked(mut self) -> Result<Found, Why> {
        let found = self.joined();
        let pages = found.pages.len();
        if pages == 0 {
            return Err(broken("it has no pages"));
        }
        if found.unread.len() == pages {
            return Err(broken("none of its pages could be read"));
        }
        if found.text.trim().is_empty() {
            return Err(Why::PdfWithoutText { pages });
        }
        if self.nameless * 3 > self.letters {
            return Err(Why::PdfUnreadableFonts { pages });
        }
        Ok(found)
    }
}

/// Entry point of the thread. A panic outside a page closes the channel, and the receiver reports a broken PDF.
fn extract(bytes: &[u8], password: Option<&str>, sender: &Sender<Progress>, stop: &AtomicBool) {
    let (mut pdf, repaired) = match load(bytes, password) {
        Ok(loaded) => loaded,
        Err(why) => {
            let _ = sender.send(Progress::Failed(why));
            return;
        }
    };
    let pages: Vec<ObjectId> = pdf.page_iter().collect();
    let declared = if repaired { declared_pages(&pdf) } else { 0 };
    let lost = declared.saturating_sub(pages.len());
    let loaded = Progress::Loaded {
        pages: pages.len() + lost,
        bookmarks: pdf_bookmarks::bookmarks(&pdf, &pages),
    };
    if sender.send(loaded).is_err() {
        return;
    }
    pdf_to_unicode::rewrite(&mut pdf);
    let fonts = RecodedFonts::prepare(&mut pdf);
    let most = MAX_TEXT_BYTES;
    for page in pages {
        // A panic may leave the PDF half changed, but each page is prepared independently.
        let text = panic::catch_unwind(AssertUnwindSafe(|| {
            read_page(&mut pdf, &fonts, page, stop, most)
        }));
        let text = text.ok().flatten().ok_or(());
        // After the receiver gives up, it reads no more messages.
        if stop.load(Ordering::Relaxed) || sender.send(Progress::Page(text)).is_err() {
            return;
        }
    }
    // Of a file that was cut off, mostly the last ones.
    for _ in 0..lost {
        let _ = sender.send(Progress::Page(Err(())));
    }
}

/// How many pages the file says that it has, if that can be true: each page is an object.
fn declared_pages(pdf: &Pdf) -> usize {
    let tree = pdf
        .catalog()
        .and_then(|catalog| catalog.get_deref(b"Pages", pdf));
    let tree = tree.and_then(Object::as_dict);
    let count = tree
        .and_then(|tree| tree.get_deref(b"Count", pdf))
        .and_then(Object::as_i64);
    let count = count.ok().and_then(|count| usize::try_from(count).ok());
    count.filter(|&count| count <= MAX_PAGES).unwrap_or(0)
}

/// Loads the file, and decrypts it by an empty password or by `password`, the reader's; of AES-256 also the owner's.
/// Also returns whether its table was rebuilt, so that its end may be missing.
fn load(bytes: &[u8], password: Option<&str>) -> Result<(Pdf, bool), Why> {
    let encrypted = || match password {
        Some(_) => Why::PdfPassword,
        None => Why::PdfEncrypted,
    };
    let fail = |error: PdfError| match error {
        PdfError::InvalidPassword | PdfError::Decryption(_) => encrypted(),
        other => broken(reason(&other)),
    };
    // File offsets count from the `%PDF-` mark, which other bytes may precede.
    let head = bytes.windows(5).position(|w| w == b"%PDF-");
    let bytes = &bytes[head.unwrap_or(0)..];
    let options = password.map_or_else(LoadOptions::default, LoadOptions::with_password);
    let load = |bytes: &[u8]| Pdf::load_mem_with_options(bytes, options.clone());
    let repaired = |error: PdfError| match pdf_repair::with_new_table(bytes) {
        Some(repaired) => load(&repaired).map_err(|_| error),
        None => Err(error),
    };
    let (mut pdf, is_repaired) = match load(bytes) {
        Ok(pdf) => (pdf, false),
        Err(error @ (PdfError::InvalidPassword | PdfError::Decryption(_))) => {
            return Err(fail(error));
        }
        Err(error) => (repaired(error).map_err(fail)?, true),
    };
    // What is encrypted now is so without a password: the file was not decrypted.
    if pdf.is_encrypted() {
        return Err(encrypted());
    }
    pdf_content::drop_images_and_bombs(&mut pdf);
    // A damaged table of contents names fewer objects than there are, and the next one would replace one of them: a page
    // its own form, which then draws itself for ever.
    pdf.objects
        .retain(|(number, _), _| *number < MAX_OBJECT_NUMBER);
    pdf.max_id = pdf.objects.keys().map(|id| id.0).max().unwrap_or(0);
    Ok((pdf, is_repaired))
}

/// The library's error message, which contains byte offsets and keys, shortened for use in a sentence.
fn reason(error: &PdfError) -> String {
    match error {
        PdfError::Xref(_) | PdfError::Parse(_) => "its structure cannot be read".to_owned(),
        other => {
            let words = other.to_string();
            words
                .lines()
                .next()
                .unwrap_or("unknown reason")
                .chars()
                .take(120)
                .collect()
        }
    }
}

/// The text of one page, and whether it may show an image; `None` if the page cannot be read.
fn read_page(
    pdf: &mut Pdf,
    fonts: &RecodedFonts,
    page: ObjectId,
    stop: &AtomicBool,
    most: usize,
) -> Option<(pdf_layout::PageText, bool)> {
    let has_image = pdf_content::has_image(pdf, page);
    let content = pdf_content::clean_page(pdf, fonts, page)?;
    // The library draws whole files, or counts all pages for each page, so it gets a file with only this page.
    let tree = pdf.add_object(Dictionary::from_iter([
        ("Type", Object::Name(b"Pages".to_vec())),
        ("Kids", Object::Array(vec![Object::Reference(page)])),
        ("Count", Object::Integer(1)),
    ]));
    pdf.catalog_mut()
        .ok()?
        .set("Pages", Object::Reference(tree));
    let mut layout = pdf_layout::Layout::new(stop, most);
    let drawn: Result<(), OutputError> = pdf_extract::output_doc(pdf, &mut layout);
    pdf.objects.remove(&tree);
    pdf.objects.remove(&content);
    drawn.ok()?;
    Some((layout.finish(), has_image))
}
