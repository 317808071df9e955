//! `kept map`: which tokens of a document a method keeps, painted in the terminal, as JSON, or as a page for a browser.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::IsTerminal;
use std::ops::Range;
use std::path::Path;

use kept_engine::documents::Document;
use kept_engine::{
    Answer, Ask, Engine, LayerRetention, MethodSpec, Note, Part, RetentionMap, runs,
};
use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};

use crate::arguments::MapArguments;
use crate::output::{self, bytes, count};
use crate::progress::{ReadingBar, stop_on_ctrl_c};
use crate::{map_page, map_table, paint};

pub fn run(arguments: MapArguments) -> anyhow::Result<()> {
    let reading = arguments.reading.check()?;
    let inputs = [&*arguments.question.document, &*reading.model.path];
    if let Some(path) = &arguments.html {
        output::check_target(path, &inputs)?;
    }
    let engine = reading.open()?;
    let document = arguments.question.open()?;
    let stop = stop_on_ctrl_c();
    let bar = ReadingBar::new();
    let read = engine.ask(
        &Ask {
            budget: reading.budget,
            // Prefill produces the map; no answer is needed.
            max_tokens: 0,
            limits: reading.limits,
            vault: reading.vaults(),
            ..Ask::new(&document, &arguments.question.question, &reading.method)
        },
        &mut |event| bar.event(&event),
        &stop,
    );
    bar.clear();
    let mut read = read?;
    (read.notes).extend(reading.trouble.clone().map(Note::from));
    if let Some(path) = &arguments.html {
        let question = &arguments.question.question;
        write_page(path, &document, question, &reading.method, &read)?;
    }
    output::say(&reading.model.notes(&document));
    for note in &read.notes {
        output::say(&output::printable(&format!("note: {note}\n")));
    }
    if arguments.json {
        return output::print_json(&MapJson {
            document: &document,
            engine: &engine,
            answer: &read,
        });
    }
    let colored = paint::use_color(arguments.color, std::io::stdout().is_terminal());
    print(&document, &read, colored)
}

/// The method that answered, with the parameters that the user set with `method`; a chosen method has none.
pub fn label(method: &MethodSpec, answer: &Answer) -> String {
    if method.name == answer.report.method {
        method.to_string()
    } else {
        answer.report.method.clone()
    }
}

/// Writes the painted document and turns as a page for a browser.
pub fn write_page(
    path: &Path,
    document: &Document,
    question: &str,
    method: &MethodSpec,
    answer: &Answer,
) -> anyhow::Result<()> {
    let page = map_page::page(document, question, &label(method, answer), answer);
    output::write_file(path, |file| file.write_all(page.as_bytes()))?;
    output::say(&output::printable(&format!(
        "the painted document is in {}\n",
        path.display()
    )));
    Ok(())
}

/// Prints the painted document and the earlier turns, or a table of its parts if `colored` is false.
pub fn print(document: &Document, answer: &Answer, colored: bool) -> anyhow::Result<()> {
    let mut out = String::new();
    if colored {
        let runs = runs(&document.text, &answer.prompt, &answer.map);
        out += &format!("{}\n\n", paint::legend());
        out += paint::painted(&document.text, &runs).trim_end();
        out += "\n\n";
        let earlier = &answer.prompt.earlier;
        if !earlier.text.is_empty() {
            let runs = earlier.runs(&answer.map.shares());
            out += "Earlier in this conversation:\n\n";
            out += paint::painted(&earlier.text, &runs).trim_end();
            out += "\n\n";
        }
    }
    out += &map_table::table(document, answer);
    out += &format!(
        "{} cache {} instead of {}, {} rows per head in {} layers\n",
        answer.report.cache,
        bytes(answer.report.kv_bytes),
        bytes(answer.report.kv_bytes_full),
        count(answer.map.mean_rows().round() as usize),
        answer.map.compressed_layers().count(),
    );
    let sliding = answer.map.windows.iter().flatten().count();
    if sliding > 0 {
        out += &format!("{sliding} more layers attend to the last tokens only and keep those\n");
    }
    output::print_text(&out)
}

/// Writes the map as JSON to a file.
pub fn write_json(
    path: &Path,
    document: &Document,
    engine: &Engine,
    answer: &Answer,
) -> anyhow::Result<()> {
    let map = MapJson {
        document,
        engine,
        answer,
    };
    output::write_file(path, |file| {
        serde_json::to_writer(&mut *file, &map)?;
        writeln!(file)
    })
}

/// The map for scripts: `tokens`, `layers`, `merged`, `share`, all indexed by prompt position.
struct MapJson<'a> {
    document: &'a Document,
    engine: &'a Engine,
    answer: &'a Answer,
}

