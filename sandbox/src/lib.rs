//! Work on hostile input in a process of its own, with limits: a parser that overflows its stack, never ends or takes all
//! memory costs one sentence, and what takes it over can read no file and reach no network.
//!
//! ```text
//! program: run(task, input) --starts itself as--> program --kept-sandbox TASK ...: enter(tasks) --> limits --> task
//!          reply, or why there is none <--pipe--                                                     reply, exit
//! ```
//!
//! A program calls [`enter`] first in `main`. In a program that does not, [`is_available`] is false, and its parsers
//! work in its own process.

mod confine;
mod program;

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

pub use confine::make_file_limit_an_error;
pub use program::command;

/// The first argument of the process that works.
const ARGUMENT: &str = "--kept-sandbox";
/// Stack size of the task's thread in bytes. Only what is used takes memory.
const STACK_BYTES: usize = 64 << 20;
/// Seconds on the clock per second of computing, before a process that waits is ended.
const WALL_PER_CPU_SECOND: u64 = 6;
/// Exit code for an invalid command line.
const MALFORMED: i32 = 2;
/// Exit code of work that panicked. The reply is the place in the source then, of at most [`PLACE_CHARS`] characters.
const PANICKED: i32 = 3;
const PLACE_CHARS: usize = 120;

/// Work by name: bytes in, bytes out.
#[derive(Debug, Clone, Copy)]
pub struct Task {
    /// The name.
    pub name: &'static str,
    /// The work. If it panics, the run ends with [`Exceeded::Panicked`].
    pub work: fn(Vec<u8>) -> Vec<u8>,
}

/// Limits of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Address space in bytes, besides what the program itself takes.
    pub memory: u64,
    /// Seconds of computing.
    pub seconds: u64,
    /// Bytes of the reply.
    pub reply: u64,
}

/// Why there is no reply, as the second half of a sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Exceeded {
    /// More memory than the limit in bytes.
    #[error("it takes more than {} MiB of memory", .0 >> 20)]
    Memory(u64),
    /// More computing than the limit in seconds.
    #[error("it takes more than {0} s of computing")]
    Time(u64),
    /// More recursion than the stack holds.
    #[error("it is nested too deeply")]
    Depth,
    /// A longer reply than the limit in bytes.
    #[error("it unfolds to more than {} MiB", .0 >> 20)]
    Reply(u64),
    /// The work panicked at this place in its source, `FOLDER/FILE.rs:LINE`.
    #[error("the code that reads it fails (at {0})")]
    Panicked(String),
    /// No such work, or a reply that makes no sense.
    #[error("its structure makes no sense")]
    Senseless,
}

/// Why a run has no reply.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The input is to blame.
    #[error(transparent)]
    Exceeded(#[from] Exceeded),
    /// The process could not be started.
    #[error("no process could be started for it ({0})")]
    NotStarted(#[from] io::Error),
}

/// Where a thread of the process that works panicked first.
static PANIC_PLACE: OnceLock<String> = OnceLock::new();

/// The exit code with which this program's allocator ends it, once [`enter`] was called.
static OUT_OF_MEMORY: OnceLock<i32> = OnceLock::new();

/// Makes this program able to [`run`] `tasks`; in the process that was started for one, does it and ends the process.
/// From then on a file that grows beyond the user's limit is an error of the write, not the end of the program.
/// `out_of_memory` is the exit code with which the program's allocator ends it.
pub fn enter(tasks: &[Task], out_of_memory: i32) {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next();
    if first.as_ref().is_some_and(|first| first == ARGUMENT) {
        std::process::exit(serve(tasks, arguments).unwrap_or(MALFORMED));
    }
    if first.is_some_and(|first| first == program::ARGUMENT) {
        program::become_program(arguments);
        std::process::exit(MALFORMED);
    }
    confine::make_file_limit_an_error();
    // A second call says the same.
    let _ = OUT_OF_MEMORY.set(out_of_memory);
}

/// Whether this program can [`run`] tasks.
pub fn is_available() -> bool {
    OUT_OF_MEMORY.get().is_some()
}

/// Does `task` on `input`, the parts of which are joined, in a process of its own.
///
/// # Errors
/// The limit that was exceeded, or why no process could be started.
///
/// # Panics
/// If [`enter`] was not called.
pub fn run(task: &str, input: &[&[u8]], limits: Limits) -> Result<Vec<u8>, Failure> {
    let out_of_memory = *OUT_OF_MEMORY.get().expect("the program called enter");
    let mut child = start(task, input, limits)?;
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(io::Error::other("it has no pipes").into());
    };
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        scope.spawn(move || {
            // The status of a process that reads no more says why.
            let _ = input.iter().try_for_each(|part| stdin.write_all(part));
        });
        scope.spawn(move || {
            let mut reply = Vec::new();
            let read = stdout.take(limits.reply + 1).read_to_end(&mut reply);
            let _ = sender.send(read.map(|_| reply));
        });
        let timeout = Duration::from_secs(limits.seconds.saturating_mul(WALL_PER_CPU_SECOND));
        let until = Instant::now() + timeout;
        let reply = receiver.recv_timeout(timeout);
        let fits = |reply: &Vec<u8>| reply.len() as u64 <= limits.reply;
        let status = match &reply {
            Ok(Ok(reply)) if fits(reply) => end(&mut child, until)?,
            _ => end(&mut child, Instant::now())?,
        };
        match (reply, status) {
            (Ok(Ok(reply)), _) if !fits(&reply) => Err(Exceeded::Reply(limits.reply).into()),
            (Ok(reply), Some(status)) if status.success() => Ok(reply?),
            (Ok(Ok(place)), Some(status)) if status.code() == Some(PANICKED) => {
                Err(Exceeded::Panicked(printable(&place)).into())
            }
            (_, Some(status)) => Err(reason(status, limits, out_of_memory).into()),
            (_, None) => Err(Exceeded::Time(limits.seconds).into()),
        }
    })
}

