//! Formats that need a parser: they are read in a process of their own if the program can start one (`kept_sandbox`),
//! else in this one.
//!
//! ```text
//! request   {"name": ..., "source": ..., "password": ...} \n the file
//! reply     {"Ok": {"pages": ...}} \n the text
//! ```

use kept_sandbox::{Failure, Limits, Task};
use serde::{Deserialize, Serialize};

use crate::found::{Found, Source};
use crate::{Why, extract, pdf, sniff};

/// Address space to read a file, in bytes, and in addition per byte of the file.
const MEMORY: (u64, u64) = (768 << 20, 4);
/// Seconds of computing to read a file, and the bytes of a file for each second more.
const SECONDS: (u64, u64) = (8, 128 << 10);
/// The most bytes of a reply: of text, and of the list of pages.
const REPLY_BYTES: u64 = 320 << 20;

/// The task of the process that reads documents. A program passes it to [`kept_sandbox::enter`].
pub const READING: Task = Task {
    name: "document",
    work,
};

#[derive(Serialize, Deserialize)]
struct Request {
    name: String,
    source: Source,
    password: Option<String>,
}

/// The text of a document. The extension of `name` is a hint for the format; `password` opens an encrypted PDF.
pub(crate) fn read(
    name: &str,
    source: Source,
    password: Option<&str>,
    bytes: Vec<u8>,
) -> Result<Found, Why> {
    let request = Request {
        name: name.to_owned(),
        source,
        password: password.map(str::to_owned),
    };
    if !kept_sandbox::is_available() {
        return read_here(request, bytes);
    }
    let head = head(&request);
    let size = bytes.len() as u64;
    let limits = Limits {
        memory: MEMORY.0 + MEMORY.1 * size,
        seconds: SECONDS.0 + size / SECONDS.1,
        reply: REPLY_BYTES,
    };
    match kept_sandbox::run(READING.name, &[&head, &bytes], limits) {
        Ok(reply) => {
            parse_reply(reply).unwrap_or(Err(Why::Exceeded(kept_sandbox::Exceeded::Senseless)))
        }
        Err(Failure::Exceeded(why)) => Err(Why::Exceeded(why)),
        Err(why) => Err(Why::NotStarted(why)),
    }
}

fn read_here(request: Request, bytes: Vec<u8>) -> Result<Found, Why> {
    match request.source {
        Source::Pdf => pdf::read(request.password, bytes),
        Source::Archive => extract::read(sniff::archive(&request.name, &bytes)?, &bytes),
        Source::Markup(format) => extract::read(format, &bytes),
    }
}

/// The task: a request to a reply. A request that is none is a bug, and gets no reply.
fn work(mut request: Vec<u8>) -> Vec<u8> {
    let Some(head) = take_head(&mut request) else {
        panic!("a request begins with a line");
    };
    let mut found = read_here(head, request);
    let text = found
        .as_mut()
        .map_or(String::new(), |f| std::mem::take(&mut f.text));
    let mut reply = self::head(&found);
    reply.extend_from_slice(text.as_bytes());
    reply
}

/// A reply; `None` if it is none. It comes from a process that a hostile file may have taken over.
fn parse_reply(mut reply: Vec<u8>) -> Option<Result<Found, Why>> {
    let mut found: Result<Found, Why> = take_head(&mut reply)?;
    if let Ok(found) = &mut found {
        found.text = String::from_utf8(reply).ok()?;
        let mut end = found.pages.first().map_or(0, |page| page.range.start);
        for page in &found.pages {
            let follows = page.range.start == end && found.text.get(page.range.clone()).is_some();
            end = follows.then_some(page.range.end)?;
        }
    }
    Some(found)
}

/// A line of JSON.
fn head(of: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(of).expect("names and numbers are JSON");
    line.push(b'\n');
    line
}

/// Removes the line of JSON at the start of `bytes`.
fn take_head<T: for<'a> Deserialize<'a>>(bytes: &mut Vec<u8>) -> Option<T> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let head = serde_json::from_slice(&bytes[..end]).ok()?;
    bytes.drain(..=end);
    Some(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, Page};

    #[test]
    fn a_reply_is_what_the_task_read() {
        let request = |name: &str, source| Request {
            name: name.to_owned(),
            source,
            password: None,
        };
        let sent = |request: Request, bytes: &[u8]| work([&head(&request)[..], bytes].concat());
        let page = "<h1>Zürich</h1>\n<p>Two\nlines";
        let of_page = || request("a.html", Source::Markup(Format::Html));
        let reply = sent(of_page(), page.as_bytes());
        let found = parse_reply(reply).expect("a reply").expect("a page");
        let here = read_here(of_page(), page.into()).expect("a page");
        assert_eq!((found.text, found.pages), (here.text, here.pages));
        for (name, source) in [("a.pdf", Source::Pdf), ("a.docx", Source::Archive)] {
            let nonsense = b"PK\x03\x04 nonsense";
            let reply = sent(request(name, source), nonsense);
            let apart = parse_reply(reply).expect("a reply").expect_err("nonsense");
            let here = read_here(request(name, source), nonsense.to_vec()).expect_err("nonsense");
            assert_eq!(apart.to_string(), here.to_string());
        }
    }

    #[test]
    fn a_reply_with_pages_outside_of_the_text_is_none() {
        let page = |range| Page { number: 1, range };
        for pages in [
            vec![page(0..9)],
            vec![page(0..2)],
            vec![page(0..1), page(3..4)],
            vec![page(4..9)],
        ] {
            let found = Found {
                pages,
                ..Found::default()
            };
            let found: Result<Found, Why> = Ok(found);
            let reply = [&head(&found)[..], "aüb".as_bytes()].concat();
            assert!(parse_reply(reply).is_none());
        }
        assert!(parse_reply(b"{}\n".to_vec()).is_none() && parse_reply(Vec::new()).is_none());
    }
}
