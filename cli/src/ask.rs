//! `kept ask`: streams the answer to stdout and prints its cost to stderr; `--json` prints everything as one object.

use std::fs::File;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context, anyhow};
use kept_engine::documents::{Document, DocumentError, Recognition, Why};
use kept_engine::kernels::Stop;
use kept_engine::vault::VaultUse;
use kept_engine::{
    Answer, AnswerReport, Ask, Chosen, Citation, Engine, EngineError, Event, Finish, Note, Source,
};
use serde::Serialize;

use crate::arguments::{AskArguments, OpenArguments, Reading};
use crate::output::{self, bytes, count};
use crate::progress::{CountBar, ReadingBar, duration, stop_on_ctrl_c};
use crate::{map, paint};

/// The output of `--json`.
#[derive(Serialize)]
struct AskJson<'a> {
    question: &'a str,
    /// Earlier turns of the conversation that the model saw.
    turns: usize,
    answer: &'a str,
    #[serde(flatten)]
    report: &'a AnswerReport,
    model: &'a str,
    /// The method with its parameters: `snapkv[w=8]`.
    label: &'a str,
    /// The reason for the choice of the method, if the user named none.
    chosen: Option<&'a Chosen>,
    rows_per_layer: &'a [usize],
    /// Expected peak memory: the program before it opened the model, the document, and the peak of the ledger.
    expected_peak_bytes: u64,
    ledger: kept_engine::MemoryLedger,
    prefill_tokens_per_second: f64,
    decode_tokens_per_second: f64,
    /// The device: the GPU's name, or `cpu`.
    device: &'a str,
    sources: &'a [Source],
    citations: &'a [Citation],
    vault: &'a VaultUse,
    notes: Vec<String>,
    /// The prompt in the model's chat template, with `--show-prompt`.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<String>,
}

pub fn run(arguments: AskArguments) -> anyhow::Result<()> {
    arguments.answer.check()?;
    anyhow::ensure!(
        arguments.question.len() == 1 || (arguments.map.is_none() && !arguments.paint),
        "--map and --paint show what was kept for one question, and {} were given; ask one",
        arguments.question.len()
    );
    if arguments
        .question
        .iter()
        .any(|question| question.trim().is_empty())
    {
        return Err(EngineError::EmptyQuestion.into());
    }
    let sampling = arguments.answer.sampling();
    let reading = arguments.reading.check()?;
    let documents = arguments.document.iter().chain([&reading.model.path]);
    let inputs: Vec<&Path> = documents.map(PathBuf::as_path).collect();
    if let Some(path) = &arguments.map {
        output::check_target(path, &inputs)?;
    }
    let engine = reading.open()?;
    let document = open_documents(&arguments.document, &arguments.opening)?;
    let mut asker = Asker::new(&engine, &document, &reading)
        .with_output(arguments.json, arguments.answer.show_prompt);
    let stop = stop_on_ctrl_c();
    for question in &arguments.question {
        let ask = Ask {
            document: &document,
            turns: &[],
            question,
            method: &reading.method,
            budget: reading.budget,
            sampling: &sampling,
            max_tokens: arguments.answer.max_tokens,
            thinking: arguments.answer.thinking,
            limits: reading.limits,
            vault: reading.vaults(),
        };
        let several = arguments.question.len() > 1 && !arguments.json;
        if several {
            output::print_text(&output::printable(&format!("> {question}\n")))?;
        }
        let answered = asker.ask(&ask, &stop)?;
        // A failure to print the answer does not prevent writing the map, and vice versa.
        let written = match &arguments.map {
            Some(path) => map::write_json(path, &document, &engine, &answered.answer),
            None => Ok(()),
        };
        asker.report(&ask, &answered)?;
        written?;
        // A reader that has closed the pipe stops the answer.
        if let Some(error) = answered.unprinted {
            return Err(error);
        }
        if answered.answer.report.finish == Finish::Stopped {
            return Err(EngineError::Stopped.into());
        }
        if arguments.paint {
            let colored = paint::use_color(arguments.color, std::io::stdout().is_terminal());
            output::print_text("\n")?;
            map::print(&document, &answered.answer, colored)?;
        }
        if several {
            output::print_text("\n")?;
        }
    }
    Ok(())
}

/// The path of a document that is read from the standard input.
pub const STANDARD_INPUT: &str = "-";

