//! Ollama's models. A manifest lists layers, and the layer with the model is a blob.
//!
//! ```text
//! manifests/registry.ollama.ai/library/llama3.2/1b   {"layers": [{"mediaType": "...image.model", "digest": "..."}]}
//! blobs/sha256-<64 digits>                           the GGUF file
//! blobs/sha256-<64 digits>-partial                   an unfinished download
//! ```

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use super::{Candidate, Gathered, Place, Unfinished, walk};
use crate::text::is_hex;

/// Largest manifest read, in bytes; manifests have a few kilobytes.
const MAX_MANIFEST_BYTES: u64 = 1 << 20;
const MODEL: &str = "application/vnd.ollama.image.model";

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
}

pub(super) fn gather(root: &Path, all: &mut Gathered) {
    let (manifests, blobs) = (root.join("manifests"), root.join("blobs"));
    let mut candidates = Vec::new();
    walk::for_each_file(&manifests, &mut all.troubles, |path| {
        let below = path.strip_prefix(&manifests).ok();
        let Some(name) = below.and_then(name_of) else {
            return;
        };
        for digest in models(path) {
            let blob = blobs.join(format!("sha256-{digest}"));
            if let Ok(about) = fs::metadata(&blob) {
                candidates.push(Candidate {
                    name: name.clone(),
                    path: blob,
                    bytes: about.len(),
                    place: Place::Ollama,
                });
            }
        }
    });
    all.candidates.append(&mut candidates);
    for entry in fs::read_dir(&blobs).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(digest) = name.strip_suffix("-partial") {
            all.unfinished.push(Unfinished {
                name: digest.chars().take("sha256-".len() + 12).collect(),
                path: entry.path(),
                // Ollama creates the file with its full length.
                bytes: None,
                place: Place::Ollama,
            });
        }
    }
}

/// Digests of the model layers of a manifest; empty if the file is not a manifest.
fn models(path: &Path) -> Vec<String> {
    let mut text = String::new();
    let read =
        File::open(path).and_then(|file| file.take(MAX_MANIFEST_BYTES).read_to_string(&mut text));
    let manifest = read
        .ok()
        .and_then(|_| serde_json::from_str::<Manifest>(&text).ok());
    let digest = |layer: Layer| {
        let digest = layer.digest.strip_prefix("sha256:")?.to_owned();
        (layer.media_type == MODEL && is_hex(&digest, 64)).then_some(digest)
    };
    let layers = manifest.map(|manifest| manifest.layers).unwrap_or_default();
    layers.into_iter().filter_map(digest).collect()
}

/// The name that Ollama displays: `llama3.2:1b`, `somebody/model:tag`, `hf.co/owner/name:tag`.
fn name_of(below: &Path) -> Option<String> {
    let parts: Option<Vec<&str>> = below.iter().map(|part| part.to_str()).collect();
    match parts?.as_slice() {
        ["registry.ollama.ai", "library", model, tag] => Some(format!("{model}:{tag}")),
        ["registry.ollama.ai", owner, model, tag] => Some(format!("{owner}/{model}:{tag}")),
        [host, owner, model, tag] => Some(format!("{host}/{owner}/{model}:{tag}")),
        _ => None,
    }
}
