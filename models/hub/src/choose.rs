//! Groups the files of a repository into models, and selects the model that a user means.
//!
//! ```text
//! mini-Q4_K_M.gguf                          one model, Q4_K_M
//! big-Q8_0-00001-of-00003.gguf + two more   one model in three parts, Q8_0
//! mmproj-model-f16.gguf                     the vision encoder of another model: not a model
//! ```
//!
//! Pure functions on names, for lists of the hub and of folders alike.

use serde::Serialize;

use crate::{HubError, RepoId, text};

/// A file of a list, with its size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed {
    /// Path in the repository, with `/` between folders.
    pub path: String,
    /// Length in bytes.
    pub bytes: u64,
    /// Its hash, if the list contains it.
    #[serde(skip)]
    pub sha256: Option<String>,
}

/// A model in a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Offer {
    /// Its parts in order; one unless it is split.
    pub files: Vec<Listed>,
    /// Total bytes of all parts.
    pub bytes: u64,
    /// The quantisation in its name: `Q4_K_M`.
    pub quantisation: Option<String>,
    /// Number of parts according to its name.
    pub parts: u32,
}

impl Offer {
    /// Path of the file to open.
    pub fn path(&self) -> &str {
        &self.files[0].path
    }

    /// The shortest text after the colon that identifies the model: the quantisation if it is unique, else the file.
    fn shortest<'a>(&'a self, all: &'a [Offer]) -> &'a str {
        let same = |offer: &&Offer| offer.quantisation == self.quantisation;
        match &self.quantisation {
            Some(quantisation) if all.iter().filter(same).count() == 1 => quantisation,
            _ => self.path(),
        }
    }
}

/// The models among `files`, by size.
pub fn offers(files: &[Listed]) -> Vec<Offer> {
    let mut offers: Vec<Offer> = Vec::new();
    let mut sorted: Vec<&Listed> = files
        .iter()
        .filter(|file| is_model_file(&file.path))
        .collect();
    sorted.sort_by(|a, b| a.path.cmp(&b.path));
    for file in sorted {
        let split = split_name(&file.path);
        let joins = |offer: &Offer| {
            let first = split_name(offer.path());
            split.is_some_and(|this| {
                first.is_some_and(|first| first.stem == this.stem && first.parts == this.parts)
            })
        };
        // In name order, the parts of a model are consecutive.
        match offers.last_mut().filter(|offer| joins(offer)) {
            Some(offer) => {
                offer.bytes = offer.bytes.saturating_add(file.bytes);
                offer.files.push(file.clone());
            }
            None => offers.push(Offer {
                files: vec![file.clone()],
                bytes: file.bytes,
                quantisation: quantisation_of(&file.path),
                parts: split.map_or(1, |split| split.parts),
            }),
        }
    }
    offers.sort_by(|a, b| a.bytes.cmp(&b.bytes).then_with(|| a.path().cmp(b.path())));
    offers
}

/// Selects the model of `repo` that `what` identifies.
///
/// # Errors
/// [`HubError::NoGguf`], [`HubError::NoFile`], [`HubError::Ambiguous`], [`HubError::MissingPart`].
pub fn choose(repo: &RepoId, files: &[Listed], what: Option<&str>) -> Result<Offer, HubError> {
    let offers = offers(files);
    let mut fitting: Vec<&Offer> = match what {
        None => offers.iter().collect(),
        Some(what) => fitting(&offers, what),
    };
    // A GGUF file that does not look like a model is selected by its full name only.
    let named = what.and_then(|what| files.iter().find(|file| file.path == what));
    if let (true, Some(file)) = (fitting.is_empty(), named)
        && is_gguf(&file.path)
    {
        return Ok(Offer {
            files: vec![file.clone()],
            bytes: file.bytes,
            quantisation: quantisation_of(&file.path),
            parts: 1,
        });
    }
    match fitting.len() {
        1 => check_parts(repo, fitting.remove(0)),
        0 if offers.is_empty() => Err(HubError::NoGguf(repo.clone())),
        0 => Err(HubError::NoFile {
            repo: repo.clone(),
            what: what.unwrap_or_default().to_owned(),
            offered: labels(&offers.iter().collect::<Vec<_>>(), &offers),
        }),
        _ => Err(HubError::Ambiguous {
            repo: repo.clone(),
            choices: labels(&fitting, &offers),
        }),
    }
}

