//! The content of a file in the vault folder, from its footer.

use std::path::Path;

use kept_kernels::PackedRows;
use serde::Deserialize;

use super::end::EndFooter;
use super::footer::footer;
use super::format::Footer;
use super::making::open_to_read;

/// The content of a vault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holds {
    /// Keys and values of all tokens, in this row format.
    Rows(PackedRows),
    /// Keys and values of the turns of a conversation, in this row format.
    Turns(PackedRows),
    /// The end state of streaming mode; with the settings of streaming mode, in words.
    End(String),
}

/// The content of a file in the vault folder, for lists.
pub(super) struct Described {
    pub(super) document: String,
    pub(super) model: String,
    pub(super) tokens: usize,
    pub(super) holds: Holds,
}

/// The footer of either kind of file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Either {
    Rows(Footer),
    End(EndFooter),
}

/// Describes the file at `path`; `None` if it is damaged.
pub(super) fn describe(path: &Path) -> std::io::Result<Option<Described>> {
    let mut file = open_to_read(path)?;
    let bytes = file.metadata()?.len();
    let Ok((footer, _)) = footer(&mut file, bytes)? else {
        return Ok(None);
    };
    Ok(match footer {
        Either::Rows(footer) => footer.is_valid().then_some(Described {
            document: footer.document,
            model: footer.model,
            tokens: footer.shape.tokens,
            holds: match footer.shape.from {
                Some(_) => Holds::Turns(footer.shape.kind),
                None => Holds::Rows(footer.shape.kind),
            },
        }),
        Either::End(EndFooter { of, .. }) => Some(Described {
            document: of.document,
            model: of.model,
            tokens: of.tokens,
            holds: Holds::End(of.how),
        }),
    })
}
