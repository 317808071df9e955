//! `kept chat`: a conversation. Each question sees the earlier ones; the document comes from the vault.

mod interrupt;

use std::io::{BufRead, ErrorKind, IsTerminal};
use std::path::{Path, PathBuf};

use kept_engine::documents::Document;
use kept_engine::{Answer, Ask, MethodSpec, Sampling, Turn};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde::Deserialize;

use crate::arguments::{ChatArguments, Reading, method_or_auto};
use crate::ask::{Asker, STANDARD_INPUT, open_documents};
use crate::{is_stopped, map, output, paint};
use interrupt::Interrupt;

/// The help of the interactive conversation.
const HELP: &str = "\
/method NAME     the method of the next answers: auto, full, snapkv[w=8]
/budget SIZE     what they may keep: 25%, 512, 64MiB; without a size the default
/alone QUESTION  ask without the earlier questions and answers
/regenerate      answer the last question again, with the present method and budget
/map [FILE]      show what the last answer kept of document and earlier turns; FILE.html, FILE.json: write it
/save FILE       write the conversation as Markdown
/quit            end; so does Ctrl-D
";

/// A question of the input with `--json`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    question: String,
    /// As `--method`, for this and later questions.
    #[serde(default)]
    method: Option<String>,
    /// As `--budget`, for this and later questions; empty for the default.
    #[serde(default)]
    budget: Option<String>,
    /// The model does not see earlier turns.
    #[serde(default)]
    alone: bool,
}

/// The last question that was answered.
struct Last {
    question: String,
    answer: Answer,
    /// The method that was asked for.
    method: MethodSpec,
    /// The model saw no earlier turns.
    alone: bool,
    /// It is the last of the conversation's turns: an answer of thoughts alone is none.
    is_turn: bool,
}

/// A conversation.
struct Chat<'a> {
    arguments: &'a ChatArguments,
    document: &'a Document,
    asker: Asker<'a>,
    /// Method and budget are those of the next answer.
    reading: Reading<'a>,
    sampling: Sampling,
    turns: Vec<Turn>,
    last: Option<Last>,
    interrupt: Interrupt,
}

pub fn run(arguments: &ChatArguments) -> anyhow::Result<()> {
    arguments.answer.check()?;
    let reading = arguments.reading.check()?;
    let engine = reading.open()?;
    anyhow::ensure!(
        (arguments.document.iter()).all(|path| path.as_os_str() != STANDARD_INPUT),
        "the standard input has the questions of the conversation: give the document as a file"
    );
    let document = open_documents(&arguments.document, &arguments.opening)?;
    let interactive = !arguments.json && std::io::stdin().is_terminal();
    let interrupt = Interrupt::default();
    interrupt.install(interactive);
    let mut chat = Chat {
        arguments,
        document: &document,
        asker: Asker::new(&engine, &document, &reading)
            .with_output(arguments.json, arguments.answer.show_prompt),
        reading,
        sampling: arguments.answer.sampling(),
        turns: Vec::new(),
        last: None,
        interrupt,
    };
    if interactive {
        chat.converse()
    } else {
        chat.read_lines()
    }
}

