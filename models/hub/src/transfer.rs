//! One file onto the disk: from whatever of it is there to the whole, checked file.
//!
//! This is written here and not taken from `hf-hub`, whose 1.0 begins every download at zero, cannot be paused, and does not
//! compare hashes. The rules:
//!
//! - Every byte that arrives is written at once, without a buffer of ours, so that a process that is killed loses nothing.
//! - The hash is computed as bytes arrive. What arrived in an earlier run is read again first: a partial file is never believed.
//! - The file gets its name only after its hash is the hub's. A wrong one is removed; if part of it came from an earlier run (or
//!   from another tool, which may have left holes), it is downloaded once more from zero before that is called an error.
//! - A server that does not know ranges sends everything again; what is there already is passed over, and not lost if that
//!   fails too.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::sync::watch;

use crate::remote::{Connection, Incoming};
use crate::reporter::Reporter;
use crate::trouble::{Trouble, passing};
use crate::{HubCache, HubError, HubFile};

/// What the person wants of a running download.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Run,
    Pause,
    Cancel,
}

/// Why a download is not done.
#[derive(Debug)]
pub(crate) enum End {
    /// The person wished it.
    Stopped,
    /// The file is another one now than the list said.
    Changed,
    /// It failed.
    Failed(HubError),
}

impl From<HubError> for End {
    fn from(error: HubError) -> End {
        End::Failed(error)
    }
}

/// The first wait before a request is repeated; each further one is twice as long.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_BACKOFF: Duration = Duration::from_secs(30);
/// Bytes of a partial file that are hashed in one go.
const HASH_CHUNK: usize = 1 << 20;

/// Completes when the person wishes something else than running.
pub(crate) async fn stopped(wish: &mut watch::Receiver<Wish>) {
    // Fails when nobody can wish anything any more: then nobody stops it.
    if wish.wait_for(|wish| *wish != Wish::Run).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Repeats `attempt` while its trouble is passing and `retries` are left; any progress in between gives all of them back.
pub(crate) async fn repeat<T>(
    retries: u32,
    wish: &mut watch::Receiver<Wish>,
    reporter: &mut Reporter<'_>,
    mut attempt: impl AsyncFnMut(&mut Reporter<'_>, &mut watch::Receiver<Wish>) -> Result<T, Trouble>,
) -> Result<T, End> {
    let (mut failures, mut received) = (0, reporter.received());
    loop {
        let outcome = {
            let mut stop = wish.clone();
            tokio::select! {
                biased;
                () = stopped(&mut stop) => return Err(End::Stopped),
                outcome = attempt(reporter, wish) => outcome,
            }
        };
        let (error, wait) = match outcome {
            Ok(done) => return Ok(done),
            Err(Trouble::Final(error)) => return Err(End::Failed(error)),
            Err(Trouble::Changed) => return Err(End::Changed),
            Err(Trouble::Passing { error, wait }) => (error, wait),
            Err(Trouble::StartOver) => continue,
        };
        if reporter.received() > received {
            (failures, received) = (0, reporter.received());
        }
        failures += 1;
        if failures > retries {
            return Err(End::Failed(error.after(failures)));
        }
        let backoff = (FIRST_WAIT * 2u32.pow((failures - 1).min(16))).min(LONGEST_BACKOFF);
        let wait = wait.unwrap_or(backoff);
        reporter.waiting(&error, wait);
        tokio::select! {
            biased;
            () = stopped(wish) => return Err(End::Stopped),
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Brings one file whole and checked to its blob. Its name in the snapshot is given later, when all parts are there.
pub(crate) async fn fetch(
    connection: &Connection,
    cache: &HubCache,
    file: &HubFile,
    retries: u32,
    wish: &mut watch::Receiver<Wish>,
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
        let mut arriving = Arriving::open(&partial, file.bytes, wish, reporter)?;
        let resumed = arriving.have > 0;
        let outcome = repeat(retries, wish, reporter, async |reporter, _| {
            let outcome = arriving.receive(connection, file, reporter).await;
            if let Err(Trouble::StartOver) = outcome {
                arriving.empty()?;
                reporter.start_over();
            }
            outcome
        })
        .await;
        if let Err(End::Changed) = outcome {
            // Of a file that is no longer there; nobody will ever go on with it.
            fs::remove_file(&partial).map_err(HubError::on_disk(&partial, "removed"))?;
        }
        outcome?;
        if arriving.finish()? == file.sha256 {
            fs::rename(&partial, &blob).map_err(HubError::on_disk(&blob, "written"))?;
            reporter.part_done(file.bytes);
            return Ok(());
        }
        fs::remove_file(&partial).map_err(HubError::on_disk(&partial, "removed"))?;
        if !resumed || again {
            return Err(End::Failed(HubError::WrongHash {
                file: file.path.clone(),
            }));
        }
        again = true;
        reporter.start_over();
    }
}

/// A file that is arriving: what is on disk, and the hash of exactly that.
struct Arriving<'a> {
    path: &'a Path,
    file: File,
    have: u64,
    hash: Sha256,
}

impl<'a> Arriving<'a> {
    /// Opens what is there, and hashes it.
    fn open(
        path: &'a Path,
        whole: u64,
        wish: &watch::Receiver<Wish>,
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
            arriving.empty()?;
        } else if length > 0 {
            reporter.checking();
            arriving.hash_what_is_there(length, wish, reporter)?;
        }
        reporter.downloading(arriving.have);
        Ok(arriving)
    }

    fn hash_what_is_there(
        &mut self,
        length: u64,
        wish: &watch::Receiver<Wish>,
        reporter: &mut Reporter<'_>,
    ) -> Result<(), End> {
        let mut chunk = vec![0; HASH_CHUNK];
        while self.have < length {
            if *wish.borrow() != Wish::Run {
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

    /// Throws away what is there.
    fn empty(&mut self) -> Result<(), HubError> {
        self.file
            .set_len(0)
            .map_err(HubError::on_disk(self.path, "written"))?;
        (self.have, self.hash) = (0, Sha256::new());
        Ok(())
    }

    fn take(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        self.file
            .write_all(bytes)
            .map_err(HubError::on_disk(self.path, "written"))?;
        self.hash.update(bytes);
        self.have += bytes.len() as u64;
        Ok(())
    }

    /// One request, from where the file ends; done when the file is whole.
    async fn receive(
        &mut self,
        connection: &Connection,
        file: &HubFile,
        reporter: &mut Reporter<'_>,
    ) -> Result<(), Trouble> {
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
                    return Err(passing(connection.stalled(host)));
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
                return Err(passing(error));
            }
            self.take(bytes)?;
            reporter.arrived(chunk.len() as u64, self.have);
        }
        match self.have == file.bytes {
            true => Ok(()),
            false => Err(passing(HubError::CutOff { host, times: 1 })),
        }
    }

    /// Everything is on the disk itself; the hash of it.
    fn finish(self) -> Result<String, HubError> {
        self.file
            .sync_all()
            .map_err(HubError::on_disk(self.path, "written"))?;
        Ok(hex(&self.hash.finalize()))
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing into a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
