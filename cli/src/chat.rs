//! `kept chat`: a conversation. Each question sees the earlier ones; the document comes from the vault.

use std::io::{BufRead, IsTerminal};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use kept_engine::documents::Document;
use kept_engine::kernels::Stop;
use kept_engine::policies::Budget;
use kept_engine::vault::Vaults;
use kept_engine::{Answer, Ask, Engine, EngineError, Limits, MethodSpec, Sampling, Turn};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde::{Deserialize, Serialize};

use crate::arguments::ChatArguments;
use crate::ask::{Asker, open_documents};
use crate::model::Answering;
use crate::{map, output, paint};

/// The help of the interactive conversation.
const HELP: &str = "\
/method NAME     the method of the next answers: auto, full, snapkv[w=8]
/budget SIZE     what they may keep: 25%, 512, 64MiB; without a size the default
/alone QUESTION  ask without the earlier questions and answers
/regenerate      answer the last question again, with the present method and budget
/map             show what the last answer kept of the document
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
    /// As `--budget`, for this and later questions.
    #[serde(default)]
    budget: Option<String>,
    /// The model does not see earlier turns.
    #[serde(default)]
    alone: bool,
}

/// A question that was not answered, with `--json`.
#[derive(Serialize)]
struct ErrorJson {
    error: String,
}

/// What Ctrl-C stops: the answer that is being written, if any.
#[derive(Clone, Default)]
struct Interrupt(Arc<Mutex<Option<Stop>>>);

impl Interrupt {
    /// From now on Ctrl-C stops an answer, and ends the program if none is being written or it was pressed before.
    fn install(&self) {
        let running = self.clone();
        let installed = ctrlc::set_handler(move || match running.take() {
            Some(stop) => stop.request(),
            None => std::process::exit(i32::from(crate::STOPPED)),
        });
        if let Err(error) = installed {
            tracing::warn!(%error, "Ctrl-C ends the program");
        }
    }

    fn take(&self) -> Option<Stop> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// A flag that the next Ctrl-C requests.
    fn begin(&self) -> Stop {
        let stop = Stop::new();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(stop.clone());
        stop
    }
}

/// A conversation.
struct Chat<'a> {
    arguments: &'a ChatArguments,
    document: &'a Document,
    asker: Asker<'a>,
    vaults: Option<Vaults<'a>>,
    method: MethodSpec,
    budget: Option<Budget>,
    sampling: Sampling,
    limits: Limits,
    turns: Vec<Turn>,
    /// The last answer, and whether the model saw no earlier turns.
    last: Option<(Answer, bool)>,
    interrupt: Interrupt,
}

pub fn run(arguments: &ChatArguments) -> anyhow::Result<()> {
    arguments.answer.check()?;
    let (folder, trouble) = arguments.vault.open()?;
    let method = arguments.engine.method_or_auto()?;
    let budget = arguments.engine.budget()?;
    let limits = arguments.limits.limits()?;
    let model = Answering::resolve(arguments.engine.model.as_deref())?;
    let engine: Engine = arguments.engine.open(&model.path)?;
    let document = open_documents(&arguments.document)?;
    let vaults = folder.as_ref();
    let interrupt = Interrupt::default();
    interrupt.install();
    let mut chat = Chat {
        arguments,
        document: &document,
        asker: Asker::new(&engine, &document, trouble, model.notes(&document))
            .with_output(arguments.json, arguments.answer.show_prompt),
        vaults: vaults.map(|&(ref folder, kind)| Vaults { folder, kind }),
        method,
        budget,
        sampling: arguments.answer.sampling(),
        limits,
        turns: Vec::new(),
        last: None,
        interrupt,
    };
    if arguments.json || !std::io::stdin().is_terminal() {
        chat.read_lines()
    } else {
        chat.converse()
    }
}

