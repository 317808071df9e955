//! Downloads one file: resumes from the bytes on disk and verifies the complete file.
//!
//! `hf-hub` is not used, because its version 1.0 starts every download at zero, cannot pause, and does not compare
//! hashes. The rules:
//!
//! - Every byte received is written at once, without buffering, so that a killed process loses nothing.
//! - The hash is computed as bytes are received. Bytes of an earlier run are read and hashed first: a partial file is
//!   never trusted.
//! - The file gets its name only if its hash is the hub's. A file with a wrong hash is removed. If part of it came from
//!   an earlier run (or from another tool, which may have left holes), it is downloaded once more from zero before an
//!   error is reported.
//! - A server without support for ranges sends everything again. The bytes on disk are skipped, and not lost if that
//!   transfer fails too.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::cache::remove_file;
use crate::remote::{Connection, Incoming};
use crate::reporter::Reporter;
use crate::request_failure::{RequestFailure, retryable};
use crate::{HubCache, HubError, HubFile};

/// The state that the user requested for a running download.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DownloadCommand {
    Run,
    Pause,
    Cancel,
}

/// Why a download ended without completing.
#[derive(Debug)]
pub(crate) enum End {
    /// The user stopped it.
    Stopped,
    /// The file differs from the hub's list.
    Changed,
    /// It failed.
    Failed(HubError),
}

impl From<HubError> for End {
    fn from(error: HubError) -> End {
        End::Failed(error)
    }
}

/// First wait before a retry; each further wait is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(30);
/// Bytes of a partial file hashed per step.
const HASH_CHUNK: usize = 1 << 20;

/// Completes when the user requests a state other than `Run`.
pub(crate) async fn stopped(command: &mut watch::Receiver<DownloadCommand>) {
    // Fails if the sender was dropped: no stop can be requested any more.
    if command
        .wait_for(|command| *command != DownloadCommand::Run)
        .await
        .is_err()
    {
        std::future::pending::<()>().await;
    }
}

