//! The command line: `kept-app [FILE] [--model FILE.gguf]`. Pure parsing: no file is opened.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The output of `--help`.
pub const HELP: &str = "\
Kept: ask a long document on your own computer and see which words the model kept.

Usage: kept-app [FILE] [--model FILE.gguf]

  FILE                a document to open: text, Markdown, source code or PDF
  --model FILE.gguf   a model to open; otherwise the one chosen last, at first the built-in one
  --help              this
  --version           the version

Environment: KEPT_LOG=debug writes a log to standard error; KEPT_WORKER names another engine program.
Without a display, use the terminal program: kept ask --document FILE --question QUESTION
";

/// What to open at the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arguments {
    /// A document to open.
    pub document: Option<PathBuf>,
    /// A model to open.
    pub model: Option<PathBuf>,
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
                        "--model needs a file; write for example --model model.gguf".to_owned()
                    );
                }
            },
            _ => match word.strip_prefix("--model=") {
                Some(model) if !model.is_empty() => {
                    set_model(&mut found, folder, &OsString::from(model))?;
                }
                _ if word.starts_with('-') && word.len() > 1 => {
                    return Err(format!(
                        "unknown option '{word}'; kept-app takes [FILE] [--model FILE.gguf], see --help"
                    ));
                }
                _ if argument.is_empty() => {
                    return Err("the name of the document is empty; give a file".to_owned());
                }
                _ => match &found.document {
                    None => found.document = Some(folder.join(&argument)),
                    Some(first) => {
                        return Err(format!(
                            "kept-app opens one document at a time, but was given {} and {}; give one",
                            first.display(),
                            Path::new(&argument).display()
                        ));
                    }
                },
            },
        }
    }
    Ok(CommandLine::Window(found))
}

fn set_model(found: &mut Arguments, folder: &Path, model: &OsString) -> Result<(), String> {
    match found.model {
        None => found.model = Some(folder.join(model)),
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
        let window = |document: Option<&str>, model: Option<&str>| {
            Ok(CommandLine::Window(Arguments {
                document: document.map(PathBuf::from),
                model: model.map(PathBuf::from),
            }))
        };
        assert_eq!(read(&[]), window(None, None));
        assert_eq!(read(&["é a.txt"]), window(Some("/home/ann/é a.txt"), None));
        assert_eq!(
            read(&["/b.pdf", "--model", "m.gguf"]),
            window(Some("/b.pdf"), Some("/home/ann/m.gguf"))
        );
        assert_eq!(read(&["--model=/m"]), window(None, Some("/m")));
        assert_eq!(
            read(&["--", "--help"]),
            window(Some("/home/ann/--help"), None)
        );
        assert_eq!(read(&["--version"]), Ok(CommandLine::Version));
        assert_eq!(read(&["a", "-h"]), Ok(CommandLine::Help));
    }

    #[test]
    fn nonsense_is_named() {
        for (words, named) in [
            (&["--colour"][..], "'--colour'"),
            (&["--model"], "--model needs a file"),
            (&["--model="], "'--model='"),
            (&["a", "b"], "/home/ann/a and b"),
            (&[""], "empty"),
            (&["--model", "a", "--model", "b"], "twice"),
        ] {
            let error = read(words).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
    }
}