impl Chat<'_> {
    /// Asks every line of the standard input. A refused line does not end the conversation.
    ///
    /// # Errors
    /// If the input cannot be read, or a line was refused; with `--json` the output says so in its place.
    fn read_lines(&mut self) -> anyhow::Result<()> {
        let mut refused = 0;
        for line in std::io::stdin().lock().split(b'\n') {
            let line = line?;
            match self.read_line(&line) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    refused += 1;
                    self.refuse(&error)?;
                }
            }
        }
        let lines = if refused == 1 { "line" } else { "lines" };
        let place = if self.arguments.json {
            "in the output"
        } else {
            "above"
        };
        anyhow::ensure!(
            refused == 0,
            "{refused} {lines} of the input could not be answered; the reasons are {place}"
        );
        Ok(())
    }

    /// Says why a line of the standard input was not answered.
    fn refuse(&self, error: &anyhow::Error) -> anyhow::Result<()> {
        if !self.arguments.json {
            say_error(error);
            return Ok(());
        }
        let error = format!("{error:#}");
        output::print_json(&serde_json::json!({"error": error}))
    }

    /// Answers one line of the standard input; false ends the conversation.
    fn read_line(&mut self, line: &[u8]) -> anyhow::Result<bool> {
        let line = std::str::from_utf8(line)
            .map_err(|error| anyhow::anyhow!("this line is not UTF-8 text: {error}"))?;
        let line = line.trim_start_matches('\u{FEFF}').trim();
        if line.is_empty() {
            return Ok(true);
        }
        if !self.arguments.json {
            return self.command_or_question(line);
        }
        if line.starts_with('{') {
            self.ask_json(line)?;
        } else if let Some(command) = line.strip_prefix('/') {
            anyhow::bail!(
                "/{command}: with --json there are no commands; a question that begins with / is written as {{\"question\": ...}}"
            );
        } else {
            self.ask(line, false)?;
        }
        Ok(true)
    }

    /// Asks a question with its settings; if it is refused, the earlier settings remain.
    fn ask_json(&mut self, line: &str) -> anyhow::Result<()> {
        let request: Request = serde_json::from_str(line).map_err(|error| {
            anyhow::anyhow!(
                "this line is no question: {error}; write text, or an object such as {{\"question\": \"Why?\", \"budget\": \"25%\"}}"
            )
        })?;
        let settings = (self.reading.method.clone(), self.reading.budget);
        let asked = self
            .apply(&request)
            .and_then(|()| self.ask(&request.question, request.alone));
        if asked.is_err() {
            (self.reading.method, self.reading.budget) = settings;
        }
        asked
    }

    fn apply(&mut self, request: &Request) -> anyhow::Result<()> {
        if let Some(method) = &request.method {
            self.set_method(method)?;
        }
        if let Some(budget) = &request.budget {
            self.set_budget(budget)?;
        }
        Ok(())
    }

    /// Reads questions from the terminal, with line editing and history.
    fn converse(&mut self) -> anyhow::Result<()> {
        let mut editor = DefaultEditor::new()?;
        let about = match self.document.name.as_str() {
            "" => "no document".to_owned(),
            name => output::printable(name),
        };
        output::say(&format!(
            "a conversation about {about}; /help lists the commands, Ctrl-D ends it\n"
        ));
        loop {
            let line = match editor.readline("> ") {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => {
                    output::say("Ctrl-D or /quit ends the conversation\n");
                    continue;
                }
                Err(ReadlineError::Eof) => return Ok(()),
                Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => {
                    output::say("error: this line is not UTF-8 text\n");
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            // A history that cannot be extended is no reason to end.
            let _ = editor.add_history_entry(line);
            match self.command_or_question(line) {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => say_error(&error),
            }
        }
    }

    /// Runs a command or asks a question; false ends the conversation.
    fn command_or_question(&mut self, line: &str) -> anyhow::Result<bool> {
        let Some(command) = line.strip_prefix('/') else {
            self.ask(line, false)?;
            return Ok(true);
        };
        let words = command.split_once(char::is_whitespace);
        let (name, value) = words.unwrap_or((command, ""));
        match (name, value.trim()) {
            ("quit", _) => return Ok(false),
            ("help", _) => output::say(HELP),
            ("method", "") => {
                anyhow::bail!("/method needs the name of a method, for example snapkv")
            }
            ("method", value) => self.set_method(value)?,
            ("budget", value) => self.set_budget(value)?,
            ("alone", "") => anyhow::bail!("/alone needs a question"),
            ("alone", value) => self.ask(value, true)?,
            ("regenerate", _) => self.regenerate()?,
            ("map", "") => self.print_map()?,
            ("map", value) => self.write_map(Path::new(value))?,
            ("save", "") => anyhow::bail!("/save needs the name of a file"),
            ("save", value) => self.save(Path::new(value))?,
            _ => anyhow::bail!("there is no command /{command}; /help lists the commands"),
        }
        Ok(true)
    }

    /// An empty budget is the default.
    fn set_budget(&mut self, budget: &str) -> anyhow::Result<()> {
        self.reading.budget = match budget {
            "" => None,
            given => Some(given.parse()?),
        };
        Ok(())
    }

    fn set_method(&mut self, name: &str) -> anyhow::Result<()> {
        self.reading.method = method_or_auto(Some(name), "")?;
        Ok(())
    }

    /// Asks a question; `alone`: the model does not see the earlier turns. An answer that was stopped counts as it is.
    fn ask(&mut self, question: &str, alone: bool) -> anyhow::Result<()> {
        let ask = Ask {
            document: self.document,
            turns: if alone { &[] } else { &self.turns },
            question,
            method: &self.reading.method,
            budget: self.reading.budget,
            sampling: &self.sampling,
            max_tokens: self.arguments.answer.max_tokens,
            thinking: self.arguments.answer.thinking,
            limits: self.reading.limits,
            vault: self.reading.vaults(),
        };
        let asker = &mut self.asker;
        let answered = match self.interrupt.while_answering(|stop| asker.ask(&ask, stop)) {
            Err(error) if is_stopped(&error) && !self.arguments.json => {
                output::say("stopped before the answer began\n");
                return Ok(());
            }
            answered => answered?,
        };
        self.asker.report(&ask, &answered)?;
        if let Some(error) = answered.unprinted {
            return Err(error);
        }
        let turn = Turn::new(question, &answered.answer.text);
        self.last = Some(Last {
            question: question.to_owned(),
            answer: answered.answer,
            method: self.reading.method.clone(),
            alone,
            is_turn: turn.is_some(),
        });
        self.turns.extend(turn);
        Ok(())
    }

    /// Asks the last answered question again. At a temperature above 0 another seed gives another answer.
    fn regenerate(&mut self) -> anyhow::Result<()> {
        let Some(last) = self.last.take() else {
            anyhow::bail!("there is no answer yet");
        };
        let turn = self.turns.pop_if(|_| last.is_turn);
        self.sampling.seed = self.sampling.seed.wrapping_add(1);
        let asked = self.ask(&last.question, last.alone);
        if self.last.is_none() {
            // Not answered: the earlier answer stands.
            self.turns.extend(turn);
            self.last = Some(last);
        }
        asked
    }

    fn print_map(&self) -> anyhow::Result<()> {
        let Some(Last { answer, .. }) = &self.last else {
            anyhow::bail!("there is no answer yet");
        };
        self.has_map(answer)?;
        let colored = paint::use_color(self.arguments.color, std::io::stdout().is_terminal());
        map::print(self.document, answer, colored)
    }

    /// Whether there is anything to paint.
    fn has_map(&self, answer: &Answer) -> anyhow::Result<()> {
        anyhow::ensure!(
            !self.document.text.is_empty() || answer.prompt.earlier.tokens() > 0,
            "there is no document and no earlier turn; kept chat --document FILE opens a document"
        );
        Ok(())
    }

    /// Writes the map as a page for a browser or as JSON.
    fn write_map(&self, path: &Path) -> anyhow::Result<()> {
        let Some(Last {
            question,
            answer,
            method,
            ..
        }) = &self.last
        else {
            anyhow::bail!("there is no answer yet");
        };
        self.has_map(answer)?;
        self.check_target(path)?;
        let extension = path.extension().and_then(|extension| extension.to_str());
        match extension {
            Some("html") => map::write_page(path, self.document, question, method, answer),
            Some("json") => map::write_json(path, self.document, self.asker.engine(), answer),
            _ => anyhow::bail!(
                "a map is written as .html or .json, not as {}",
                path.display()
            ),
        }
    }

    /// Refuses to write over the model or a document.
    fn check_target(&self, path: &Path) -> anyhow::Result<()> {
        let documents = self.arguments.document.iter();
        let inputs = documents
            .chain([&self.reading.model.path])
            .map(PathBuf::as_path);
        let inputs: Vec<&Path> = inputs.collect();
        output::check_target(path, &inputs)
    }

    /// Writes the conversation as Markdown.
    fn save(&self, path: &Path) -> anyhow::Result<()> {
        self.check_target(path)?;
        let mut text = match self.document.name.as_str() {
            "" => "# Conversation\n".to_owned(),
            name => format!("# Conversation about {name}\n"),
        };
        for Turn { question, answer } in &self.turns {
            text += &format!("\n## {question}\n\n{answer}\n");
        }
        output::write_file(path, |file| file.write_all(text.as_bytes()))?;
        output::say(&output::printable(&format!(
            "the conversation is in {}\n",
            path.display()
        )));
        Ok(())
    }
}

fn say_error(error: &anyhow::Error) {
    output::say(&output::printable(&format!("error: {error:#}\n")));
}
