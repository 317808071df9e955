//! `kept vaults`: lists and removes the documents stored on disk.

use kept_engine::vault::{Holds, VaultEntry, VaultFolder};
use serde_json::{Value, json};

use crate::arguments::{RemoveArguments, VaultsArguments};
use crate::output::{self, bytes, count};

/// Digits of a key in a list: enough to distinguish vaults.
const SHOWN_DIGITS: usize = 12;

/// The part of a key that differs between documents under one model.
fn short_key(entry: &VaultEntry) -> String {
    let key = entry.key.to_string();
    key[key.len() / 2..][..SHOWN_DIGITS].to_owned()
}

fn as_json(entry: &VaultEntry) -> Value {
    let used = entry.used.duration_since(std::time::UNIX_EPOCH);
    json!({
        "key": entry.key.to_string(),
        "document": entry.document,
        "model": entry.model,
        "tokens": entry.tokens,
        "kind": entry.holds.as_ref().map(|holds| match holds {
            Holds::Rows(kind) => kind.name(),
            Holds::End(_) => "end",
        }),
        "streamed": match &entry.holds {
            Some(Holds::End(how)) => Some(how),
            _ => None,
        },
        "bytes": entry.bytes,
        "used": used.map_or(0, |since| since.as_secs()),
    })
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
                "{}  {document}\n      {} tokens, {}, {}, read by {model}\n",
                short_key(entry),
                count(entry.tokens),
                bytes(entry.bytes),
                match &entry.holds {
                    Some(Holds::Rows(kind)) => kind.name().to_owned(),
                    Some(Holds::End(how)) => format!("its end, {how}"),
                    None => String::new(),
                },
            ),
            _ => format!(
                "{}  not whole, or of another version: it will be rebuilt\n      {}\n",
                short_key(entry),
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
    let is_meant = |entry: &VaultEntry| {
        let key = entry.key.to_string();
        let digits = which.len() >= 4 && which.bytes().all(|b| b.is_ascii_hexdigit());
        let by_key = digits && (key[key.len() / 2..].starts_with(which) || key.starts_with(which));
        entry.document.as_deref() == Some(which) || by_key
    };
    let mut entries = folder.list()?;
    entries.retain(is_meant);
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