/// Opens documents and joins them into one text.
pub fn open_documents(paths: &[PathBuf], how: &OpenArguments) -> anyhow::Result<Document> {
    if paths.is_empty() {
        return Ok(Document::empty());
    }
    let from_input = |path: &&PathBuf| path.as_os_str() == STANDARD_INPUT;
    // A named pipe, as the shell's `<(command)`, is read like the standard input.
    let is_stream = |path: &PathBuf| path.metadata().is_ok_and(|m| !m.is_file() && !m.is_dir());
    anyhow::ensure!(
        paths.iter().filter(from_input).count() < 2,
        "the standard input is one document: write --document - once"
    );
    anyhow::ensure!(
        how.recognise.is_empty()
            || !paths
                .iter()
                .any(|path| from_input(&path) || is_stream(path)),
        "scanned pages are recognised in a file: save the document, and give its path"
    );
    let open = |path: &PathBuf| {
        let shown = path.display().to_string();
        let password = how.password.as_deref();
        let opened = match how.recognise.is_empty() {
            true if from_input(&path) => {
                Document::from_reader(std::io::stdin(), "standard input", password)
            }
            true if is_stream(path) => {
                let stream =
                    File::open(path).with_context(|| format!("{shown} could not be read"))?;
                Document::from_reader(stream, &shown, password)
            }
            true => Document::open_with(path, &shown, password),
            false => recognise(path, &shown, &how.recognise),
        };
        opened.map_err(|error| match error.why {
            Why::PdfEncrypted if !how.recognise.is_empty() => anyhow!(
                "{shown} is protected by a password: save a copy without one in a PDF viewer, and have that recognised"
            ),
            Why::PdfEncrypted => {
                anyhow!("{shown} is protected by a password: give it with --password")
            }
            _ if error.pages_to_recognise().is_some() => anyhow!(
                "{error}; with --recognise eng, or another language, Kept does so where tesseract is installed"
            ),
            _ => error.into(),
        })
    };
    let documents = paths.iter().map(open);
    Ok(Document::join(documents.collect::<Result<_, _>>()?))
}

/// Opens a document with the text of its scanned pages recognised, under a progress bar.
fn recognise(path: &Path, shown: &str, languages: &[String]) -> Result<Document, DocumentError> {
    let bar = OnceLock::new();
    let progress = |done, pages| {
        let bar = bar.get_or_init(|| CountBar::new(pages));
        if done > 0 {
            bar.next("pages recognised");
        }
    };
    let recognition = Recognition {
        languages,
        progress: &progress,
        is_stopped: &|| false,
    };
    let document = Document::recognise(path, shown, &recognition);
    if let Some(bar) = bar.get() {
        bar.clear();
    }
    document
}

/// Asks questions about one document and prints the answers.
pub struct Asker<'a> {
    engine: &'a Engine,
    /// Print the prompt too.
    show_prompt: bool,
    /// Print one JSON object per answer.
    json: bool,
    /// Bytes of the program and the document.
    before: u64,
    /// Highest expected peak of all questions so far.
    expected: u64,
    /// Why there are no vaults; taken once reported.
    trouble: Option<String>,
    /// Notes about the model; taken once printed.
    notes: String,
}

/// An answer that was printed as it was written.
pub struct Answered {
    pub answer: Answer,
    /// Why it could not be printed.
    pub unprinted: Option<anyhow::Error>,
    /// Notes that were printed before it.
    said: Vec<Note>,
    prompt: Option<String>,
}

impl<'a> Asker<'a> {
    pub fn new(engine: &'a Engine, document: &Document, reading: &Reading<'_>) -> Self {
        Self {
            engine,
            show_prompt: false,
            json: false,
            before: engine.program_bytes() + document.text.len() as u64,
            expected: 0,
            trouble: reading.trouble.clone(),
            notes: reading.model.notes(document),
        }
    }

    /// The engine that answers.
    pub fn engine(&self) -> &'a Engine {
        self.engine
    }

    /// Prints one JSON object per answer, and the prompt too.
    pub fn with_output(self, json: bool, show_prompt: bool) -> Self {
        Self {
            json,
            show_prompt,
            ..self
        }
    }

    /// Asks one question; without `json`, prints the answer while it is written.
    pub fn ask(&mut self, ask: &Ask<'_>, stop: &Stop) -> anyhow::Result<Answered> {
        let live = !self.json;
        let to_terminal = std::io::stdout().is_terminal();
        let bar = ReadingBar::new();
        let mut printed: anyhow::Result<()> = Ok(());
        let mut said = Vec::new();
        let notes = &mut self.notes;
        let answer = self.engine.ask(
            ask,
            &mut |event| {
                if !notes.is_empty() {
                    bar.clear();
                    output::say(&std::mem::take(notes));
                }
                match event {
                    // Printed before a prefill that may take minutes. With --json the choice is part of the output.
                    Event::Chosen { note } if live => {
                        output::say(&output::printable(&format!("note: {note}\n")));
                        said.push(note.clone());
                    }
                    Event::Read { .. } => bar.clear(),
                    Event::Token { text } => {
                        if live && printed.is_ok() {
                            printed = if to_terminal {
                                output::print_text(&output::printable(text))
                            } else {
                                output::print_text(text)
                            };
                            if printed.is_err() {
                                stop.request();
                            }
                        }
                    }
                    event => bar.event(&event),
                }
            },
            stop,
        );
        bar.clear();
        let mut answer = answer?;
        answer.notes.extend(self.trouble.take().map(Note::from));
        self.expected = self.expected.max(self.before + answer.ledger.peak());
        let prompt = if self.show_prompt {
            Some(answer.prompt.render(self.engine.model(), &ask.text())?)
        } else {
            None
        };
        Ok(Answered {
            answer,
            unprinted: printed.err(),
            said,
            prompt,
        })
    }

    /// Prints what the answer cost, or all of it as one JSON object.
    pub fn report(&self, ask: &Ask<'_>, answered: &Answered) -> anyhow::Result<()> {
        let answer = &answered.answer;
        if self.json {
            return self.print_json(ask, answered);
        }
        if answered.unprinted.is_some() {
            return Ok(());
        }
        output::print_text("\n")?;
        if let Some(prompt) = &answered.prompt {
            output::say(&output::printable(&format!("\nprompt: {prompt}\n")));
        }
        let summary = summary(
            ask.document,
            answer,
            &map::label(ask.method, answer),
            &answered.said,
            gpu_name(self.engine),
            self.expected,
        );
        output::say(&format!("\n{summary}"));
        Ok(())
    }

    fn print_json(&self, ask: &Ask<'_>, answered: &Answered) -> anyhow::Result<()> {
        let answer = &answered.answer;
        output::print_json(&AskJson {
            question: ask.question,
            turns: answer.prompt.turns.len(),
            answer: &answer.text,
            report: &answer.report,
            model: self.engine.model().name(),
            label: &map::label(ask.method, answer),
            chosen: answer.chosen.as_ref(),
            rows_per_layer: &answer.rows_per_layer,
            expected_peak_bytes: self.expected,
            ledger: answer.ledger,
            prefill_tokens_per_second: answer.vault.tokens_read as f64
                / answer.report.prefill_seconds,
            decode_tokens_per_second: answer.report.decode_tokens_per_second(),
            device: gpu_name(self.engine).unwrap_or("cpu"),
            sources: &answer.sources,
            citations: &answer.citations,
            vault: &answer.vault,
            notes: answer.notes.iter().map(Note::to_string).collect(),
            prompt: answered.prompt.clone(),
        })
    }
}

