//! `kept vaults`: fills, lists and removes the documents stored on disk.

use std::ffi::OsStr;
use std::path::Path;

use kept_engine::vault::{VaultContent, VaultEntry, VaultFolder, Vaults};
use kept_engine::{DocumentReadRequest, Engine, Note, Progress};
use serde_json::{Value, json};

use crate::arguments::{ReadArguments, RemoveArguments, VaultsArguments, memory, method_or_auto};
use crate::ask::open_documents;
use crate::model::Answering;
use crate::output::{self, bytes, count};
use crate::progress::{ReadingBar, stop_on_ctrl_c};

/// Least digits of a key in a list: enough to distinguish documents.
const SHOWN_DIGITS: usize = 12;

/// The first digits of a key: as many as tell it from those of the other `entries`.
fn shown_key(entry: &VaultEntry, entries: &[VaultEntry]) -> String {
    let key = entry.key.to_string();
    let keys: Vec<String> = entries.iter().map(|entry| entry.key.to_string()).collect();
    let is_known = |&digits: &usize| {
        let begins = |other: &&String| other.starts_with(&key[..digits]);
        keys.iter().filter(begins).count() == 1
    };
    let digits = (SHOWN_DIGITS..key.len()).find(is_known);
    key[..digits.unwrap_or(key.len())].to_owned()
}

fn as_json(entry: &VaultEntry) -> Value {
    let used = entry.used.duration_since(std::time::UNIX_EPOCH);
    json!({
        "key": entry.key.to_string(),
        "document": entry.document,
        "model": entry.model,
        "tokens": entry.tokens,
        "kind": entry.holds.as_ref().map(|holds| match holds {
            VaultContent::Rows(kind) | VaultContent::Turns(kind) => kind.name(),
            VaultContent::Checkpoint(_) => "end",
        }),
        "conversation": matches!(entry.holds, Some(VaultContent::Turns(_))),
        "streamed": match &entry.holds {
            Some(VaultContent::Checkpoint(how)) => Some(how),
            _ => None,
        },
        "bytes": entry.bytes,
        "used": used.map_or(0, |since| since.as_secs()),
    })
}

pub fn read(arguments: &ReadArguments) -> anyhow::Result<()> {
    let limits = arguments.memory.as_deref().map(memory).transpose()?;
    let (folder, trouble) = arguments.vault.open()?;
    let Some((folder, kind)) = &folder else {
        let why = trouble.unwrap_or_else(|| "--vault off keeps nothing".to_owned());
        anyhow::bail!("there is no vault to read into: {why}");
    };
    let model = Answering::resolve(arguments.model.as_deref())?;
    let engine = arguments.compute.open(&model.path, None)?;
    let document = open_documents(&arguments.document, &arguments.opening)?;
    let request = DocumentReadRequest {
        document: &document,
        method: &method_or_auto(arguments.method.as_deref(), "")?,
        budget: None,
        max_tokens: Engine::DEFAULT_MAX_TOKENS,
        vaults: Vaults::new(folder, *kind),
        memory: limits,
        pause: None,
    };
    let bar = ReadingBar::new();
    let mut show = |progress: &Progress| bar.show(progress);
    let read = engine.read_document(&request, &mut show, &stop_on_ctrl_c());
    bar.clear();
    let read = read?;
    let notes: Vec<String> = read.notes.iter().map(Note::to_string).collect();
    anyhow::ensure!(read.stored == read.tokens, "{}", notes.join("; "));
    if arguments.json {
        output::print_json(&json!({
            "document": document.name,
            "tokens": read.tokens,
            "tokens_from_vault": read.from_vault,
            "tokens_in_vault": read.stored,
            "notes": notes,
        }))?;
    } else {
        output::print_text(&output::printable(&format!(
            "{}: {} of {} tokens are in the vault, {} of them were before\n",
            document.name,
            count(read.stored),
            count(read.tokens),
            count(read.from_vault)
        )))?;
    }
    Ok(())
}

pub fn list(arguments: &VaultsArguments) -> anyhow::Result<()> {
    let folder = VaultFolder::standard(None)?;
    let entries = folder.list()?;
    let taken: u64 = entries.iter().map(|entry| entry.bytes).sum();
    if arguments.json {
        return output::print_json(&json!({
            "folder": folder.path().display().to_string(),
            "bytes": taken,
            "budget": folder.budget(),
            "vaults": entries.iter().map(as_json).collect::<Vec<_>>(),
        }));
    }
    if entries.is_empty() {
        let shown = folder.path().display();
        return output::print_text(&format!("no document is kept in {shown}\n"));
    }
    let mut text = String::new();
    for entry in &entries {
        text += &match (&entry.document, &entry.model) {
            (Some(document), Some(model)) => format!(
                "{}  {}\n      {} tokens, {}, {}, read by {model}\n",
                shown_key(entry, &entries),
                match output::one_line(document) {
                    name if name.is_empty() => "without a document".to_owned(),
                    name => name,
                },
                count(entry.tokens),
                bytes(entry.bytes),
                match &entry.holds {
                    Some(VaultContent::Rows(kind)) => kind.name().to_owned(),
                    Some(VaultContent::Turns(kind)) => format!("a conversation, {}", kind.name()),
                    Some(VaultContent::Checkpoint(how)) => format!("its end, {how}"),
                    None => String::new(),
                },
            ),
            _ => format!(
                "{}  not whole, or of another version: it will be rebuilt\n      {}\n",
                shown_key(entry, &entries),
                bytes(entry.bytes)
            ),
        };
    }
    text += &format!(
        "{} of at most {} in {}\n",
        bytes(taken),
        bytes(folder.budget()),
        folder.path().display()
    );
    output::print_text(&output::printable(&text))
}

pub fn remove(arguments: &RemoveArguments) -> anyhow::Result<()> {
    let folder = VaultFolder::standard(None)?;
    let which = arguments.which.as_str();
    anyhow::ensure!(
        !which.is_empty(),
        "say which document; see kept vaults list"
    );
    // A document is known by the name of its file.
    let file = Path::new(which).file_name().and_then(OsStr::to_str);
    let (named, others): (Vec<_>, Vec<_>) = (folder.list()?.into_iter()).partition(|entry| {
        let document = entry.document.as_deref();
        document == Some(which) || document.is_some() && document == file
    });
    let is_meant = |entry: &VaultEntry| entry.key.to_string().starts_with(which);
    let mut entries = named;
    if entries.is_empty() {
        entries.extend(others.into_iter().filter(is_meant));
        anyhow::ensure!(
            entries.len() < 2,
            "{} keys begin with '{which}'; give more digits, see kept vaults list",
            entries.len()
        );
    }
    anyhow::ensure!(
        !entries.is_empty(),
        "nothing is kept of '{which}'; see kept vaults list"
    );
    let (mut gone, mut in_use) = (0, 0);
    for entry in &entries {
        if folder.remove(&entry.key)? {
            gone += 1
        } else {
            in_use += 1
        }
    }
    print_removed(gone, in_use, arguments.json)
}

pub fn clear(arguments: &VaultsArguments) -> anyhow::Result<()> {
    let (gone, in_use) = VaultFolder::standard(None)?.clear()?;
    print_removed(gone, in_use, arguments.json)
}

fn print_removed(gone: usize, in_use: usize, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        return output::print_json(&json!({ "removed": gone, "in_use": in_use }));
    }
    let stays = match in_use {
        0 => String::new(),
        _ => format!("; {in_use} in use, which stay"),
    };
    output::print_text(&format!("removed: {gone}{stays}\n"))
}