fn labels(some: &[&Offer], all: &[Offer]) -> Vec<String> {
    let label = |offer: &&Offer| format!("{} ({})", offer.shortest(all), text::bytes(offer.bytes));
    some.iter().map(label).collect()
}

/// The models that match `what` under the strictest interpretation with any match.
fn fitting<'a>(offers: &'a [Offer], what: &str) -> Vec<&'a Offer> {
    let same = |a: &str, b: &str| a.eq_ignore_ascii_case(b);
    let file = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let stem = |path: &str| without_gguf(&file(path)).to_owned();
    let readings: [&dyn Fn(&Offer) -> bool; 4] = [
        &|offer| offer.files.iter().any(|part| part.path == what),
        &|offer| offer.files.iter().any(|part| same(&file(&part.path), what)),
        // The name without `.gguf`, or for a split model without the part numbers.
        &|offer| {
            let path = offer.path();
            let split = split_name(path).map(|split| file(split.stem));
            same(&stem(path), without_gguf(what))
                || split.is_some_and(|split| same(&split, without_gguf(what)))
        },
        &|offer| {
            let quantisation = offer.quantisation.as_deref();
            quantisation.is_some_and(|quantisation| same(quantisation, &what.replace('-', "_")))
        },
    ];
    readings
        .iter()
        .map(|fits| offers.iter().filter(|offer| fits(offer)).collect())
        .find(|found: &Vec<&Offer>| !found.is_empty())
        .unwrap_or_default()
}

fn check_parts(repo: &RepoId, offer: &Offer) -> Result<Offer, HubError> {
    let numbers: Vec<u32> = offer
        .files
        .iter()
        .map(|file| split_name(&file.path).map_or(1, |split| split.part))
        .collect();
    match (1..=offer.parts).find(|part| !numbers.contains(part)) {
        None => Ok(offer.clone()),
        Some(part) => Err(HubError::MissingPart {
            repo: repo.clone(),
            file: offer.path().to_owned(),
            part,
            parts: offer.parts,
        }),
    }
}

fn is_gguf(path: &str) -> bool {
    without_gguf(path).len() < path.len()
}

fn without_gguf(path: &str) -> &str {
    let cut = path.len().saturating_sub(".gguf".len());
    match path.get(cut..) {
        Some(end) if end.eq_ignore_ascii_case(".gguf") => &path[..cut],
        _ => path,
    }
}

/// Whether a file is a language model, judging by its name: not a vision encoder, an importance matrix or an adapter.
/// The name of a model that was quantised with an importance matrix may contain `imatrix` too, but then it names the
/// quantisation.
pub fn is_model_file(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    let other = ["mmproj", "ggml-vocab-"];
    let measurement = name.contains("imatrix") && quantisation_of(&name).is_none();
    is_gguf(path) && !measurement && !other.iter().any(|other| name.contains(other))
}

/// The parts of a name such as `big-00002-of-00003.gguf`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitName<'a> {
    /// `big`, with its folder.
    pub stem: &'a str,
    /// The part, from one.
    pub part: u32,
    /// Number of parts, at least two.
    pub parts: u32,
}

/// Parses the part numbers of a name; `None` for a model in one file.
pub fn split_name(path: &str) -> Option<SplitName<'_>> {
    let rest = without_gguf(path);
    let (rest, parts) = rest.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    let number = |digits: &str| {
        let fits = digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit());
        fits.then(|| digits.parse::<u32>().ok()).flatten()
    };
    let (part, parts) = (number(part)?, number(parts)?);
    (is_gguf(path) && parts >= 2 && (1..=parts).contains(&part)).then_some(SplitName {
        stem,
        part,
        parts,
    })
}

