//! References to models on the hub: `owner/name`, `owner/name:FILE`, `owner/name:Q4_K_M`, or the address of a page.

use std::fmt;
use std::str::FromStr;

use serde_with::{DeserializeFromStr, SerializeDisplay};

use crate::HubError;

/// Longest name of an owner or a repository on the hub.
const MAX_NAME_LENGTH: usize = 96;

/// A repository: `owner/name`.
#[derive(
    Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, SerializeDisplay, DeserializeFromStr,
)]
pub struct RepoId {
    owner: String,
    name: String,
}

impl RepoId {
    /// The part before the slash.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The part after the slash.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

impl FromStr for RepoId {
    type Err = HubError;

    fn from_str(given: &str) -> Result<RepoId, HubError> {
        let parts = given.split_once('/');
        match parts.filter(|(owner, name)| is_repo_name(owner) && is_repo_name(name)) {
            Some((owner, name)) => Ok(RepoId {
                owner: owner.to_owned(),
                name: name.to_owned(),
            }),
            None => Err(bad(given)),
        }
    }
}

/// The hub's rule for names. It also excludes `..` and path separators from folder names of the cache.
fn is_repo_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let ends = |c: char| c == '-' || c == '.';
    (1..=MAX_NAME_LENGTH).contains(&name.len())
        && name.chars().all(fits)
        && !name.starts_with(ends)
        && !name.ends_with(ends)
        && !name.contains("--")
        && !name.contains("..")
}

/// A repository, and optionally a file or quantisation in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, SerializeDisplay, DeserializeFromStr)]
pub struct ModelRef {
    /// The repository.
    pub repo: RepoId,
    /// The file or quantisation after the colon.
    pub what: Option<String>,
}

impl fmt::Display for ModelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            Some(what) => write!(f, "{}:{what}", self.repo),
            None => self.repo.fmt(f),
        }
    }
}

impl FromStr for ModelRef {
    type Err = HubError;

    fn from_str(given: &str) -> Result<ModelRef, HubError> {
        let trimmed = given.trim();
        let schemeless = ["https://", "http://"]
            .iter()
            .find_map(|scheme| trimmed.strip_prefix(scheme));
        let rest = schemeless.unwrap_or(trimmed);
        let rest = ["huggingface.co/", "hf.co/"]
            .iter()
            .find_map(|host| rest.strip_prefix(host))
            .or_else(|| schemeless.is_none().then_some(rest))
            .ok_or_else(|| bad(given))?;
        if let Some((repo, what)) = rest.split_once(':') {
            let what = is_file_name(what).then(|| what.to_owned());
            return Ok(ModelRef {
                repo: repo.parse().map_err(|_| bad(given))?,
                what: Some(what.ok_or_else(|| bad(given))?),
            });
        }
        // The address of a page: owner/name/blob/main/file.gguf?download=true
        let rest = rest.split(['?', '#']).next().unwrap_or(rest);
        let rest = rest.trim_end_matches('/');
        let parts: Vec<&str> = rest.splitn(5, '/').collect();
        let (repo, what) = match parts.as_slice() {
            [owner, name] => (format!("{owner}/{name}"), None),
            [owner, name, "tree", "main"] => (format!("{owner}/{name}"), None),
            [owner, name, "blob" | "resolve", "main", file] if is_file_name(file) => {
                (format!("{owner}/{name}"), Some((*file).to_owned()))
            }
            _ => return Err(bad(given)),
        };
        Ok(ModelRef {
            repo: repo.parse().map_err(|_| bad(given))?,
            what,
        })
    }
}

/// Whether a name is a plain relative path that may be created below a snapshot. Names in the hub's lists are checked
/// too.
pub(crate) fn is_file_name(path: &str) -> bool {
    let part = |part: &str| {
        !matches!(part, "" | "." | "..")
            && !part.ends_with(['.', ' '])
            && !part
                .chars()
                .any(|c| c.is_control() || "\\:*?\"<>|".contains(c))
    };
    path.len() <= 1024 && path.split('/').all(part)
}

fn bad(given: &str) -> HubError {
    HubError::BadReference(given.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(given: &str) -> Option<(String, Option<String>)> {
        let reference: ModelRef = given.parse().ok()?;
        Some((reference.repo.to_string(), reference.what))
    }

    #[test]
    fn references_and_page_addresses_are_parsed() {
        let whole = |repo: &str| Some((repo.to_owned(), None));
        let part = |repo: &str, what: &str| Some((repo.to_owned(), Some(what.to_owned())));
        for (given, means) in [
            ("a/b", whole("a/b")),
            (" a/b ", whole("a/b")),
            ("hf.co/a/b", whole("a/b")),
            ("https://huggingface.co/a/b", whole("a/b")),
            ("https://huggingface.co/a/b/", whole("a/b")),
            ("https://huggingface.co/a/b/tree/main", whole("a/b")),
            ("a/b:Q4_K_M", part("a/b", "Q4_K_M")),
            ("a/b.c_d-e:sub/f.gguf", part("a/b.c_d-e", "sub/f.gguf")),
            (
                "https://huggingface.co/a/b/blob/main/sub/f.gguf",
                part("a/b", "sub/f.gguf"),
            ),
            (
                "https://huggingface.co/a/b/resolve/main/f.gguf?download=true",
                part("a/b", "f.gguf"),
            ),
        ] {
            assert_eq!(read(given), means, "{given}");
        }
    }

    #[test]
    fn invalid_references_are_refused() {
        for given in [
            "",
            "a",
            "a/",
            "/b",
            "a/b/c",
            "../b",
            "a/..",
            "a--b/c",
            "a/b:",
            "a/b:../x",
            "a/b:/etc/passwd",
            "a/b:x/../../y",
            "a/b:x\\y",
            "a/b:x\ny",
            "a b/c",
            "https://example.com/a/b",
            "https://huggingface.co/a/b/blob/other/f.gguf",
            "-a/b",
            "a./b",
        ] {
            assert_eq!(read(given), None, "{given}");
        }
    }

    #[test]
    fn the_error_names_the_value_and_an_example() {
        let error = "nonsense".parse::<ModelRef>().unwrap_err().to_string();
        assert_eq!(
            error,
            "'nonsense' names no model of the hub; write OWNER/NAME:FILE or OWNER/NAME:QUANTISATION, for example \
             HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M"
        );
    }
}
