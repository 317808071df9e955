//! Files that `make models` and `make vocabularies` download, for the tests that need them.

use std::path::PathBuf;

/// The folder of the downloaded models and vocabularies.
fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(folders) = set("KEPT_MODELS") {
        return std::env::split_paths(&folders).next();
    }
    let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(std::env::home_dir()?.join(".cache")))?;
    Some(cache.join("kept/models"))
}

/// Reports a skipped test whose files are missing; in CI every file is required.
///
/// # Panics
/// In CI.
pub fn skip(what: &str) {
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "this cannot be tested here: {what}"
    );
    eprintln!("skipped: {what}");
}

fn found(name: &str) -> Option<PathBuf> {
    let path = folder().map(|folder| folder.join(name));
    path.filter(|path| path.is_file())
}

/// A file that the make target `make` downloads, or [`skip`].
pub fn file(name: &str, make: &str) -> Option<PathBuf> {
    let path = found(name);
    if path.is_none() {
        skip(&format!("{name} is not on this computer (make {make})"));
    }
    path
}

/// The file of a model that `scripts/models MODEL` downloads only by its name, because it is large. Its tests are skipped
/// without it, also in CI.
pub fn large(name: &str, model: &str) -> Option<PathBuf> {
    let path = found(name);
    if path.is_none() {
        eprintln!("skipped: {name} is not on this computer (scripts/models {model})");
    }
    path
}

/// FNV-1a of token ids, as in `golden/real_models.py`.
pub fn fingerprint(ids: &[u32]) -> String {
    let value = ids.iter().fold(0xCBF2_9CE4_8422_2325_u64, |value, id| {
        (value ^ u64::from(*id)).wrapping_mul(0x100_0000_01B3)
    });
    format!("{value:016x}")
}
