//! The icons for packages of Windows and macOS (`scripts/icons`): containers of PNGs.

use std::collections::BTreeSet;
use std::path::Path;

fn read(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("icons")
        .join(name);
    std::fs::read(path).expect("an icon")
}

/// Pixels of a PNG at each side.
fn side(png: &[u8]) -> u32 {
    assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
    let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
    assert_eq!(number(16), number(20), "square");
    number(16)
}

#[test]
fn windows_has_all_sizes() {
    let icon = read("icon.ico");
    let number = |at: usize| u32::from_le_bytes(icon[at..at + 4].try_into().unwrap()) as usize;
    let entries = (0..usize::from(icon[4])).map(|entry| 6 + 16 * entry);
    let sides = entries.map(|at| side(&icon[number(at + 12)..][..number(at + 8)]));
    assert_eq!(
        sides.collect::<BTreeSet<_>>(),
        BTreeSet::from([16, 24, 32, 48, 64, 128, 256])
    );
}

#[test]
fn macos_has_all_sizes() {
    let icon = read("icon.icns");
    let number = |at: usize| u32::from_be_bytes(icon[at..at + 4].try_into().unwrap()) as usize;
    assert_eq!((&icon[..4], number(4)), (&b"icns"[..], icon.len()));
    let mut sides = BTreeSet::new();
    let mut at = 8;
    while at < icon.len() {
        if &icon[at..at + 4] != b"TOC " {
            sides.insert(side(&icon[at + 8..]));
        }
        at += number(at + 4);
    }
    assert_eq!(sides, BTreeSet::from([32, 64, 128, 256, 512, 1024]));
}
