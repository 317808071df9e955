//! Opens the file: checks it and migrates it to the current schema, or moves it aside if that fails.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};

use super::migrations::migrator;
use super::{Store, StoreError};
use crate::contract::Settings;
use crate::state::{ModelEntry, Remembered};

/// An open store with its loaded contents.
pub struct Opened {
    /// The store.
    pub store: Store,
    /// The stored state of an earlier start.
    pub remembered: Remembered,
    /// A sentence, if the file could not be used and was moved aside.
    pub notice: Option<String>,
}

/// Opens `kept.db` in `folder`. An unreadable file is moved aside and replaced by an empty store.
///
/// # Errors
/// If not even an empty store can be created.
pub async fn open(folder: &Path) -> Result<Opened, StoreError> {
    let path = folder.join("kept.db");
    keep_private(folder, &path)?;
    match open_file(&path).await {
        Ok((store, remembered)) => Ok(Opened {
            store,
            remembered,
            notice: None,
        }),
        Err(error) if error.is_about_contents() => {
            tracing::error!(%error, path = %path.display(), "the store is moved aside");
            let aside = move_aside(&path)?;
            keep_private(folder, &path)?;
            let (store, remembered) = open_file(&path).await?;
            let notice = format!(
                "The saved conversations and settings could not be read: the file was moved to {}, and Kept starts without them.",
                aside.display()
            );
            Ok(Opened {
                store,
                remembered,
                notice: Some(notice),
            })
        }
        Err(error) => Err(error),
    }
}

/// Restricts the folder and every file of the store to their owner, even if an earlier version or another program left
/// wider permissions. SQLite's auxiliary files inherit the permissions of the database file.
#[cfg(unix)]
fn keep_private(folder: &Path, path: &Path) -> Result<(), StoreError> {
    use std::fs::{OpenOptions, Permissions, set_permissions};
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

    let failed = |path: &Path, error| StoreError::File {
        path: path.display().to_string(),
        error,
    };
    let allow = |path: &Path, mode: u32| match set_permissions(path, Permissions::from_mode(mode)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(path, error)),
        _ => Ok(()),
    };
    allow(folder, 0o700)?;
    let made = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path);
    made.map_err(|error| failed(path, error))?;
    for name in ["kept.db", "kept.db-wal", "kept.db-shm", "kept.lock"] {
        allow(&folder.join(name), 0o600)?;
    }
    Ok(())
}

#[cfg(not(unix))]
fn keep_private(_folder: &Path, _path: &Path) -> Result<(), StoreError> {
    Ok(())
}

/// An in-memory store.
pub async fn open_in_memory() -> Result<Opened, StoreError> {
    let options = SqliteConnectOptions::new()
        .in_memory(true)
        .foreign_keys(true);
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .min_connections(1)
        .idle_timeout(None)
        .max_lifetime(None)
        .connect_with(options)
        .await?;
    let (store, remembered) = prepare(pool).await?;
    Ok(Opened {
        store,
        remembered,
        notice: None,
    })
}

/// An in-memory store with the settings and model files that are stored in `folder`, where another process writes.
pub async fn open_beside(folder: &Path) -> Result<Opened, StoreError> {
    let mut opened = open_in_memory().await?;
    match settings_of(&folder.join("kept.db")).await {
        Ok((settings, models)) => {
            (opened.remembered.settings, opened.remembered.models) = (settings, models);
        }
        Err(error) => tracing::warn!(%error, "the settings of the other window are not used"),
    }
    Ok(opened)
}

async fn settings_of(path: &Path) -> Result<(Option<Settings>, Vec<ModelEntry>), StoreError> {
    let options = SqliteConnectOptions::new().filename(path).read_only(true);
    let pool = SqlitePoolOptions::new().connect_with(options).await?;
    let store = Store::new(pool);
    let read = async { Ok((store.setting("settings").await?, store.models().await?)) };
    let read = read.await;
    store.close().await;
    read
}

async fn open_file(path: &Path) -> Result<(Store, Remembered), StoreError> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .foreign_keys(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
        // Data of a closed document must not remain in the file.
        .pragma("secure_delete", "ON")
        .busy_timeout(Duration::from_secs(5));
    let pool = SqlitePoolOptions::new()
        .max_connections(1)
        .connect_with(options)
        .await?;
    let opened = prepare(pool.clone()).await;
    if opened.is_err() {
        pool.close().await;
    }
    opened
}

async fn quick_check(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    let check: String = sqlx::query_scalar("PRAGMA quick_check(1)")
        .fetch_one(connection)
        .await?;
    match check.as_str() {
        "ok" => Ok(()),
        _ => Err(StoreError::Damaged(check)),
    }
}

/// Makes the index of the search again from its texts. If the file is damaged elsewhere too, it stays as it is.
///
/// # Errors
/// [`StoreError::Damaged`] in that case.
async fn rebuild_search(pool: &SqlitePool) -> Result<(), StoreError> {
    let mut transaction = pool.begin().await?;
    sqlx::query("INSERT INTO search (search) VALUES ('rebuild')")
        .execute(&mut *transaction)
        .await?;
    quick_check(&mut transaction).await?;
    Ok(transaction.commit().await?)
}

async fn prepare(pool: SqlitePool) -> Result<(Store, Remembered), StoreError> {
    let sound = quick_check(&mut *pool.acquire().await?).await;
    if let Err(damage) = sound {
        tracing::warn!(%damage, "the index of the search is made again");
        rebuild_search(&pool).await.map_err(|_| damage)?;
    }
    migrator().run(&pool).await?;
    let store = Store::new(pool);
    store.remove_hidden().await?;
    store.index_texts().await?;
    let remembered = store.remembered().await?;
    Ok((store, remembered))
}

/// Moves the file and SQLite's auxiliary files to an unused name.
fn move_aside(path: &Path) -> Result<PathBuf, StoreError> {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let name = |number: u64| path.with_file_name(format!("kept-unreadable-{number}.db"));
    let number = (seconds..)
        .find(|&number| !name(number).exists())
        .unwrap_or(seconds);
    let aside = name(number);
    let beside = |file: &Path, suffix: &str| {
        let mut name = file.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    for suffix in ["", "-wal", "-shm"] {
        let (from, to) = (beside(path, suffix), beside(&aside, suffix));
        match std::fs::rename(&from, &to) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(StoreError::File {
                    path: from.display().to_string(),
                    error,
                });
            }
        }
    }
    Ok(aside)
}
