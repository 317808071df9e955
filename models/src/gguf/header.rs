//! Reads the header of a GGUF file, for lists of models.
//!
//! The file is read, not mapped, and no weights are read. If another program truncates or rewrites the file meanwhile,
//! the worst result is a wrong line in a list; the process does not crash. At most [`MAX_HEADER_BYTES`] bytes are read,
//! whatever lengths the file declares.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use kept_kernels::mapped::MappedFile;

use super::{Gguf, ollama, reader};
use crate::{Config, ModelError, OpenOptions, tokenizer};

/// Prefix lengths to read, in bytes, until the header is complete. The first suffices to refuse an unsupported
/// architecture; the largest vocabularies take about 20 MiB.
const READS: [usize; 4] = [64 << 10, 2 << 20, 16 << 20, MAX_HEADER_BYTES];
/// Longest header accepted, in bytes.
const MAX_HEADER_BYTES: usize = 64 << 20;

/// The header of a GGUF file.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// `general.name`.
    pub name: Option<String>,
    /// `general.architecture`.
    pub architecture: Option<String>,
    /// `general.type`: `model`, `adapter`, `mmproj`, `imatrix`; absent in old files.
    pub kind: Option<String>,
    /// ggml's name of the quantisation, such as `Q4_K_M`.
    pub quantisation: Option<String>,
    /// Number of parameters in this file's tensors; `None` if the header was not read to its end.
    pub parameters: Option<u64>,
    /// Context length of the model, in tokens.
    pub context: Option<u64>,
    /// Whether the file has a chat template.
    pub chat_template: bool,
    /// Number of tensors the file declares; 0 for a file with a vocabulary only.
    pub tensors: usize,
    /// For a split model: the number of this part, from 1, and the number of parts.
    pub split: Option<(u64, u64)>,
    /// Whether the model can be opened, judging by the header. Of the tokenizer only the names are checked.
    pub supported: Result<(), ModelError>,
}

impl Header {
    /// Reads the header of `path`.
    ///
    /// # Errors
    /// [`ModelError`]: `Unreadable`, `NotGguf`, `UnsupportedVersion`, `Malformed`. All other problems are reported in
    /// [`Header::supported`].
    pub fn read(path: &Path) -> Result<Header, ModelError> {
        let unreadable = |error: std::io::Error| ModelError::Unreadable {
            path: path.to_owned(),
            reason: crate::error::reason(&error),
        };
        // Checked before opening, because opening a named pipe blocks until it has a writer.
        let about = std::fs::metadata(path).map_err(unreadable)?;
        if !about.is_file() {
            let kind = std::io::ErrorKind::InvalidInput;
            return Err(unreadable(std::io::Error::new(
                kind,
                "it is not a regular file",
            )));
        }
        let length = usize::try_from(about.len()).unwrap_or(usize::MAX);
        let mut file = File::open(path).map_err(unreadable)?;
        let mut bytes = Vec::new();
        let mut header = None;
        for most in READS {
            let more = (most.min(length)).saturating_sub(bytes.len());
            let mut next = file.by_ref().take(more as u64);
            next.read_to_end(&mut bytes).map_err(unreadable)?;
            let (beginning, tensors) = reader::read_beginning(&bytes)?;
            let beginning = gguf(&bytes, beginning).map_err(unreadable)?;
            if let Err(error @ ModelError::UnsupportedArchitecture { .. }) =
                Config::read(&beginning, &OpenOptions::default())
            {
                return Ok(describe(&beginning, tensors, Err(error)));
            }
            let whole = match reader::read_header(&bytes, length) {
                Ok(header) => gguf(&bytes, header).map_err(unreadable)?,
                Err(error @ ModelError::Truncated { needs, .. }) => {
                    header = Some(describe(&beginning, tensors, Err(error)));
                    if needs <= length as u64 && bytes.len() < length {
                        continue;
                    } else {
                        break;
                    }
                }
                Err(error) => return Ok(describe(&beginning, tensors, Err(error))),
            };
            let mut header = describe(&whole, tensors, supported(&whole));
            let elements = |shape: &[usize]| shape.iter().map(|&n| n as u64).product::<u64>();
            header.parameters = Some(whole.tensors().map(|t| elements(&t.shape)).sum());
            return Ok(header);
        }
        header.ok_or(ModelError::NotGguf {
            start: String::new(),
        })
    }
}

