//! Text recognition (OCR) of pages that are images, by two programs that the user has installed: `pdftoppm` of poppler
//! draws a page of a PDF, `tesseract` reads it. Both run with limits ([`kept_sandbox::command`]).
//!
//! ```text
//! file --[Document::open_with]--> pages without text --pdftoppm--> image --tesseract--> text of the page
//! ```

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kept_sandbox::Limits;
use tempfile::TempDir;

use crate::found::{BETWEEN_PAGES, Found};
use crate::{Document, DocumentError, Kind, Page, Why};

/// The programs, in the order in which they work.
const PROGRAMS: [&str; 2] = ["pdftoppm", "tesseract"];
/// Dots per inch of a drawn page: what tesseract's models were made for.
const RESOLUTION: &str = "300";
/// Limits of a program, for one page. A large page with two languages takes a tenth of them.
const LIMITS: Limits = Limits {
    memory: 3 << 30,
    seconds: 120,
    reply: 1 << 30,
};
/// Time on the clock for a program and a page.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Time between two checks whether a program has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Models of tesseract that are not languages: the direction of a page, and equations.
const NOT_LANGUAGES: [&str; 2] = ["osd", "equ"];

/// How pages are recognised.
pub struct Recognition<'a> {
    /// Languages of the text, as tesseract names them: `eng`, `deu`. At least one.
    pub languages: &'a [String],
    /// Receives the number of finished pages and of all pages that are recognised.
    pub progress: &'a (dyn Fn(usize, usize) + Sync),
    /// Whether to stop.
    pub is_stopped: &'a (dyn Fn() -> bool + Sync),
}

/// The languages that text can be recognised in on this computer; none if a program is missing.
pub fn recognised_languages() -> Vec<String> {
    let missing = PROGRAMS.iter().any(|program| find(program).is_none());
    let listed = Command::new(PROGRAMS[1]).arg("--list-langs").output();
    match listed {
        Ok(listed) if !missing => {
            let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
            // The first line is a heading.
            let names = listed.lines().skip(1).map(str::trim);
            let languages = names.filter(|name| !NOT_LANGUAGES.contains(name) && !name.is_empty());
            languages.map(str::to_owned).collect()
        }
        _ => Vec::new(),
    }
}

impl Document {
    /// [`Document::open_with`], with recognised text on the pages of a PDF that have none, or as the text of an image.
    ///
    /// # Errors
    /// As [`Document::open_with`], and [`Why::Recognition`].
    pub fn recognise(
        path: &Path,
        shown: &str,
        recognition: &Recognition<'_>,
    ) -> Result<Self, DocumentError> {
        let opened = Self::open_with(path, shown, None);
        let fail = |why| Why::Recognition(why).about(shown);
        let (pages, kind): (Vec<String>, _) = match &opened {
            Ok(document) if document.kind != Kind::Pdf => return opened,
            Ok(document) => {
                let text = |page: &Page| document.text[page.range.clone()].trim_end();
                let texts = document.pages.iter().map(text).map(str::to_owned);
                (texts.collect(), Kind::Pdf)
            }
            Err(error) => {
                let Some(pages) = error.pages_to_recognise() else {
                    return opened;
                };
                let is_image = matches!(error.why, Why::Image { .. });
                let kind = if is_image { Kind::PlainText } else { Kind::Pdf };
                (vec![String::new(); pages], kind)
            }
        };
        if !pages.iter().any(String::is_empty) {
            return opened;
        }
        let languages = recognised_languages();
        if languages.is_empty() {
            return Err(fail(Unrecognised::NotInstalled));
        }
        let unknown = |wanted: &&String| !languages.contains(wanted);
        if let Some(unknown) = recognition.languages.iter().find(unknown) {
            return Err(fail(Unrecognised::Language {
                wanted: unknown.clone(),
                installed: languages.join(", "),
            }));
        }
        let folder = tempfile::tempdir().map_err(|e| fail(Unrecognised::Failed(e.to_string())))?;
        let reader = Reader {
            // The programs work in another folder.
            path: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
            is_image: kind != Kind::Pdf,
            folder,
            recognition,
        };
        let found = reader.read(pages).map_err(fail)?;
        let (text, pages) = (found.text, found.pages);
        Ok(Self {
            name: (path.file_name()).map_or(shown.into(), |n| n.to_string_lossy().into_owned()),
            text,
            pages: if reader.is_image { Vec::new() } else { pages },
            encoding: if reader.is_image { "UTF-8" } else { "PDF" }.into(),
            kind,
            source_bytes: path.metadata().map_or(0, |metadata| metadata.len()),
            unread_pages: found.unread,
            image_pages: found.images,
            ..Self::empty()
        })
    }