/// The name of the GPU, if the model runs on one.
fn gpu_name(engine: &Engine) -> Option<&str> {
    engine.uses_gpu().then(|| engine.computes_on())
}

/// The passages that the answer stands on, and those that it perhaps used: a line for each.
fn passages(document: &Document, answer: &Answer) -> String {
    let mut text = String::new();
    for (i, source) in answer.sources.iter().enumerate() {
        let is_cited = answer.citations.iter().any(|citation| citation.source == i);
        let from = if is_cited { "from" } else { "perhaps from" };
        let named = source.within.as_ref();
        let named = named.map_or(String::new(), |within| format!("{}: ", within.document));
        let noun = document.page_noun_at(source.start);
        let page = (source.page).map_or(String::new(), |page| format!("{noun} {page}: "));
        let passage = source.text.split_whitespace().collect::<Vec<_>>().join(" ");
        text += &format!("{from} {named}{page}“{passage}”\n");
    }
    text
}

/// The cost of the answer in three lines, its passages, and the answer's notes that are not yet in `said`. `expected` is
/// the expected peak in bytes; `gpu` is the device if it is a GPU.
fn summary(
    document: &Document,
    answer: &Answer,
    method: &str,
    said: &[Note],
    gpu: Option<&str>,
    expected: u64,
) -> String {
    let mean = answer.map.mean_rows();
    let mut text = format!(
        "{method}: kept {} of {} tokens per head · {} cache {} instead of {} ({:.0} %)\n",
        count(mean.round() as usize),
        count(answer.prompt.len()),
        answer.report.cache,
        bytes(answer.report.kv_bytes),
        bytes(answer.report.kv_bytes_full),
        100.0 * answer.report.kv_bytes as f64 / answer.report.kv_bytes_full.max(1) as f64,
    );
    if answer.ledger.tables > 0 {
        text += &format!("in addition tables of {}\n", bytes(answer.ledger.tables));
    }
    match answer.prompt.turns.len() {
        0 => {}
        1 => text += "the model saw 1 earlier question and its answer\n",
        turns => text += &format!("the model saw {turns} earlier questions and their answers\n"),
    }
    if answer.vault.used {
        text += &format!(
            "{} tokens from the vault · ",
            count(answer.vault.tokens_from_vault),
        );
    }
    text += &format!(
        "read in {} ({:.0} tokens/s) · answered at {:.1} tokens/s · peak memory {} (expected {}){}\n",
        duration(answer.report.prefill_seconds),
        answer.vault.tokens_read as f64 / answer.report.prefill_seconds,
        answer.report.decode_tokens_per_second(),
        answer.report.peak_bytes.map_or("unknown".into(), bytes),
        bytes(expected),
        match gpu {
            None => String::new(),
            Some(gpu) => format!(" · on {gpu}, {} of it", bytes(answer.ledger.gpu)),
        },
    );
    text += &passages(document, answer);
    match answer.report.finish {
        Finish::End => {}
        Finish::Length => text += "note: the answer reached --max-tokens\n",
        Finish::Context => text += "note: the answer reached the end of the model's context\n",
        Finish::Stopped => text += "note: the answer was stopped before its end\n",
        Finish::Repetition => {
            text += "note: the answer began to repeat itself and was stopped; ask in other words, or set --repeat-penalty 1.1\n";
        }
    }
    for note in answer.notes.iter().filter(|note| !said.contains(note)) {
        text += &format!("note: {note}\n");
    }
    output::printable(&text)
}