impl Chat<'_> {
    /// Asks every line of the standard input.
    fn read_lines(&mut self) -> anyhow::Result<()> {
        for line in std::io::stdin().lock().lines() {
            let line = line?;
            let line = line.trim();
            if line.is_empty() {
                continue;
            }
            if !self.arguments.json {
                if self.command_or_question(line)? {
                    continue;
                }
                return Ok(());
            }
            if let Err(error) = self.ask_json(line) {
                let error = format!("{error:#}");
                output::print_json(&ErrorJson { error })?;
            }
        }
        Ok(())
    }

    fn ask_json(&mut self, line: &str) -> anyhow::Result<()> {
        if !line.starts_with('{') {
            return self.ask(line, false);
        }
        let request: Request = serde_json::from_str(line)
            .map_err(|error| anyhow::anyhow!("this line is no question: {error}"))?;
        if let Some(method) = &request.method {
            self.set_method(method)?;
        }
        if let Some(budget) = &request.budget {
            self.budget = Some(budget.parse()?);
        }
        self.ask(&request.question, request.alone)
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
                Err(error) => output::say(&output::printable(&format!("error: {error:#}\n"))),
            }
        }
    }

    /// Runs a command or asks a question; false ends the conversation.
    fn command_or_question(&mut self, line: &str) -> anyhow::Result<bool> {
        let Some(command) = line.strip_prefix('/') else {
            self.ask(line, false)?;
            return Ok(true);
        };
        let (name, value) = command.split_once(' ').unwrap_or((command, ""));
        match (name, value.trim()) {
            ("quit", "") => return Ok(false),
            ("help", _) => output::say(HELP),
            ("method", value) => self.set_method(value)?,
            ("budget", "") => self.budget = None,
            ("budget", value) => self.budget = Some(value.parse()?),
            ("alone", value) => self.ask(value, true)?,
            ("regenerate", "") => self.regenerate()?,
            ("map", "") => self.print_map()?,
            ("save", "") => anyhow::bail!("/save needs the name of a file"),
            ("save", value) => self.save(Path::new(value))?,
            _ => anyhow::bail!("there is no command /{command}; /help lists the commands"),
        }
        Ok(true)
    }

    fn set_method(&mut self, name: &str) -> anyhow::Result<()> {
        let method: MethodSpec = name.parse()?;
        if method.name != kept_engine::AUTO {
            method.build()?;
        }
        self.method = method;
        Ok(())
    }

    /// Asks a question; `alone`: the model does not see the earlier turns. An answer that was stopped counts as it is.
    fn ask(&mut self, question: &str, alone: bool) -> anyhow::Result<()> {
        let stop = self.interrupt.begin();
        let ask = Ask {
            document: self.document,
            turns: if alone { &[] } else { &self.turns },
            question,
            method: &self.method,
            budget: self.budget,
            sampling: &self.sampling,
            max_tokens: self.arguments.answer.max_tokens,
            thinking: self.arguments.answer.thinking,
            limits: self.limits,
            vault: self.vaults,
        };
        let answered = match self.asker.ask(&ask, &stop) {
            Err(error) if is_stopped(&error) && !self.arguments.json => {
                output::say("stopped before the answer began\n");
                return Ok(());
            }
            answered => answered?,
        };
        self.asker.report(&ask, &answered)?;
        self.interrupt.take();
        if let Some(error) = answered.unprinted {
            return Err(error);
        }
        self.turns.push(Turn::new(question, &answered.answer.text));
        self.last = Some((answered.answer, alone));
        Ok(())
    }

    fn regenerate(&mut self) -> anyhow::Result<()> {
        let Some(turn) = self.turns.pop() else {
            anyhow::bail!("there is no answer yet");
        };
        let alone = self.last.as_ref().is_some_and(|(_, alone)| *alone);
        let count = self.turns.len();
        let asked = self.ask(&turn.question, alone);
        if self.turns.len() == count {
            // Not answered: the earlier answer stands.
            self.turns.push(turn);
        }
        asked
    }

    fn print_map(&self) -> anyhow::Result<()> {
        let Some((answer, _)) = &self.last else {
            anyhow::bail!("there is no answer yet");
        };
        anyhow::ensure!(
            !self.document.text.is_empty(),
            "there is no document; kept chat --document FILE opens one"
        );
        let colored = paint::use_color(self.arguments.color, std::io::stdout().is_terminal());
        map::print(self.document, answer, colored)
    }

    /// Writes the conversation as Markdown.
    fn save(&self, path: &Path) -> anyhow::Result<()> {
        let inputs: Vec<&Path> = self
            .arguments
            .document
            .iter()
            .map(|p| p.as_path())
            .collect();
        output::check_target(path, &inputs)?;
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

fn is_stopped(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(EngineError::Stopped))
}
