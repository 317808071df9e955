//! Standard output, reserved for replies.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::{Arc, Mutex, PoisonError};

use kept_worker::protocol::{ProtocolError, Reply, write_message};

/// Writer of replies. Clones write to the same pipe; a message is written without interruption.
#[derive(Clone)]
pub struct Output(Arc<Mutex<BufWriter<File>>>);

impl Output {
    /// Takes standard output. Later prints by any library go to standard error. Must be called before the first
    /// print.
    #[cfg(unix)]
    pub fn take_stdout() -> io::Result<Self> {
        use std::os::fd::AsFd;
        let pipe = io::stdout().as_fd().try_clone_to_owned()?;
        rustix::stdio::dup2_stdout(io::stderr())?;
        Ok(Self::new(File::from(pipe)))
    }

    /// Takes standard output.
    #[cfg(windows)]
    pub fn take_stdout() -> io::Result<Self> {
        use std::os::windows::io::AsHandle;
        let pipe = io::stdout().as_handle().try_clone_to_owned()?;
        Ok(Self::new(File::from(pipe)))
    }

    /// Writes replies to `pipe`.
    pub fn new(pipe: File) -> Self {
        Self(Arc::new(Mutex::new(BufWriter::new(pipe))))
    }

    /// Writes a reply without bytes.
    pub fn send(&self, reply: &Reply) {
        self.send_with_bytes(reply, &[]);
    }

    /// Writes a reply with its bytes.
    pub fn send_with_bytes(&self, reply: &Reply, bytes: &[u8]) {
        // A panic during a write leaves at most an incomplete frame; the app detects it and starts a new process.
        let mut pipe = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let written = write_message(&mut *pipe, reply, bytes);
        let written = written.and_then(|()| Ok(pipe.flush()?));
        match written {
            Ok(()) => {}
            // The app is gone; its end of standard input closes too, which stops running work.
            Err(ProtocolError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                tracing::debug!("no reader for the replies");
            }
            Err(error) => {
                eprintln!("kept-worker: a reply could not be written: {error}");
                std::process::exit(crate::BROKEN);
            }
        }
    }
}
