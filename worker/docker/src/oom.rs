//! Kills by the memory limit, as reported by the kernel or the engine.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use bollard::query_parameters::EventsOptions;
use futures_util::StreamExt as _;

use super::container::Container;

/// Timeout for the engine to list past events.
const EVENTS_WITHIN: Duration = Duration::from_secs(2);

impl Container {
    /// Whether the memory limit has killed a process so far. Uses the kernel's own count if this
    /// host has it, else the engine's event history, which is short.
    pub(super) async fn oom_killed(&self) -> bool {
        if !self.record_oom() && self.oom_event().await {
            self.oom_seen.store(true, Ordering::Relaxed);
        }
        self.oom_seen.load(Ordering::Relaxed)
    }

    /// Records the kernel's count; returns whether it could be read or was already known.
    pub(super) fn record_oom(&self) -> bool {
        let counted = self.oom_count.get().and_then(|file| std::fs::read_to_string(file).ok());
        let seen = counted.as_ref().is_some_and(|text| oom_kills(text) > 0);
        let seen = self.oom_seen.fetch_or(seen, Ordering::Relaxed) || seen;
        seen || counted.is_some()
    }

    async fn oom_event(&self) -> bool {
        let Ok(docker) = self.client.docker().await else { return false };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let filters = HashMap::from([
            ("container".to_owned(), vec![self.engine_id.clone()]),
            ("event".to_owned(), vec!["oom".to_owned()]),
        ]);
        let options = EventsOptions {
            since: Some("0".to_owned()),
            until: Some(now.as_secs().to_string()),
            filters: Some(filters),
        };
        let mut events = docker.events(Some(options));
        matches!(tokio::time::timeout(EVENTS_WITHIN, events.next()).await, Ok(Some(Ok(_))))
    }
}

/// The file in which the kernel counts the memory limit's kills in the container `id` whose first
/// process is `pid` on the engine's host, if that is this host.
pub(super) fn oom_count_file(pid: i64, id: &str) -> Option<PathBuf> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let file = oom_count_path(&groups, id)?;
    file.is_file().then_some(file)
}

fn oom_count_path(groups: &str, id: &str) -> Option<PathBuf> {
    let lines = || {
        groups.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ':');
            parts.next()?;
            Some((parts.next()?, parts.next()?))
        })
    };
    let path = |root: &str, group: &str, file: &str| {
        let group = group.trim_start_matches('/');
        group.contains(id).then(|| Path::new(root).join(group).join(file))
    };
    let memory = lines().find(|(names, _)| names.split(',').any(|name| name == "memory"));
    match memory {
        Some((_, group)) => path("/sys/fs/cgroup/memory", group, "memory.oom_control"),
        None => {
            let (_, group) = lines().find(|(names, _)| names.is_empty())?;
            path("/sys/fs/cgroup", group, "memory.events")
        }
    }
}

/// The count of kills in `memory.oom_control` or `memory.events`.
fn oom_kills(text: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oom_kill_count_is_read_from_cgroup_v1_and_v2() {
        let v1 = "12:pids:/docker/abc\n11:memory:/docker/abc\n0::/";
        let expected = Path::new("/sys/fs/cgroup/memory/docker/abc/memory.oom_control");
        assert_eq!(oom_count_path(v1, "abc").as_deref(), Some(expected));
        assert_eq!(oom_count_path(v1, "xyz"), None);
        let v2 = "0::/system.slice/docker-abc.scope";
        let expected = Path::new("/sys/fs/cgroup/system.slice/docker-abc.scope/memory.events");
        assert_eq!(oom_count_path(v2, "abc").as_deref(), Some(expected));
        assert_eq!(oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), 3);
        assert_eq!(oom_kills("low 0\noom 7\noom_kill 0\noom_group_kill 0"), 0);
    }
}
