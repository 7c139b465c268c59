//! Facts about processes and the host. Linux provides all; on other systems most are unknown.

use std::os::unix::fs::MetadataExt as _;

use rollout_protocol::digest::Digest;
use rustix::process::{Pid, test_kill_process};

/// Index of the start time among the fields after the program's name in `/proc/<pid>/stat`.
const START_FIELD: usize = 19;

/// Separator between the host's name, which cannot contain it, and the token for its machine.
const MACHINE_SEPARATOR: char = '/';

/// Hexadecimal digits of a machine's token.
const MACHINE_DIGITS: usize = 16;

/// Name of the host; other machines may have the same.
pub(super) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Name of the host and token of its machine: machines cloned from one image have the same name.
pub(super) fn host() -> String {
    let id = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    match machine(&id) {
        Some(machine) => format!("{}{MACHINE_SEPARATOR}{machine}", host_name()),
        None => host_name(),
    }
}

/// The name in the text of [`host`].
pub(super) fn name_in(host: &str) -> &str {
    host.split_once(MACHINE_SEPARATOR).map_or(host, |(name, _)| name)
}

/// Whether a host is distinguishable from others of the same name.
pub(super) fn identifies_machine(host: &str) -> bool {
    host.contains(MACHINE_SEPARATOR)
}

/// Token for a machine id. The id itself must not be exposed: see machine-id(5).
fn machine(id: &str) -> Option<String> {
    let id = id.trim();
    let whole = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let digest = Digest::sha256(format!("rollout machine {id}").as_bytes());
    whole.then(|| digest.hex()[..MACHINE_DIGITS].to_owned())
}

/// Empty if there is none.
pub(super) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

/// Zero if there is none.
pub(super) fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |metadata| metadata.ino())
}

/// Zero if unknown.
pub(super) fn own_start_ticks() -> u64 {
    if proc_matches_own_namespace() { start_ticks(std::process::id()).unwrap_or(0) } else { 0 }
}

/// Whether the process with this pid and start time no longer exists. The pid must be of this
/// process's own PID namespace.
pub(super) fn is_gone(pid: u32, started: u64) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    // Not by looking into /proc, which may hide the processes of other users.
    if test_kill_process(pid) == Err(rustix::io::Errno::SRCH) {
        return true;
    }
    let number = pid.as_raw_nonzero().get().unsigned_abs();
    started != 0
        && proc_matches_own_namespace()
        && start_ticks(number).is_some_and(|found| found != started)
}

/// Whether the pids in `/proc` are of this process's own PID namespace: a container may show its
/// host's.
fn proc_matches_own_namespace() -> bool {
    std::fs::read_link("/proc/self")
        .is_ok_and(|link| link.to_str() == Some(&std::process::id().to_string()))
}

/// Start time of a process in ticks since boot; `None` if it cannot be read.
pub fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The program's name may contain anything, even parentheses and line breaks.
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    rest.split_ascii_whitespace().nth(START_FIELD)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_id_malformed_is_ignored() {
        let (a, b) = (
            machine(&"a1".repeat(16)).expect("a machine id"),
            machine(&"b2".repeat(16)).expect("a machine id"),
        );
        assert_ne!(a, b);
        assert_eq!(machine(&format!("{}\n", "a1".repeat(16))), Some(a));
        for id in ["", "uninitialized", "a1", &"g1".repeat(16)] {
            assert_eq!(machine(id), None, "{id}");
        }
        assert!(!identifies_machine(&host_name()));
        assert_eq!(name_in(&host()), host_name());
    }
}