/// A [`Gguf`] over the first bytes of a file, without tensor data.
fn gguf(bytes: &[u8], header: Gguf) -> std::io::Result<Gguf> {
    let files = vec![MappedFile::from_bytes(bytes)?];
    Ok(ollama::translate(Gguf { files, ..header }))
}

fn supported(gguf: &Gguf) -> Result<(), ModelError> {
    let whole = |key: &str| gguf.whole(key).ok().flatten().unwrap_or(0);
    let (split, first) = (whole("split.count") > 1, whole("split.no") == 0);
    // Only the first part of a split model describes the model; the other parts hold tensors.
    if first {
        match Config::read(gguf, &OpenOptions::default()) {
            // The data of a tensor that `Config` reads lies beyond the bytes read.
            Ok(_) | Err(ModelError::Unusable { .. }) => {}
            Err(ModelError::MissingTensor { .. }) if split => {}
            Err(error) => return Err(error),
        }
    }
    let mut tensors: Vec<_> = gguf.tensors().collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(tensor) = tensors.iter().find(|t| !t.kind.is_supported()) {
        return Err(ModelError::UnsupportedType {
            tensor: tensor.name.clone(),
            name: tensor.kind.name(),
        });
    }
    if first {
        tokenizer::check_kind(gguf).map(drop)
    } else {
        Ok(())
    }
}

fn describe(gguf: &Gguf, tensors: usize, supported: Result<(), ModelError>) -> Header {
    let text = |key: &str| -> Option<String> {
        let text = gguf.text(key).ok().flatten()?.trim();
        (!text.is_empty()).then(|| text.chars().take(200).collect())
    };
    let whole = |key: &str| gguf.whole(key).ok().flatten();
    let architecture = text("general.architecture");
    let split = whole("split.count").filter(|parts| *parts > 1);
    Header {
        name: text("general.name"),
        kind: text("general.type"),
        quantisation: gguf.quantisation(),
        parameters: None,
        context: architecture
            .as_deref()
            .and_then(|name| whole(&format!("{name}.context_length"))),
        chat_template: text("tokenizer.chat_template").is_some(),
        architecture,
        tensors,
        split: split.map(|parts| (whole("split.no").unwrap_or(0).saturating_add(1), parts)),
        supported,
    }
}

impl Gguf {
    /// ggml's name of the quantisation, such as `Q4_K_M`: as the file says, or the type of most weights.
    pub fn quantisation(&self) -> Option<String> {
        let said = self.whole("general.file_type").ok().flatten();
        said.and_then(file_type).or_else(|| most_common_type(self))
    }
}

/// The tensor type that accounts for most bytes of the weights.
fn most_common_type(gguf: &Gguf) -> Option<String> {
    let mut bytes: HashMap<String, usize> = HashMap::new();
    for tensor in gguf.tensors() {
        *bytes.entry(tensor.kind.name()).or_default() += tensor.bytes;
    }
    let most = bytes
        .into_iter()
        .max_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
    most.map(|(name, _)| name)
}

