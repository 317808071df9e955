//! Another program with limits: it reads files, but writes into one folder only and opens no socket.
//!
//! ```text
//! program: command(other, ..) --starts itself as--> program --kept-sandbox-become ...: enter(tasks) --> limits --> other
//! ```

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

use crate::{Limits, confine, is_available, own_program};

/// The first argument of the process that becomes another program.
pub(crate) const ARGUMENT: &str = "--kept-sandbox-become";

/// A command that runs `program` with `limits`, where `reply` is the size of a file that it writes. It writes into
/// `folder` only. A program that did not call [`enter`](crate::enter), or a system that cannot confine processes, runs it
/// as it is.
///
/// # Errors
/// If the path of this program is unknown.
pub fn command(program: &OsStr, folder: &Path, limits: Limits) -> std::io::Result<Command> {
    if !cfg!(unix) || !is_available() {
        return Ok(Command::new(program));
    }
    let mut command = Command::new(own_program()?);
    command.arg(ARGUMENT);
    command.args([limits.memory, limits.seconds, limits.reply].map(|n| n.to_string()));
    command.arg(folder).arg(program);
    Ok(command)
}

/// The process that becomes another program: `MEMORY SECONDS BYTES FOLDER PROGRAM ...`. Returns only if it cannot.
pub(crate) fn become_program(mut arguments: impl Iterator<Item = OsString>) -> Option<()> {
    let mut number = || arguments.next()?.to_str()?.parse::<u64>().ok();
    let limits = Limits {
        memory: number()?,
        seconds: number()?,
        reply: number()?,
    };
    let (folder, program) = (arguments.next()?, arguments.next()?);
    let mut command = Command::new(program);
    command.args(arguments);
    confine::confine_program(limits, Path::new(&folder));
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt;
        let _ = command.exec();
    }
    None
}
