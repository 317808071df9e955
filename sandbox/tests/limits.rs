//! What a task may take and reach, with real tasks in real processes.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use kept_kernels::{CountingAllocator, OUT_OF_MEMORY};
use kept_sandbox::{Exceeded, Failure, Limits, Task, command, enter, run};
use libtest_mimic::{Arguments, Trial};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const LIMITS: Limits = Limits {
    memory: 256 << 20,
    seconds: 2,
    reply: 1 << 20,
};

const TASKS: &[Task] = &[
    task("echo", |input| input),
    task("memory", |_| vec![1; 512 << 20]),
    task("loop", |_| {
        loop {
            std::hint::spin_loop();
        }
    }),
    task("sleep", |_| {
        std::thread::sleep(Duration::from_secs(3600));
        Vec::new()
    }),
    task("recursion", |input| vec![deep(input.len() as u64) as u8]),
    task("panic", |_| panic!("no")),
    task("reply", |_| vec![0; 2 << 20]),
    task("reach", |_| reach().into_bytes()),
    task("thread", |input| {
        let thread = std::thread::spawn(move || input.len());
        thread.join().expect("a thread").to_string().into_bytes()
    }),
];

const fn task(name: &'static str, work: fn(Vec<u8>) -> Vec<u8>) -> Task {
    Task { name, work }
}

fn deep(depth: u64) -> u64 {
    let here = std::hint::black_box([depth; 16]);
    match std::hint::black_box(true) {
        true => deep(depth + 1) + here[3],
        false => depth,
    }
}

/// What could be reached that must not be.
fn reach() -> String {
    let mut reached = Vec::new();
    for file in ["/etc/passwd", "/proc/self/environ", "/dev/null"] {
        if std::fs::read(file).is_ok() {
            reached.push(file);
        }
    }
    let written = std::env::temp_dir().join("kept-sandbox-was-here");
    if std::fs::write(written, "x").is_ok() {
        reached.push("a file to write");
    }
    if std::fs::read_dir("/").is_ok() {
        reached.push("a folder");
    }
    if std::net::TcpListener::bind("127.0.0.1:0").is_ok() {
        reached.push("a socket");
    }
    if std::process::Command::new("/bin/true").status().is_ok() {
        reached.push("a program");
    }
    if std::env::vars().any(|(name, _)| name != "LD_LIBRARY_PATH") {
        reached.push("the environment");
    }
    reached.join(", ")
}

fn exceeded(name: &str) -> Exceeded {
    match run(name, &[b"some ", b"input"], LIMITS) {
        Err(Failure::Exceeded(why)) => why,
        other => panic!("{name}: {other:?}"),
    }
}

fn main() {
    enter(TASKS, OUT_OF_MEMORY);
    let trials: [(&str, fn()); 2] = [
        (
            "what_a_task_takes_and_reaches_is_limited",
            what_a_task_takes_and_reaches_is_limited,
        ),
        (
            "what_another_program_writes_and_reaches_is_limited",
            what_another_program_writes_and_reaches_is_limited,
        ),
    ];
    let trials = trials.map(|(name, check)| {
        Trial::test(name, move || {
            check();
            Ok(())
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit();
}

fn what_another_program_writes_and_reaches_is_limited() {
    if !cfg!(target_os = "linux") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let shell = |script: &str| {
        let mut command = command(OsStr::new("/bin/bash"), folder.path(), LIMITS).expect("itself");
        command.args(["-c", script]).current_dir(folder.path());
        let output = command.output().expect("a shell");
        (output.status.code(), output.stdout)
    };
    assert_eq!(
        shell("read x < /etc/passwd && echo hello > here && cat here; exit 3"),
        (Some(3), b"hello\n".into())
    );
    assert_eq!(shell("echo thrown away > /dev/null").0, Some(0));
    let outside = tempfile::tempdir().expect("a folder");
    let there = outside.path().join("there");
    if has_landlock() {
        assert_ne!(shell(&format!("echo no > {}", there.display())).0, Some(0));
        assert_ne!(
            shell(&format!("rmdir {}", outside.path().display())).0,
            Some(0)
        );
        assert!(!there.exists() && outside.path().exists());
    } else {
        eprintln!(
            "skipped: this kernel has no Landlock, and files outside of the folder can be written"
        );
    }
    assert_ne!(shell("exec 3<>/dev/tcp/127.0.0.1/9").0, Some(0));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    assert_ne!(
        shell(&format!("exec 3<>/dev/tcp/127.0.0.1/{port}")).0,
        Some(0)
    );
    assert_ne!(
        shell("head -c 2000000 /dev/zero > large").0,
        Some(0),
        "a file above the limit"
    );
    // The shell is ended by the signal of the limit.
    assert_eq!(
        shell("while :; do :; done").0,
        None,
        "more computing than the limit"
    );
    let missing = command(OsStr::new("/no/such/program"), folder.path(), LIMITS);
    assert!(
        !missing
            .expect("itself")
            .status()
            .expect("a process")
            .success()
    );
}

/// Whether the kernel can confine what a process writes.
fn has_landlock() -> bool {
    use landlock::{ABI, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr};
    let rules = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    rules
        .handle_access(AccessFs::from_write(ABI::V1))
        .and_then(|r| r.create())
        .is_ok()
}

fn what_a_task_takes_and_reaches_is_limited() {
    let large = vec![7; 900_000];
    let echoed = run("echo", &[b"a", &large], LIMITS).expect("an echo");
    assert_eq!((echoed[0], &echoed[1..]), (b'a', &large[..]));
    assert_eq!(exceeded("loop"), Exceeded::Time(2));
    let Exceeded::Panicked(place) = exceeded("panic") else {
        panic!("a panic was not reported as one");
    };
    let line = place.strip_prefix("tests/limits.rs:").expect("its file");
    line.parse::<u32>().expect("its line");
    assert_eq!(exceeded("reply"), Exceeded::Reply(1 << 20));
    assert_eq!(exceeded("none"), Exceeded::Senseless);
    let thread = run("thread", &[b"four"], LIMITS).expect("a thread");
    assert_eq!(thread, b"4");
    if cfg!(target_os = "linux") {
        assert_eq!(exceeded("memory"), Exceeded::Memory(256 << 20));
        assert_eq!(exceeded("recursion"), Exceeded::Depth);
        let reached = run("reach", &[], LIMITS).expect("a reply");
        assert_eq!(String::from_utf8_lossy(&reached), "");
    }
    let asleep = Instant::now();
    let short = Limits {
        seconds: 1,
        ..LIMITS
    };
    let slept = run("sleep", &[], short);
    assert!(matches!(slept, Err(Failure::Exceeded(Exceeded::Time(1)))));
    assert!(asleep.elapsed() < Duration::from_secs(60));
}
