//! Control groups that limit the memory of a container.

use std::fs;
use std::path::{Path, PathBuf};

/// Hierarchies in which groups are made: that of version 1 for memory, and that of version 2.
const HIERARCHIES: [(&str, &str); 2] =
    [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];

/// A group with a limit. Dropping it removes the group once its processes are gone.
#[derive(Debug)]
pub(super) struct MemoryGroup {
    directory: PathBuf,
}

impl MemoryGroup {
    /// Makes a group for the container with a directory; `None` where the host does not let us.
    pub(super) fn create(container: &Path, limit: u64) -> Option<Self> {
        let name: String = container
            .to_string_lossy()
            .trim_start_matches('/')
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        HIERARCHIES.iter().find_map(|(hierarchy, limit_file)| {
            let directory = Path::new(hierarchy).join(format!("rollout-kube-{name}"));
            fs::create_dir(&directory).ok()?;
            let group = Self { directory };
            fs::write(group.directory.join(limit_file), limit.to_string()).ok()?;
            // Where swap is not counted, the file does not exist.
            drop(fs::write(group.directory.join("memory.swap.max"), "0"));
            Some(group)
        })
    }

    /// The file that moves processes into the group.
    pub(super) fn processes_file(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }

    /// Whether a process of the group was killed because of the limit.
    pub(super) fn was_exceeded(&self) -> bool {
        ["memory.oom_control", "memory.events"].iter().any(|name| {
            let text = fs::read_to_string(self.directory.join(name)).unwrap_or_default();
            text.lines()
                .any(|line| line.strip_prefix("oom_kill ").is_some_and(|count| count.trim() != "0"))
        })
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // A group whose processes are not gone yet stays, empty soon after.
        drop(fs::remove_dir(&self.directory));
    }
}