impl Serialize for MapJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("map", 10)?;
        object.serialize_field("document", &DocumentJson::new(self.document))?;
        if !self.answer.prompt.turns.is_empty() {
            object.serialize_field("earlier", &EarlierJson::new(self.answer))?;
        }
        object.serialize_field("tokens", &Tokens(self))?;
        object.serialize_field("layers", &Layers(&self.answer.map))?;
        object.serialize_field("merged", &self.answer.map.merged)?;
        object.serialize_field("share", &self.answer.map.shares())?;
        object.serialize_field("rows_per_layer", &self.answer.rows_per_layer)?;
        object.serialize_field("prompt_tokens", &self.answer.prompt.len())?;
        object.serialize_field("method", &self.answer.report.method)?;
        object.serialize_field("cache", &self.answer.report.cache)?;
        object.end()
    }
}

/// The document whose bytes `start` and `end` count.
#[derive(Serialize)]
struct DocumentJson<'a> {
    name: &'a str,
    encoding: &'a str,
    /// Bytes of a byte-order mark at the start of the file, which is not part of the text.
    skipped_bytes: usize,
    text: &'a str,
    /// The single documents, if there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<PartJson<'a>>,
}

/// One of several documents: its byte range in the joined text.
#[derive(Serialize)]
struct PartJson<'a> {
    name: &'a str,
    start: usize,
    end: usize,
}

impl<'a> DocumentJson<'a> {
    fn new(document: &'a Document) -> Self {
        Self {
            name: &document.name,
            encoding: &document.encoding,
            skipped_bytes: document.skipped_bytes,
            text: &document.text,
            parts: (document.parts.iter())
                .map(|part| PartJson {
                    name: &part.document.name,
                    start: part.range.start,
                    end: part.range.end,
                })
                .collect(),
        }
    }
}

/// The earlier turns that the model saw: the text whose bytes the tokens of `turn`s count.
#[derive(Serialize)]
struct EarlierJson<'a> {
    text: &'a str,
    turns: Vec<TurnJson>,
}

/// Byte ranges of an earlier question and its answer.
#[derive(Serialize)]
struct TurnJson {
    name: String,
    question: [usize; 2],
    answer: [usize; 2],
    /// Mean share of its tokens.
    share: f32,
}

impl<'a> EarlierJson<'a> {
    fn new(answer: &'a Answer) -> Self {
        let earlier = &answer.prompt.earlier;
        let turns = map_table::turn_rows(answer).into_iter().zip(&earlier.turns);
        Self {
            text: &earlier.text,
            turns: turns
                .map(|(row, [question, said])| TurnJson {
                    name: row.name,
                    question: [question.start, question.end],
                    answer: [said.start, said.end],
                    share: row.mean,
                })
                .collect(),
        }
    }
}

#[derive(Serialize)]
struct TokenJson<'a> {
    text: Cow<'a, str>,
    part: Part,
    /// Byte range in the document's text, or in that of the earlier turns; null for tokens outside both.
    start: Option<usize>,
    end: Option<usize>,
    page: Option<u32>,
    /// Name of the document, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<&'a str>,
}

struct Tokens<'a>(&'a MapJson<'a>);

impl Serialize for Tokens<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let MapJson {
            document,
            engine,
            answer,
        } = self.0;
        let earlier: HashMap<usize, Range<usize>> = answer.prompt.earlier.spans().collect();
        serializer.collect_seq((0..answer.prompt.len()).map(|position| {
            let token = answer.prompt.token(position);
            let span = token.span.as_ref().or_else(|| earlier.get(&position));
            let text = match engine.model().tokenizer() {
                Ok(tokenizer) if tokenizer.is_control(token.id) => {
                    tokenizer.token_text(token.id).into()
                }
                Ok(tokenizer) => String::from_utf8_lossy(tokenizer.decode_bytes(token.id)),
                Err(_) => "".into(),
            };
            TokenJson {
                text,
                part: token.part,
                page: token.span.as_ref().and_then(|s| document.page_of(s.start)),
                document: (token.span.as_ref())
                    .and_then(|span| document.part_of(span.start))
                    .map(|part| part.document.name.as_str()),
                start: span.map(|span| span.start),
                end: span.map(|span| span.end),
            }
        }))
    }
}

struct Layers<'a>(&'a RetentionMap);

impl Serialize for Layers<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct LayerJson<'a> {
            heads: &'a [Vec<u32>],
            /// Number of last positions that a sliding-window layer attends to; null for a global layer, whose cache
            /// was compressed.
            window: Option<usize>,
        }
        let map = self.0;
        let everything = vec![(0..map.tokens as u32).collect::<Vec<u32>>(); map.kv_heads];
        let layers = map.layers.iter().zip(&map.windows);
        serializer.collect_seq(layers.map(|(layer, &window)| LayerJson {
            window,
            heads: match layer {
                LayerRetention::Everything => &everything,
                LayerRetention::Kept(heads) => heads,
            },
        }))
    }
}
