//! Files in the folder of the vaults. What is drawn is a body, a line end and a footer; its key, checksums and length are
//! made right, so that what lies behind them is reached. A last byte of 0 leaves the file as it is.
#![no_main]

use kept_fuzz::{file, folder};
use kept_kernels::{HeadShape, PackedRows, RowStore, Stop};
use kept_policies::Snapshot;
use kept_vault::{
    HostRows, StoredMeasurement, StoredRows, Vault, VaultFolder, VaultKey, VaultShape,
};
use libfuzzer_sys::fuzz_target;
use serde::Deserialize;
use serde_json::{Value, json};

const KEY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
/// Tokens of the question that looks for a vault.
const PREFIX: [u32; 100] = [0; 100];
/// Numbers of a layer's rows that are read.
const MOST: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let bytes = match data.split_last() {
        Some((0, raw)) => raw.to_vec(),
        _ => completed(data),
    };
    let path = file(&format!("{KEY}.vault"), &bytes, 0);
    let vaults = VaultFolder::new(folder(), 1 << 30);
    vaults.list().expect("a folder");
    let key = VaultKey::parse(KEY).expect("a key");
    let near = VaultKey::parse(&format!("{}{:032}", &KEY[..32], 0)).expect("a key");
    vaults.has_checkpoint(&key);
    load_checkpoint(&vaults, &key);
    // It may be removed: a damaged vault is.
    if let Ok(Some(vault)) = vaults.find(&key, &PREFIX) {
        read(vault);
        let _ = vaults.find(&near, &PREFIX);
    }
    let _ = std::fs::remove_file(path);
});

/// Every layer as a question reads it.
fn read(mut vault: Vault) {
    let shape = vault.shape().clone();
    let heads = shape.heads;
    let own = shape.window_heads.unwrap_or(heads);
    assert!(vault.fits([heads, own], shape.windows.iter().copied(), shape.state));
    let _ = (vault.document(), vault.model(), vault.bytes());
    for layer in 0..shape.windows.len() {
        let HeadShape {
            kv_heads, head_dim, ..
        } = shape.heads_of(layer);
        if kv_heads * head_dim * shape.tokens > MOST || vault.bytes() > 8 << 20 {
            return;
        }
        for tokens in [shape.tokens, shape.tokens / 2] {
            let store = || RowStore::uniform(kv_heads, tokens.max(1), head_dim);
            let (mut keys, mut values, mut space) = (store(), store(), Vec::new());
            let mut rows = HostRows {
                keys: &mut keys,
                values: &mut values,
                space: &mut space,
            };
            if let Ok(numbers) = vault.layer(layer, tokens, &mut rows) {
                for measurement in &shape.measurements {
                    let _ = numbers.measurement(&shape, *measurement);
                }
            }
        }
    }
}

/// A checkpoint of a few numbers.
fn load_checkpoint(vaults: &VaultFolder, key: &VaultKey) {
    let (mut count, mut floats) = (0, [0.0; 4]);
    let mut visit = |through: &mut dyn Snapshot| {
        through.count(&mut count, 9);
        through.floats(&mut floats);
        through.bytes(&mut vec![0; count]);
    };
    let _ = vaults.load_checkpoint(key, &mut visit, &Stop::new());
}

/// As far as it says how long the body is.
#[derive(Deserialize)]
struct Footer {
    tokens: usize,
    from: Option<usize>,
    heads: HeadShape,
    window_heads: Option<HeadShape>,
    rows: String,
    queries: usize,
    windows: Vec<StoredRows>,
    #[serde(default)]
    state: usize,
    measurements: Vec<StoredMeasurement>,
}

fn completed(data: &[u8]) -> Vec<u8> {
    let line = data.iter().rposition(|byte| *byte == b'\n');
    let (body, footer) = data.split_at(line.unwrap_or(0));
    let mut body = body.to_vec();
    let footer = footer.strip_prefix(b"\n").unwrap_or(footer);
    let footer = match serde_json::from_slice::<Value>(footer) {
        Ok(mut footer) if footer.is_object() => {
            if let Ok(shape) = Footer::deserialize(&footer) {
                body.resize(body_bytes(&shape).unwrap_or(body.len()), 0);
                let ids = body.len().saturating_sub(shape.tokens.saturating_mul(4));
                footer["ids_checksum"] = json!(crc32fast::hash(&body[ids..]));
            } else {
                footer["checksum"] = json!(crc32fast::hash(&body));
            }
            footer["key"] = json!(KEY);
            serde_json::to_vec(&footer).expect("JSON")
        }
        _ => footer.to_vec(),
    };
    body.extend(&footer);
    body.extend((footer.len() as u64).to_le_bytes());
    body.extend(crc32fast::hash(&footer).to_le_bytes());
    body.extend(b"KEPTVLT2");
    body
}

/// Bytes of the body; `None` if they are many, or more than can be counted.
fn body_bytes(footer: &Footer) -> Option<usize> {
    let heads = [Some(footer.heads), footer.window_heads];
    let heads = heads.into_iter().flatten();
    let numbers = heads.flat_map(|heads| [heads.q_heads, heads.kv_heads, heads.head_dim]);
    let others = [footer.tokens, footer.queries, footer.state];
    let small = numbers.chain(others).all(|number| number < 1 << 10);
    let is_large =
        |rows: &StoredRows| matches!(rows, StoredRows::Last(window) if *window > 1 << 20);
    if !small || footer.windows.iter().any(is_large) {
        return None;
    }
    let shape = VaultShape {
        tokens: footer.tokens,
        from: footer.from.filter(|from| *from < footer.tokens),
        heads: footer.heads,
        window_heads: footer.window_heads,
        kind: PackedRows::named(&footer.rows)?,
        queries: footer.queries,
        windows: footer.windows.clone(),
        state: footer.state,
        measurements: footer.measurements.clone(),
    };
    let bytes = shape.bytes() as usize - 1024;
    (bytes <= 4 << 20).then_some(bytes)
}