/// The names of all parts of the model that a name belongs to; the name itself for a model in one file.
pub(crate) fn part_names(path: &str) -> Vec<String> {
    let Some(SplitName { stem, parts, .. }) = split_name(path) else {
        return vec![path.to_owned()];
    };
    let end = &path[path.len() - ".gguf".len()..];
    let name = |part: u32| format!("{stem}-{part:05}-of-{parts:05}{end}");
    (1..=parts).map(name).collect()
}

/// The quantisation in a name, in upper case with `_`: `Q4_K_M`, `UD_Q4_K_XL`, `F16`.
pub fn quantisation_of(path: &str) -> Option<String> {
    let stem = split_name(path).map_or_else(|| without_gguf(path), |split| split.stem);
    let mut words: Vec<String> = stem
        .split(['-', '.', '/', ' '])
        .map(str::to_ascii_uppercase)
        .collect();
    // The last matching word, because folders and model names come first.
    while let Some(word) = words.pop() {
        let starts = std::iter::once(0).chain(word.match_indices('_').map(|(at, _)| at + 1));
        let found = starts
            .map(|at| &word[at..])
            .find(|rest| is_quantisation(rest));
        if let Some(found) = found {
            let dynamic = words.last().is_some_and(|before| before == "UD");
            return Some(if dynamic {
                format!("UD_{found}")
            } else {
                found.to_owned()
            });
        }
    }
    None
}