    /// [`Document::recognise`] of a file that is in memory; `name` as in [`Document::from_bytes`]. The bytes are in a
    /// temporary file meanwhile, as the programs read files.
    ///
    /// # Errors
    /// As [`Document::recognise`].
    pub fn recognise_bytes(
        name: impl Into<String>,
        bytes: &[u8],
        recognition: &Recognition<'_>,
    ) -> Result<Self, DocumentError> {
        let name = name.into();
        let fail = |error: std::io::Error| {
            Why::Recognition(Unrecognised::Failed(error.to_string())).about(&name)
        };
        let folder = tempfile::tempdir().map_err(fail)?;
        let path = (folder.path().join("document"))
            .with_extension(Path::new(&name).extension().unwrap_or_default());
        std::fs::write(&path, bytes).map_err(fail)?;
        let document = Self::recognise(&path, &name, recognition)?;
        Ok(Self { name, ..document })
    }
}

/// Why no text was recognised, as the second half of a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unrecognised {
    /// A program is missing.
    #[error(
        "recognising text needs the programs tesseract and pdftoppm: install them (the packages tesseract-ocr and \
         poppler-utils, or tesseract and poppler) and try again"
    )]
    NotInstalled,
    /// A language is not installed.
    #[error(
        "tesseract has no language {wanted} here: install it, or choose among those that are installed ({installed})"
    )]
    Language {
        /// The language as given.
        wanted: String,
        /// Those that are installed, separated by commas.
        installed: String,
    },
    /// No page has text.
    #[error("no text was recognised on its pages: perhaps they hold only pictures or handwriting")]
    Nothing,
    /// It was stopped.
    #[error("recognising its text was stopped")]
    Stopped,
    /// A program or a file did not work.
    #[error("recognising its text failed ({0})")]
    Failed(String),
}

/// A file whose pages are recognised.
struct Reader<'a> {
    path: PathBuf,
    is_image: bool,
    folder: TempDir,
    recognition: &'a Recognition<'a>,
}

