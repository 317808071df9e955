//! The command line: `kept-app [FILE...] [--model MODEL]`.

use std::path::PathBuf;

use clap::Parser;

/// Kept: ask a long document on your own computer and see which words the model kept.
#[derive(Debug, Clone, PartialEq, Eq, Parser)]
#[command(
    name = "kept-app",
    version,
    after_help = "\
Environment: KEPT_LOG=debug writes a log to standard error; KEPT_WORKER names another engine program.
Without a display, use the terminal program: kept ask --document FILE --question QUESTION"
)]
pub struct Arguments {
    /// A document to open: PDF, text, Markdown, source code, Office, EPUB, HTML, e-mail; questions cover all documents
    /// that are named.
    #[arg(value_name = "FILE")]
    pub documents: Vec<PathBuf>,
    /// A model to open: a file, or a name of `kept models list`; otherwise the one chosen last, at first one found on
    /// this computer, or the built-in one.
    #[arg(long)]
    pub model: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    fn read(words: &[&str]) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from([&["kept-app"], words].concat())
    }

    #[test]
    fn documents_and_model_are_read() {
        let read_as = |words: &[&str], documents: &[&str], model: Option<&str>| {
            let arguments = read(words).expect("valid arguments");
            let expected = Arguments {
                documents: documents.iter().map(PathBuf::from).collect(),
                model: model.map(PathBuf::from),
            };
            assert_eq!(arguments, expected);
        };
        read_as(&[], &[], None);
        read_as(&["é a.txt"], &["é a.txt"], None);
        read_as(
            &["/b.pdf", "--model", "m.gguf", "c.txt"],
            &["/b.pdf", "c.txt"],
            Some("m.gguf"),
        );
        read_as(&["--model=/m"], &[], Some("/m"));
        read_as(&["--", "--help"], &["--help"], None);
        let refused = |words: &[&str]| read(words).unwrap_err().kind();
        assert_eq!(refused(&["--version"]), ErrorKind::DisplayVersion);
        assert_eq!(refused(&["a", "-h"]), ErrorKind::DisplayHelp);
    }

    #[test]
    fn nonsense_is_named() {
        for (words, named) in [
            (&["--colour"][..], "'--colour'"),
            (&["--model"], "a value is required for '--model"),
            (&["--model="], "a value is required for '--model"),
            (&[""], "a value is required for '[FILE]"),
            (&["--model", "a", "--model", "b"], "multiple times"),
        ] {
            let error = read(words).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
