//! Limits and kernel parameters that a service of a compose file may set. Others would give its processes
//! more than their share of the host, or change the host.

/// Limits of a process that its container bounds anyway. Not among them: priorities (`nice`, `rtprio`,
/// `rttime`), which the quota of processors does not hold, and queues of the kernel.
const ULIMITS: [&str; 10] =
    ["core", "cpu", "data", "fsize", "locks", "memlock", "nofile", "nproc", "rss", "stack"];

/// Kernel parameters of the container's own shared memory, semaphores and queues.
const IPC_SYSCTLS: [&str; 8] = [
    "kernel.msgmax",
    "kernel.msgmnb",
    "kernel.msgmni",
    "kernel.sem",
    "kernel.shm_rmid_forced",
    "kernel.shmall",
    "kernel.shmmax",
    "kernel.shmmni",
];

/// Starts of the kernel parameters of a network and of message queues, which a container has of its own.
const OWN_SYSCTLS: [&str; 2] = ["net.", "fs.mqueue."];

/// The first name of a service's `ulimits` or `sysctls` that it may not set.
pub fn refused<'a>(key: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let is_refused = |name: &&str| match key {
        "ulimits" => !ULIMITS.contains(name),
        "sysctls" => !is_own_sysctl(name),
        _ => false,
    };
    names.into_iter().find(is_refused)
}

fn is_own_sysctl(name: &str) -> bool {
    // The runtime makes a path of the name: dots become slashes.
    let is_plain = name.split('.').all(|part| {
        !part.is_empty()
            && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
    });
    let is_own = OWN_SYSCTLS.iter().any(|start| name.starts_with(start));
    is_plain && (is_own || IPC_SYSCTLS.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_the_own_container_are_refused() {
        for (key, name) in [
            ("ulimits", "rtprio"),
            ("ulimits", "rttime"),
            ("ulimits", "nice"),
            ("ulimits", "msgqueue"),
            ("ulimits", "${X}"),
            ("sysctls", "kernel.core_pattern"),
            ("sysctls", "kernel.shm"),
            ("sysctls", "vm.swappiness"),
            ("sysctls", "net./../kernel/core_pattern"),
            ("sysctls", "net..kernel"),
            ("sysctls", "net"),
        ] {
            assert_eq!(refused(key, [name]), Some(name), "{key}");
        }
        for (key, names) in [
            ("ulimits", &["nofile", "nproc", "core", "stack", "memlock"][..]),
            ("sysctls", &["net.core.somaxconn", "kernel.sem", "fs.mqueue.msg_max"][..]),
            ("labels", &["rtprio"][..]),
        ] {
            assert_eq!(refused(key, names.iter().copied()), None, "{key}");
        }
    }
}