impl Reader<'_> {
    /// The text of `pages`; those that are empty are recognised, as many at a time as there are cores.
    fn read(&self, mut pages: Vec<String>) -> Result<Found, Unrecognised> {
        let empty: Vec<usize> = (0..pages.len()).filter(|&i| pages[i].is_empty()).collect();
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || {
            while let Some(&page) = empty.get(next.fetch_add(1, Ordering::Relaxed)) {
                let text = self.page(page as u32 + 1);
                // After an error the other threads begin no further page.
                let text = text.inspect_err(|_| next.store(empty.len(), Ordering::Relaxed))?;
                let mut done = done.lock().expect("no page panics");
                done.push((page, text));
                (self.recognition.progress)(done.len(), empty.len());
            }
            Ok(())
        };
        (self.recognition.progress)(0, empty.len());
        let threads = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            let started: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let ends = started
                .into_iter()
                .map(|one| one.join().expect("no page panics"));
            ends.fold(Ok(()), Result::and)
        })?;
        let mut unread = Vec::new();
        for (page, text) in done.into_inner().expect("no page panics") {
            match text {
                Some(text) => pages[page] = text,
                None => unread.push(page as u32 + 1),
            }
        }
        unread.sort_unstable();
        if pages.iter().all(String::is_empty) {
            return Err(Unrecognised::Nothing);
        }
        // Blank ones, pictures, and those too large to be drawn.
        let without_text = empty.iter().filter(|&&page| pages[page].is_empty());
        let images = without_text.map(|page| *page as u32 + 1);
        let mut found = Found {
            images: images.filter(|page| !unread.contains(page)).collect(),
            unread,
            ..Found::default()
        };
        for (text, number) in pages.iter().zip(1..) {
            let start = found.text.len();
            found.text.push_str(text);
            if number as usize != pages.len() {
                found.text.push_str(BETWEEN_PAGES);
            }
            found.pages.push(Page {
                number,
                range: start..found.text.len(),
            });
        }
        Ok(found)
    }

    /// The text of page `number`; `None` if it cannot be drawn or read.
    fn page(&self, number: u32) -> Result<Option<String>, Unrecognised> {
        let [draw, read] = PROGRAMS;
        let drawn = self.folder.path().join(number.to_string());
        let image = if self.is_image {
            self.path.clone()
        } else {
            let number = number.to_string();
            let page = [
                "-gray",
                "-singlefile",
                "-r",
                RESOLUTION,
                "-f",
                &number,
                "-l",
                &number,
            ];
            let files = [self.path.as_os_str(), drawn.as_os_str()];
            if !self.run(draw, page.iter().map(OsStr::new).chain(files))? {
                return Ok(None);
            }
            drawn.with_extension("pgm")
        };
        let languages = self.recognition.languages.join("+");
        let how = ["-l", &languages, "--dpi", RESOLUTION].map(OsStr::new);
        let how = if self.is_image { &how[..2] } else { &how };
        let files = [image.as_os_str(), drawn.as_os_str()];
        let was_read = self.run(read, files.into_iter().chain(how.iter().copied()))?;
        if !self.is_image {
            // A page takes megabytes, and a book has many.
            let _ = std::fs::remove_file(&image);
        }
        let text = std::fs::read(drawn.with_extension("txt")).ok();
        let text = text
            .filter(|_| was_read)
            .and_then(|text| String::from_utf8(text).ok());
        // Each page of an image of several ends with a form feed.
        Ok(text.map(|text| text.replace('\u{c}', "\n").trim().to_owned()))
    }

    /// Whether `program` succeeded with `arguments`.
    fn run<'s>(
        &self,
        program: &str,
        arguments: impl Iterator<Item = &'s OsStr>,
    ) -> Result<bool, Unrecognised> {
        let failed = |error: std::io::Error| Unrecognised::Failed(format!("{program}: {error}"));
        let path = find(program).ok_or(Unrecognised::NotInstalled)?;
        let mut command =
            kept_sandbox::command(path.as_os_str(), self.folder.path(), LIMITS).map_err(failed)?;
        command.args(arguments).env("OMP_THREAD_LIMIT", "1");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command
            .current_dir(self.folder.path())
            .spawn()
            .map_err(failed)?;
        self.wait(child)
            .map_err(failed)?
            .ok_or(Unrecognised::Stopped)
    }

    /// Whether the process succeeded; `None` if it was stopped.
    fn wait(&self, mut child: Child) -> std::io::Result<Option<bool>> {
        let until = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(Some(status.success()));
            }
            let is_stopped = (self.recognition.is_stopped)();
            if is_stopped || Instant::now() >= until {
                child.kill()?;
                child.wait()?;
                return Ok((!is_stopped).then_some(false));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// The file of an installed program.
fn find(program: &str) -> Option<PathBuf> {
    let name = format!("{program}{}", std::env::consts::EXE_SUFFIX);
    let folders = std::env::var_os("PATH")?;
    let files = std::env::split_paths(&folders).map(|folder| folder.join(&name));
    files.into_iter().find(|file| file.is_file())
}