/// Text of a process that hostile input may have taken over, for an error message.
fn printable(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let visible = text.chars().filter(char::is_ascii_graphic);
    visible.take(PLACE_CHARS).collect()
}

/// Waits for the end of a process; `None` if it had to be ended.
fn end(child: &mut Child, until: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn own_program() -> io::Result<PathBuf> {
    // The file may have been replaced by an update since this program was started.
    match cfg!(target_os = "linux") {
        true => Ok("/proc/self/exe".into()),
        false => std::env::current_exe(),
    }
}

fn start(task: &str, input: &[&[u8]], limits: Limits) -> io::Result<Child> {
    let bytes: usize = input.iter().map(|part| part.len()).sum();
    let mut command = Command::new(own_program()?);
    command.args([ARGUMENT, task]);
    command.args([limits.memory, limits.seconds, bytes as u64].map(|n| n.to_string()));
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if cfg!(unix) {
        // Only what finds the program's libraries.
        let libraries = std::env::var_os("LD_LIBRARY_PATH");
        command.env_clear().current_dir("/");
        command.envs(libraries.map(|folders| ("LD_LIBRARY_PATH", folders)));
    }
    command.spawn()
}

/// What a process that failed exceeded.
fn reason(status: ExitStatus, limits: Limits, out_of_memory: i32) -> Exceeded {
    /// How Windows reports a stack overflow.
    const STATUS_STACK_OVERFLOW: i32 = 0xc000_00fd_u32 as i32;
    match (confine::signal(status), status.code()) {
        (Some(confine::Signal::Time), _) => Exceeded::Time(limits.seconds),
        (Some(confine::Signal::Stack), _) | (_, Some(STATUS_STACK_OVERFLOW)) => Exceeded::Depth,
        (Some(confine::Signal::Memory), _) => Exceeded::Memory(limits.memory),
        (_, Some(code)) if code == out_of_memory => Exceeded::Memory(limits.memory),
        _ => Exceeded::Senseless,
    }
}

/// The process that works: `TASK MEMORY SECONDS INPUT_BYTES`. Returns its exit code.
fn serve(tasks: &[Task], mut arguments: impl Iterator<Item = OsString>) -> Option<i32> {
    // A hostile file may choose the text of a panic, but not its place.
    std::panic::set_hook(Box::new(|panic| {
        let _ = PANIC_PLACE.set(panic.location().map_or_else(String::new, place));
    }));
    let task = arguments.next()?;
    let work = tasks.iter().find(|known| task == known.name)?.work;
    let mut number = || arguments.next()?.to_str()?.parse::<u64>().ok();
    let (memory, seconds, bytes) = (number()?, number()?, number()?);
    confine::confine(memory + STACK_BYTES as u64, seconds);
    let mut input = Vec::with_capacity(usize::try_from(bytes).ok()?);
    io::stdin().read_to_end(&mut input).ok()?;
    let working = thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(move || work(input));
    let (reply, code) = match working.ok()?.join() {
        Ok(reply) => (reply, 0),
        Err(_) => (PANIC_PLACE.get()?.clone().into_bytes(), PANICKED),
    };
    let mut stdout = io::stdout();
    stdout
        .write_all(&reply)
        .and_then(|()| stdout.flush())
        .ok()?;
    Some(code)
}

/// `FOLDER/FILE.rs:LINE`, with the last folder of the path that is not `src`.
fn place(location: &std::panic::Location<'_>) -> String {
    let mut parts: Vec<&str> = location.file().split(['/', '\\']).collect();
    parts.retain(|part| *part != "src");
    let short = parts[parts.len().saturating_sub(2)..].join("/");
    format!("{short}:{}", location.line())
}
