//! Models split over several files, as by `llama-gguf-split`: `NAME-00001-of-00003.gguf` and so on.
//!
//! Any part can be opened; the other parts are read from the same folder. The first part holds the metadata, and every
//! part holds some of the tensors.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kept_kernels::mapped::MappedFile;

use super::reader::{self, malformed};
use super::{Gguf, Value, map};
use crate::ModelError;

/// Index of a part, and number of parts.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PartNumber {
    /// From 0.
    part: u64,
    parts: u64,
}

impl PartNumber {
    /// `None` for a file that is not split.
    fn read(metadata: &HashMap<String, Value>) -> Option<PartNumber> {
        let whole = |key: &str| metadata.get(key).and_then(Value::whole);
        let parts = whole("split.count").filter(|&parts| parts > 1)?;
        Some(PartNumber {
            part: whole("split.no").unwrap_or(0),
            parts,
        })
    }

    /// File name suffix: `-00002-of-00003.gguf`.
    fn suffix(self) -> String {
        format!(
            "-{:05}-of-{:05}.gguf",
            self.part.saturating_add(1),
            self.parts
        )
    }
}

/// Opens a model given one parsed file, `parts`, and reads its other parts if it is split.
pub(super) fn open(path: &Path, file: Arc<MappedFile>, parts: Gguf) -> Result<Gguf, ModelError> {
    let Some(given) = PartNumber::read(&parts.metadata) else {
        let files = vec![file];
        return Ok(Gguf { files, ..parts });
    };
    let stem = stem(path, given)?;
    let mut given_part = Some((file, parts));
    let mut whole: Option<Gguf> = None;
    for part in 0..given.parts {
        let number = PartNumber { part, ..given };
        let (file, mut parts) = match given_part.take_if(|_| number == given) {
            Some(opened) => opened,
            None => open_part(path, &stem, number)?,
        };
        let tensors = std::mem::take(&mut parts.tensors);
        let gguf = whole.get_or_insert(parts);
        for (name, mut tensor) in tensors {
            tensor.part = gguf.files.len();
            if gguf.tensors.insert(name.clone(), tensor).is_some() {
                return malformed(format!("tensor {name:?} occurs in two of its parts"));
            }
        }
        gguf.files.push(file);
    }
    let whole = whole.expect("a split model has parts");
    let announced = whole.whole("split.tensors.count")?;
    if announced.is_some_and(|n| n != whole.tensors.len() as u64) {
        return malformed(format!(
            "its parts hold {} tensors, not the {} announced",
            whole.tensors.len(),
            announced.unwrap_or(0)
        ));
    }
    Ok(whole)
}

/// Common prefix of the names of all parts.
fn stem(path: &Path, given: PartNumber) -> Result<String, ModelError> {
    let name = path
        .file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let ending = given.suffix();
    match name.strip_suffix(&ending) {
        Some(stem) => Ok(stem.to_owned()),
        None => Err(ModelError::PartName {
            part: given.part.saturating_add(1),
            parts: given.parts,
            name,
            ending,
        }),
    }
}

/// Opens another part of the split model to which `path` belongs.
fn open_part(
    path: &Path,
    stem: &str,
    number: PartNumber,
) -> Result<(Arc<MappedFile>, Gguf), ModelError> {
    let name = format!("{stem}{}", number.suffix());
    let path: PathBuf = path.with_file_name(&name);
    if !path.exists() {
        return Err(ModelError::MissingPart {
            part: number.part + 1,
            parts: number.parts,
            name,
        });
    }
    let file = map(&path)?;
    let parts = reader::read(file.bytes())?;
    if PartNumber::read(&parts.metadata) != Some(number) {
        return malformed(format!(
            "{name} does not say that it is part {} of {}",
            number.part + 1,
            number.parts
        ));
    }
    Ok((file, parts))
}