fn is_quantisation(word: &str) -> bool {
    const PLAIN: [&str; 6] = ["F16", "F32", "BF16", "FP16", "FP32", "MXFP4"];
    let kind = word.split('_').next().unwrap_or(word);
    let digits =
        |rest: &str| (1..=2).contains(&rest.len()) && rest.bytes().all(|b| b.is_ascii_digit());
    PLAIN.contains(&kind)
        || ["IQ", "TQ", "Q"]
            .iter()
            .any(|q| kind.strip_prefix(q).is_some_and(digits))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repo() -> RepoId {
        "a/b-GGUF".parse().unwrap()
    }

    fn list(files: &[(&str, u64)]) -> Vec<Listed> {
        let listed = |(path, bytes): &(&str, u64)| Listed {
            path: (*path).to_owned(),
            bytes: *bytes,
            sha256: None,
        };
        files.iter().map(listed).collect()
    }

    #[test]
    fn quantisations_are_parsed_from_file_names() {
        for (path, says) in [
            ("smollm2-1.7b-instruct-q4_k_m.gguf", Some("Q4_K_M")),
            ("Phi-3-mini-4k-instruct-q4.gguf", Some("Q4")),
            ("Phi-3-mini-4k-instruct-fp16.gguf", Some("FP16")),
            ("Llama-3.2-3B-Instruct-Q8_0.gguf", Some("Q8_0")),
            ("Qwen3-8B-UD-Q4_K_XL.gguf", Some("UD_Q4_K_XL")),
            ("gpt-oss-20b-mxfp4.gguf", Some("MXFP4")),
            ("model_IQ4_XS.gguf", Some("IQ4_XS")),
            ("llama-2-7b.Q5_K_S.gguf", Some("Q5_K_S")),
            ("Q8_0/big-Q8_0-00001-of-00002.gguf", Some("Q8_0")),
            ("BF16/big-00001-of-00002.gguf", Some("BF16")),
            ("Qwen3-8B.gguf", None),
            ("model.gguf", None),
        ] {
            assert_eq!(quantisation_of(path).as_deref(), says, "{path}");
        }
    }

    #[test]
    fn parts_of_a_split_model_are_one_offer() {
        let files = list(&[
            ("big-Q8_0-00002-of-00002.gguf", 30),
            ("big-Q8_0-00001-of-00002.gguf", 20),
            ("big-Q4_0.gguf", 10),
            ("mmproj-big-f16.gguf", 5),
            ("big.imatrix.gguf", 5),
            ("big-Q6_K-imatrix.gguf", 15),
            ("README.md", 1),
        ]);
        let offers = offers(&files);
        let paths: Vec<&str> = offers.iter().map(Offer::path).collect();
        let expected = [
            "big-Q4_0.gguf",
            "big-Q6_K-imatrix.gguf",
            "big-Q8_0-00001-of-00002.gguf",
        ];
        assert_eq!(paths, expected);
        assert_eq!((offers[2].bytes, offers[2].parts), (50, 2));
    }

    #[test]
    fn names_and_quantisations_select_a_model() {
        let files = list(&[
            ("m-Q4_K_M.gguf", 10),
            ("m-Q8_0.gguf", 20),
            ("sub/n-Q8_0.gguf", 20),
            ("big-F16-00001-of-00002.gguf", 30),
            ("big-F16-00002-of-00002.gguf", 30),
            ("mmproj-m.gguf", 3),
        ]);
        for (what, means) in [
            ("m-Q4_K_M.gguf", "m-Q4_K_M.gguf"),
            ("M-q4_k_m.GGUF", "m-Q4_K_M.gguf"),
            ("m-q4_k_m", "m-Q4_K_M.gguf"),
            ("q4_k_m", "m-Q4_K_M.gguf"),
            ("Q4-K-M", "m-Q4_K_M.gguf"),
            ("n-Q8_0.gguf", "sub/n-Q8_0.gguf"),
            ("sub/n-Q8_0.gguf", "sub/n-Q8_0.gguf"),
            ("f16", "big-F16-00001-of-00002.gguf"),
            ("big-F16", "big-F16-00001-of-00002.gguf"),
            ("big-F16-00002-of-00002.gguf", "big-F16-00001-of-00002.gguf"),
            ("mmproj-m.gguf", "mmproj-m.gguf"),
        ] {
            let chosen = choose(&repo(), &files, Some(what)).unwrap();
            assert_eq!(chosen.path(), means, "{what}");
        }
        assert_eq!(
            choose(&repo(), &files[..1], None).unwrap().path(),
            "m-Q4_K_M.gguf"
        );
    }

    #[test]
    fn refusals_list_the_available_models() {
        let files = list(&[("m-Q8_0.gguf", 2 << 20), ("sub/n-Q8_0.gguf", 3 << 20)]);
        let refused =
            |files: &[Listed], what| choose(&repo(), files, what).unwrap_err().to_string();
        assert_eq!(
            refused(&files, Some("Q2_K")),
            "'a/b-GGUF' has no model 'Q2_K'; it has m-Q8_0.gguf (2.0 MiB), sub/n-Q8_0.gguf (3.0 MiB)"
        );
        assert_eq!(
            refused(&files, Some("q8_0")),
            "'a/b-GGUF' has several models that fit; say which: m-Q8_0.gguf (2.0 MiB), sub/n-Q8_0.gguf (3.0 MiB)"
        );
        assert_eq!(
            refused(&list(&[("a-Q4_0.gguf", 1), ("a-Q8_0.gguf", 2)]), None),
            "'a/b-GGUF' has several models that fit; say which: Q4_0 (1 bytes), Q8_0 (2 bytes)"
        );
        assert_eq!(
            refused(&list(&[("model.safetensors", 1)]), None),
            "'a/b-GGUF' has no GGUF file; look for a repository of the same model whose name ends in -GGUF"
        );
        assert_eq!(
            refused(
                &list(&[
                    ("b-Q8_0-00001-of-00003.gguf", 1),
                    ("b-Q8_0-00003-of-00003.gguf", 1)
                ]),
                None
            ),
            "'a/b-GGUF' lacks part 2 of 3 of 'b-Q8_0-00001-of-00003.gguf'; choose another quantisation"
        );
    }
}
