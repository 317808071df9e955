//! What the system offers to confine a process: limits on all Unix systems, and on Linux a filter of system calls.

use std::path::Path;
use std::process::ExitStatus;

use crate::Limits;

/// The signals that a limit sends.
pub(crate) enum Signal {
    /// The limit on computing.
    Time,
    /// The system had no more memory for anybody.
    Memory,
    /// A stack overflow, after which Rust aborts.
    Stack,
}

#[cfg(unix)]
pub(crate) fn signal(status: ExitStatus) -> Option<Signal> {
    use rustix::process::Signal as Of;
    use std::os::unix::process::ExitStatusExt;
    let of = status.signal().and_then(Of::from_named_raw)?;
    match of {
        Of::XCPU => Some(Signal::Time),
        Of::KILL => Some(Signal::Memory),
        Of::ABORT | Of::SEGV | Of::BUS => Some(Signal::Stack),
        _ => None,
    }
}

#[cfg(not(unix))]
pub(crate) fn signal(_status: ExitStatus) -> Option<Signal> {
    None
}

/// From now on a file that grows beyond the user's limit is an error of the write, not the end of the program.
pub fn make_file_limit_an_error() {
    #[cfg(unix)]
    {
        let noticed = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        // Where it cannot be caught, the program ends as any other does.
        let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, noticed);
    }
}

/// Confines this process: `memory` bytes of address space besides what it has, `seconds` of computing, no file, no
/// network, no other program. A limit that the system does not have is left out.
pub(crate) fn confine(memory: u64, seconds: u64) {
    // Standard input, output and error are open.
    #[cfg(unix)]
    limit(memory, seconds, 0, Some(3));
    #[cfg(target_os = "linux")]
    linux::filter_calls();
    #[cfg(not(unix))]
    let _ = (memory, seconds);
}

/// Confines this process, which becomes another program: it writes files of at most `limits.reply` bytes, and into
/// `folder` only. A limit that the system does not have is left out.
pub(crate) fn confine_program(limits: Limits, folder: &Path) {
    #[cfg(unix)]
    limit(limits.memory, limits.seconds, limits.reply, None);
    #[cfg(target_os = "linux")]
    {
        linux::write_only_below(folder);
        linux::filter_sockets();
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (limits, folder);
}

/// `file` is the largest file in bytes, `files` the number of open ones.
#[cfg(unix)]
fn limit(memory: u64, seconds: u64, file: u64, files: Option<u64>) {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let own = own_bytes().map(|own| own.saturating_add(memory));
    let limits = [
        (Resource::As, own),
        (Resource::Cpu, Some(seconds)),
        (Resource::Fsize, Some(file)),
        (Resource::Core, Some(0)),
        (Resource::Nofile, files),
    ];
    for (resource, current) in limits.into_iter().filter(|(_, most)| most.is_some()) {
        // The signal of the limit on computing comes at `current`, the end at `maximum`.
        let maximum = current.map(|most| most.saturating_add(1));
        // A system may refuse a limit that it does not enforce.
        let _ = setrlimit(resource, Rlimit { current, maximum });
    }
}

/// Address space of this program so far; `None` where it is unknown, and no limit would be right.
#[cfg(unix)]
fn own_bytes() -> Option<u64> {
    let pages = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = pages.split(' ').next()?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeMap;
    use std::path::Path;

    use landlock::{
        ABI, AccessFs, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    };
    use seccompiler::{
        BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
        SeccompRule, TargetArch,
    };

    /// What memory, threads, pipes and an orderly end need.
    const ALLOWED: &[i64] = &[
        libc::SYS_brk,
        libc::SYS_clock_gettime,
        libc::SYS_clock_nanosleep,
        libc::SYS_close,
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_fstat,
        libc::SYS_futex,
        libc::SYS_getpid,
        libc::SYS_getrandom,
        libc::SYS_gettid,
        libc::SYS_madvise,
        libc::SYS_mmap,
        libc::SYS_mprotect,
        libc::SYS_mremap,
        libc::SYS_munmap,
        libc::SYS_nanosleep,
        libc::SYS_prctl,
        libc::SYS_read,
        libc::SYS_restart_syscall,
        libc::SYS_rseq,
        libc::SYS_rt_sigaction,
        libc::SYS_rt_sigprocmask,
        libc::SYS_rt_sigreturn,
        libc::SYS_sched_getaffinity,
        libc::SYS_sched_yield,
        libc::SYS_set_robust_list,
        libc::SYS_sigaltstack,
        libc::SYS_tgkill,
        libc::SYS_write,
        libc::SYS_writev,
    ];

    /// The calls by which a program reaches another one or the network.
    const SOCKETS: &[i64] = &[
        libc::SYS_socket,
        libc::SYS_socketpair,
        libc::SYS_io_uring_setup,
        libc::SYS_ptrace,
        libc::SYS_process_vm_writev,
    ];

    /// Makes [`SOCKETS`] fail. On a kernel without filters nothing happens.
    pub(super) fn filter_sockets() {
        let rules = SOCKETS.iter().map(|call| (*call, Vec::new())).collect();
        let (refuse, allow) = (
            SeccompAction::Errno(libc::EACCES as u32),
            SeccompAction::Allow,
        );
        if let Some(filter) = program(rules, allow, refuse) {
            let _ = seccompiler::apply_filter(&filter);
        }
    }

    /// Makes every change of a file outside of `folder` fail. On a kernel without Landlock nothing happens.
    pub(super) fn write_only_below(folder: &Path) {
        let restrict = || -> Result<(), RulesetError> {
            let writing = AccessFs::from_write(ABI::V3);
            let mut rules = Ruleset::default().handle_access(writing)?.create()?;
            // Programs throw output away.
            let files = AccessFs::WriteFile | AccessFs::Truncate;
            for (path, access) in [(folder, writing), (Path::new("/dev/null"), files)] {
                if let Ok(path) = PathFd::new(path) {
                    rules = rules.add_rule(PathBeneath::new(path, access))?;
                }
            }
            rules.restrict_self().map(|_| ())
        };
        let _ = restrict();
    }

    /// Makes every other system call fail as if the system did not have it. On a kernel without filters nothing happens.
    pub(super) fn filter_calls() {
        if let Some(filter) = filter() {
            let _ = seccompiler::apply_filter(&filter);
        }
    }

    fn filter() -> Option<BpfProgram> {
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
            ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
        // A thread, not a process. The newer `clone3` hides its flags, and libraries do without it.
        let thread = libc::CLONE_THREAD as u64;
        let is_thread = SeccompCmpOp::MaskedEq(thread);
        let is_thread =
            SeccompCondition::new(0, SeccompCmpArgLen::Qword, is_thread, thread).ok()?;
        rules.insert(
            libc::SYS_clone,
            vec![SeccompRule::new(vec![is_thread]).ok()?],
        );
        let missing = SeccompAction::Errno(libc::ENOSYS as u32);
        program(rules, missing, SeccompAction::Allow)
    }

    fn program(
        rules: BTreeMap<i64, Vec<SeccompRule>>,
        other: SeccompAction,
        listed: SeccompAction,
    ) -> Option<BpfProgram> {
        let arch = TargetArch::try_from(std::env::consts::ARCH).ok()?;
        let filter = SeccompFilter::new(rules, other, listed, arch).ok()?;
        filter.try_into().ok()
    }
}
