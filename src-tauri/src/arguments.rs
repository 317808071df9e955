//! The command line: `kept-app [FILE...] [--model MODEL]`. Pure parsing: no file is opened.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The output of `--help`.
pub const HELP: &str = "\
Kept: ask a long document on your own computer and see which words the model kept.

Usage: kept-app [FILE...] [--model MODEL]

  FILE                a document to open: PDF, text, Markdown, source code, Office, EPUB, HTML, e-mail; questions
                      cover all documents that are named
  --model MODEL       a model to open: a file, or a name of `kept models list`; otherwise the one chosen
                      last, at first one found on this computer, or the built-in one
  --help              this
  --version           the version

Environment: KEPT_LOG=debug writes a log to standard error; KEPT_WORKER names another engine program.
Without a display, use the terminal program: kept ask --document FILE --question QUESTION
";

/// What to open at the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arguments {
    /// Documents to open together.
    pub documents: Vec<PathBuf>,
    /// A model to open.
    pub model: Option<NamedModel>,
}

/// A model as the user named it: a file, or one on this computer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedModel {
    /// As written.
    pub name: OsString,
    /// The file, if the name is that of one.
    pub file: PathBuf,
}

/// The parsed command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandLine {
    /// Open the app window.
    Window(Arguments),
    /// Print the help.
    Help,
    /// Print the version.
    Version,
}

/// Parses the arguments after the program's name; relative paths are resolved against `folder`.
///
/// # Errors
/// One sentence that names the argument and the solution.
pub fn parse(
    arguments: impl IntoIterator<Item = OsString>,
    folder: &Path,
) -> Result<CommandLine, String> {
    let mut found = Arguments::default();
    let mut arguments = arguments.into_iter();
    let mut only_files = false;
    while let Some(argument) = arguments.next() {
        let word = argument.to_str().filter(|_| !only_files).unwrap_or("");
        match word {
            "--help" | "-h" => return Ok(CommandLine::Help),
            "--version" | "-V" => return Ok(CommandLine::Version),
            "--" => only_files = true,
            "--model" => match arguments.next() {
                Some(model) if !model.is_empty() => set_model(&mut found, folder, &model)?,
                _ => {
                    return Err(
                        "--model needs a file or a name; write for example --model model.gguf"
                            .to_owned(),
                    );
                }
            },
            _ => match word.strip_prefix("--model=") {
                Some(model) if !model.is_empty() => {
                    set_model(&mut found, folder, &OsString::from(model))?;
                }
                _ if word.starts_with('-') && word.len() > 1 => {
                    return Err(format!(
                        "unknown option '{word}'; kept-app takes [FILE...] [--model MODEL], see --help"
                    ));
                }
                _ if argument.is_empty() => {
                    return Err("the name of the document is empty; give a file".to_owned());
                }
                _ => found.documents.push(folder.join(&argument)),
            },
        }
    }
    Ok(CommandLine::Window(found))
}

fn set_model(found: &mut Arguments, folder: &Path, model: &OsString) -> Result<(), String> {
    match found.model {
        None => {
            found.model = Some(NamedModel {
                name: model.clone(),
                file: folder.join(model),
            });
        }
        Some(_) => return Err("--model is given twice; give it once".to_owned()),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<CommandLine, String> {
        parse(words.iter().map(OsString::from), Path::new("/home/ann"))
    }

    #[test]
    fn paths_are_made_whole() {
        let window = |documents: &[&str], model: Option<[&str; 2]>| {
            Ok(CommandLine::Window(Arguments {
                documents: documents.iter().map(PathBuf::from).collect(),
                model: model.map(|[name, file]| NamedModel {
                    name: name.into(),
                    file: file.into(),
                }),
            }))
        };
        assert_eq!(read(&[]), window(&[], None));
        assert_eq!(read(&["é a.txt"]), window(&["/home/ann/é a.txt"], None));
        assert_eq!(
            read(&["/b.pdf", "--model", "m.gguf", "c.txt"]),
            window(
                &["/b.pdf", "/home/ann/c.txt"],
                Some(["m.gguf", "/home/ann/m.gguf"])
            )
        );
        assert_eq!(read(&["--model=/m"]), window(&[], Some(["/m", "/m"])));
        assert_eq!(read(&["--", "--help"]), window(&["/home/ann/--help"], None));
        assert_eq!(read(&["--version"]), Ok(CommandLine::Version));
        assert_eq!(read(&["a", "-h"]), Ok(CommandLine::Help));
    }

    #[test]
    fn nonsense_is_named() {
        for (words, named) in [
            (&["--colour"][..], "'--colour'"),
            (&["--model"], "--model needs a file or a name"),
            (&["--model="], "'--model='"),
            (&[""], "empty"),
            (&["--model", "a", "--model", "b"], "twice"),
        ] {
            let error = read(words).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
