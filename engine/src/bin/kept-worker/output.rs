//! Standard output, which belongs to the replies alone.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::{Arc, Mutex, PoisonError};

use kept_engine::protocol::{Frame, Kind, ProtocolError, Reply, write_frame};

/// Where replies go. Clones write to the same pipe; a message and its bytes are never torn apart.
#[derive(Clone)]
pub struct Output(Arc<Mutex<BufWriter<File>>>);

impl Output {
    /// Takes standard output. Whatever else prints there from now on, some library of the many, lands on standard error.
    /// Call it before anything else can print.
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

    /// Replies go to `pipe`.
    pub fn new(pipe: File) -> Self {
        Self(Arc::new(Mutex::new(BufWriter::new(pipe))))
    }

    /// Says something that has no bytes.
    pub fn say(&self, reply: &Reply) {
        debug_assert!(!reply.has_bytes(), "{reply:?} has bytes");
        self.write(reply, None);
    }

    /// Says something with its bytes.
    pub fn say_with(&self, reply: &Reply, bytes: &[u8]) {
        debug_assert!(reply.has_bytes(), "{reply:?} has no bytes");
        self.write(reply, Some(bytes));
    }

    fn write(&self, reply: &Reply, bytes: Option<&[u8]>) {
        // Whoever panicked while writing left at worst a piece of a frame; the window sees that and starts anew.
        let mut pipe = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let written = Frame::json(reply).and_then(|frame| {
            write_frame(&mut *pipe, frame.kind, &frame.payload)?;
            if let Some(bytes) = bytes {
                write_frame(&mut *pipe, Kind::Bytes, bytes)?;
            }
            pipe.flush()?;
            Ok(())
        });
        match written {
            Ok(()) => {}
            // The window is gone; its end of our input closes too, and ends what runs.
            Err(ProtocolError::Io(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                tracing::debug!("nobody hears the replies any more");
            }
            Err(error) => {
                eprintln!("kept-worker: a reply could not be written: {error}");
                std::process::exit(crate::BROKEN);
            }
        }
    }
}
