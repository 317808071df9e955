//! Processes as shown by `/proc`: their parents, and termination of those that a test started.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// A process at the time of a look-up; it may have exited since.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Parent's process id.
    pub parent: u32,
    /// The name of its program, at most 15 bytes.
    pub name: String,
    /// Start time in ticks since boot: distinguishes processes with a reused id.
    started: u64,
}

impl Process {
    /// The process with this id, unless it has exited (a zombie counts as exited).
    pub fn of(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // `pid (name) state parent ...`, and a name may contain anything.
        let (front, rest) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let state = *fields.first()?;
        (state != "Z" && state != "X").then_some(())?;
        Some(Process {
            pid,
            parent: fields.get(1)?.parse().ok()?,
            name: front.split_once('(')?.1.to_owned(),
            started: fields.get(19)?.parse().ok()?,
        })
    }

    /// Whether this process still runs.
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid).is_some_and(|now| now.started == self.started)
    }

    /// Sends a signal by its name (`KILL`, `STOP`), if the process still runs.
    pub fn signal(&self, name: &str) {
        if self.is_alive() {
            // The shell's built-in `kill`: the program is in a package that small systems lack.
            let script = format!("kill -{name} {}", self.pid);
            let sent = Command::new("sh").args(["-c", &script]).status();
            assert!(
                sent.is_ok_and(|s| s.success()) || !self.is_alive(),
                "{} could not be sent {name}",
                self.name
            );
        }
    }

    /// Waits until the process has exited.
    pub fn ends_within(&self, timeout: Duration) {
        let started = Instant::now();
        while self.is_alive() {
            assert!(
                started.elapsed() < timeout,
                "{} ({}) is still running after {timeout:?}",
                self.name,
                self.pid
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// An environment variable of the process at its start.
    pub fn environment(&self, name: &str) -> Option<String> {
        let all = std::fs::read(format!("/proc/{}/environ", self.pid)).ok()?;
        let start = format!("{name}=").into_bytes();
        let found = all
            .split(|&b| b == 0)
            .find(|entry| entry.starts_with(&start))?;
        Some(String::from_utf8_lossy(&found[start.len()..]).into_owned())
    }

    /// Path of its executable.
    pub fn program(&self) -> Option<PathBuf> {
        std::fs::read_link(format!("/proc/{}/exe", self.pid)).ok()
    }
}

/// Every living process below `root`, nearest first.
pub fn processes_below(root: u32) -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").expect("/proc is there");
    let all: Vec<Process> = entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(Process::of)
        .collect();
    let mut found: Vec<Process> = Vec::new();
    let mut level = vec![root];
    while !level.is_empty() {
        let next: Vec<Process> = all
            .iter()
            .filter(|p| level.contains(&p.parent) && !found.contains(p))
            .cloned()
            .collect();
        level = next.iter().map(|p| p.pid).collect();
        found.extend(next);
    }
    found
}

/// A program that a test started: it and all its descendants are killed on drop.
#[derive(Debug)]
pub struct Started(pub Child);

impl Started {
    /// Process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let below = processes_below(self.0.id());
        // The program may have exited already: then only `wait` is needed.
        let _ = self.0.kill();
        let _ = self.0.wait();
        for process in below {
            process.signal("KILL");
        }
    }
}

/// A program of this build: `target/<profile>/<name>`, built as by [`crate::terminal::program`].
pub fn built(name: &str) -> PathBuf {
    let folder = if std::env::var_os("KEPT_BIN").is_some() {
        // `KEPT_BIN` names an installed terminal program; the other programs are next to this test.
        let this = std::env::current_exe().expect("the path of this test");
        this.ancestors()
            .nth(2)
            .map(Path::to_path_buf)
            .expect("target/<profile>/deps")
    } else {
        let terminal = crate::terminal::program();
        terminal.parent().expect("a folder").to_path_buf()
    };
    let program = folder.join(name);
    assert!(
        program.exists(),
        "{} is not built: run cargo build --workspace --bins",
        program.display()
    );
    program
}