/// Repeats `attempt` on temporary failures, at most `retries` times in a row without progress.
pub(crate) async fn repeat<T>(
    retries: u32,
    command: &mut watch::Receiver<DownloadCommand>,
    reporter: &mut Reporter<'_>,
    mut attempt: impl AsyncFnMut(
        &mut Reporter<'_>,
        &mut watch::Receiver<DownloadCommand>,
    ) -> Result<T, RequestFailure>,
) -> Result<T, End> {
    let (mut failures, mut furthest) = (0, reporter.furthest());
    loop {
        let outcome = {
            let mut stop = command.clone();
            tokio::select! {
                biased;
                () = stopped(&mut stop) => return Err(End::Stopped),
                outcome = attempt(reporter, command) => outcome,
            }
        };
        let (error, wait) = match outcome {
            Ok(done) => return Ok(done),
            Err(RequestFailure::Permanent(error)) => return Err(End::Failed(error)),
            Err(RequestFailure::FileChanged) => return Err(End::Changed),
            Err(RequestFailure::Retryable { error, wait }) => (error, wait),
            Err(RequestFailure::RestartDownload) => continue,
        };
        if reporter.furthest() > furthest {
            (failures, furthest) = (0, reporter.furthest());
        }
        failures += 1;
        if failures > retries {
            return Err(End::Failed(error.after(failures)));
        }
        let backoff = (FIRST_WAIT * 2u32.pow((failures - 1).min(16))).min(MAX_BACKOFF);
        let wait = wait.unwrap_or(backoff);
        reporter.waiting(&error, wait);
        tokio::select! {
            biased;
            () = stopped(command) => return Err(End::Stopped),
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Downloads and verifies one file and stores it as a blob. It is linked into the snapshot later, when all parts are
/// complete.
pub(crate) async fn fetch(
    connection: &Connection,
    cache: &HubCache,
    file: &HubFile,
    retries: u32,
    command: &mut watch::Receiver<DownloadCommand>,
    reporter: &mut Reporter<'_>,
) -> Result<(), End> {
    let _lock = cache.lock(file)?;
    if cache.present(file).is_some() {
        reporter.part_done(file.bytes);
        return Ok(());
    }
    let blob = cache.blob(&file.repo, &file.sha256);
    let partial = cache.partial(&file.repo, &file.sha256);
    if let Some(folder) = blob.parent() {
        fs::create_dir_all(folder).map_err(HubError::on_disk(folder, "made"))?;
    }
    cache.adopt(file)?;
    let mut again = false;
    loop {
        let mut arriving = Arriving::open(&partial, file.bytes, command, reporter)?;
        let resumed = arriving.have > 0;
        let outcome = repeat(retries, command, reporter, async |reporter, _| {
            let outcome = arriving.receive(connection, file, reporter).await;
            if let Err(RequestFailure::RestartDownload) = outcome {
                arriving.truncate()?;
                reporter.start_over();
            }
            outcome
        })
        .await;
        if let Err(End::Changed) = outcome {
            // The file no longer exists on the hub, so the partial file is useless.
            remove_file(&partial)?;
        }
        outcome?;
        if arriving.finish()? == file.sha256 {
            fs::rename(&partial, &blob).map_err(HubError::on_disk(&blob, "written"))?;
            reporter.part_done(file.bytes);
            return Ok(());
        }
        remove_file(&partial)?;
        if !resumed || again {
            return Err(End::Failed(HubError::WrongHash(file.path.clone())));
        }
        again = true;
        reporter.start_over();
    }
}

/// A file being received: the bytes on disk, and their hash.
struct Arriving<'a> {
    path: &'a Path,
    file: File,
    have: u64,
    hash: Sha256,
}

impl<'a> Arriving<'a> {
    /// Opens the partial file and hashes its bytes.
    fn open(
        path: &'a Path,
        whole: u64,
        command: &watch::Receiver<DownloadCommand>,
        reporter: &mut Reporter<'_>,
    ) -> Result<Arriving<'a>, End> {
        let mut options = File::options();
        options.read(true).append(true).create(true);
        let file = options
            .open(path)
            .map_err(HubError::on_disk(path, "written"))?;
        let mut arriving = Arriving {
            path,
            file,
            have: 0,
            hash: Sha256::new(),
        };
        let length = arriving.file.metadata().map(|about| about.len());
        let length = length.map_err(HubError::on_disk(path, "read"))?;
        if length > whole {
            arriving.truncate()?;
        } else if length > 0 {
            reporter.checking();
            arriving.hash_existing(length, command, reporter)?;
        }
        reporter.downloading(arriving.have);
        Ok(arriving)
    }

    fn hash_existing(
        &mut self,
        length: u64,
        command: &watch::Receiver<DownloadCommand>,
        reporter: &mut Reporter<'_>,
    ) -> Result<(), End> {
        let mut chunk = vec![0; HASH_CHUNK];
        while self.have < length {
            if *command.borrow() != DownloadCommand::Run {
                return Err(End::Stopped);
            }
            let read = self.file.read(&mut chunk);
            let read = read.map_err(HubError::on_disk(self.path, "read"))?;
            if read == 0 {
                break;
            }
            self.hash.update(&chunk[..read]);
            self.have += read as u64;
            reporter.checked(self.have);
        }
        Ok(())
    }

    /// Discards the bytes on disk.
    fn truncate(&mut self) -> Result<(), HubError> {
        self.file
            .set_len(0)
            .map_err(HubError::on_disk(self.path, "written"))?;
        (self.have, self.hash) = (0, Sha256::new());
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        self.file
            .write_all(bytes)
            .map_err(HubError::on_disk(self.path, "written"))?;
        self.hash.update(bytes);
        self.have += bytes.len() as u64;
        Ok(())
    }

    /// Makes one request, from the current end of the file. Succeeds when the file is complete.
    async fn receive(
        &mut self,
        connection: &Connection,
        file: &HubFile,
        reporter: &mut Reporter<'_>,
    ) -> Result<(), RequestFailure> {
        if self.have == file.bytes {
            return Ok(());
        }
        let Incoming {
            mut response,
            mut skip,
            host,
        } = connection.get(file, self.have).await?;
        reporter.downloading(self.have);
        loop {
            let chunk = match response.chunk().await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break,
                Err(error) if error.is_timeout() => {
                    return Err(retryable(connection.stalled(host)));
                }
                Err(_) => break,
            };
            let passed_over = skip.min(chunk.len() as u64);
            skip -= passed_over;
            let bytes = &chunk[passed_over as usize..];
            let left = file.bytes - self.have;
            if bytes.len() as u64 > left {
                let error = HubError::WrongLength {
                    host,
                    file: file.path.clone(),
                    offered: self.have + bytes.len() as u64,
                    expected: file.bytes,
                };
                return Err(retryable(error));
            }
            self.append(bytes)?;
            reporter.arrived(chunk.len() as u64, self.have);
        }
        if self.have == file.bytes {
            Ok(())
        } else {
            Err(retryable(HubError::CutOff { host, times: 1 }))
        }
    }

    /// Flushes the file to disk and returns its hash.
    fn finish(self) -> Result<String, HubError> {
        self.file
            .sync_all()
            .map_err(HubError::on_disk(self.path, "written"))?;
        Ok(format!("{:x}", self.hash.finalize()))
    }
}