/// Name of a `general.file_type`, from llama.cpp's `enum llama_ftype`.
fn file_type(number: u64) -> Option<String> {
    const NAMES: &[(u64, &str)] = &[
        (0, "F32"),
        (1, "F16"),
        (2, "Q4_0"),
        (3, "Q4_1"),
        (7, "Q8_0"),
        (8, "Q5_0"),
        (9, "Q5_1"),
        (10, "Q2_K"),
        (11, "Q3_K_S"),
        (12, "Q3_K_M"),
        (13, "Q3_K_L"),
        (14, "Q4_K_S"),
        (15, "Q4_K_M"),
        (16, "Q5_K_S"),
        (17, "Q5_K_M"),
        (18, "Q6_K"),
        (19, "IQ2_XXS"),
        (20, "IQ2_XS"),
        (21, "Q2_K_S"),
        (22, "IQ3_XS"),
        (23, "IQ3_XXS"),
        (24, "IQ1_S"),
        (25, "IQ4_NL"),
        (26, "IQ3_S"),
        (27, "IQ3_M"),
        (28, "IQ2_S"),
        (29, "IQ2_M"),
        (30, "IQ4_XS"),
        (31, "IQ1_M"),
        (32, "BF16"),
        (36, "TQ1_0"),
        (37, "TQ2_0"),
        (38, "MXFP4_MOE"),
        (39, "NVFP4"),
        (40, "Q1_0"),
    ];
    let named = NAMES.iter().find(|(known, _)| *known == number);
    named.map(|(_, name)| (*name).to_owned())
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::Model;
    use crate::testing::{GgufWriter, MetaValue, TinyLlama};

    fn header(writer: &GgufWriter) -> Header {
        header_of(&writer.bytes())
    }

    fn header_of(bytes: &[u8]) -> Header {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, bytes).unwrap();
        Header::read(&path).unwrap()
    }

    #[test]
    fn a_header_agrees_with_the_opened_model() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, TinyLlama::default().writer().bytes()).unwrap();
        let (header, model) = (Header::read(&path).unwrap(), Model::open(&path).unwrap());
        assert_eq!(header.supported, Ok(()));
        assert_eq!(header.architecture.as_deref(), Some("llama"));
        assert_eq!(header.context, Some(model.config().context as u64));
        let elements = model
            .gguf()
            .tensors()
            .map(|t| t.shape.iter().product::<usize>() as u64);
        assert_eq!(header.parameters, Some(elements.sum()));
        assert_eq!(header.tensors, model.gguf().tensors().count());
        assert_eq!(header.split, None);
    }

    #[test]
    fn unsupported_features_are_named() {
        let mut writer = TinyLlama::default().writer();
        writer.set("general.architecture", MetaValue::Text("mamba9".into()));
        writer.set("mamba9.context_length", MetaValue::Whole(4096));
        writer.set("general.file_type", MetaValue::Whole(15));
        let found = header(&writer);
        let refused = found.supported.unwrap_err().to_string();
        assert!(refused.contains("\"mamba9\""), "{refused}");
        assert_eq!(found.context, Some(4096));
        assert_eq!(found.quantisation.as_deref(), Some("Q4_K_M"));

        let mut writer = TinyLlama::default().writer();
        writer.set("tokenizer.ggml.model", MetaValue::Text("odd".into()));
        let name = "odd".to_owned();
        let refused = Err(ModelError::UnsupportedTokenizer { name });
        assert_eq!(header(&writer).supported, refused);
    }

    #[test]
    fn a_truncated_file_is_described_as_far_as_possible() {
        let bytes = TinyLlama::default().writer().bytes();
        let found = header_of(&bytes[..bytes.len() - 100]);
        assert!(matches!(found.supported, Err(ModelError::Truncated { .. })));
        assert_eq!(found.architecture.as_deref(), Some("llama"));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        for length in (0..bytes.len().min(3000)).step_by(13) {
            std::fs::write(&path, &bytes[..length]).unwrap();
            if let Ok(header) = Header::read(&path) {
                assert!(header.supported.is_err(), "cut at {length}");
            }
        }
    }

    #[test]
    fn a_header_longer_than_the_first_read_is_parsed() {
        let mut writer = TinyLlama::default().writer();
        let words = (0..200_000).map(|n| format!("word {n}")).collect();
        writer.set("tokenizer.ggml.added", MetaValue::Texts(words));
        let found = header(&writer);
        assert_eq!(found.supported, Ok(()));
        assert!(found.parameters.is_some());
    }

    #[test]
    fn a_header_reports_the_part_of_a_split_model() {
        let parts = TinyLlama::default().writer().split(3);
        for (number, part) in (1..).zip(&parts) {
            let found = header(part);
            assert_eq!(found.split, Some((number, 3)));
            assert_eq!(found.supported, Ok(()), "part {number}");
        }
        assert_eq!(header(&parts[0]).architecture.as_deref(), Some("llama"));
        let mut writer = parts[0].clone();
        writer.set("llama.expert_count", MetaValue::Whole(8));
        assert!(header(&writer).supported.is_err());
    }
}
