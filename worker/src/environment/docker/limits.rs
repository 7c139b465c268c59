//! Limits that have to be watched: memory kills and the writable layer.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use bollard::query_parameters::{EventsOptions, InspectContainerOptions, KillContainerOptions};
use futures_util::StreamExt as _;

use super::container::Container;
use super::failure::has_status;
use crate::supervise;

/// A look at the layer's size may take this share of the time at most: it costs the engine 4
/// microseconds per file.
const COST_FACTOR: u32 = 20;

/// How long the engine may take to list past events.
const EVENTS_WITHIN: Duration = Duration::from_secs(2);

const MIB: u64 = 1024 * 1024;

impl Container {
    /// Whether the memory limit has killed a process so far: the kernel's own count where this host
    /// has it, else the engine's memory of events, which is short.
    pub(super) async fn oom_killed(&self) -> bool {
        if !self.note_oom() && self.oom_event().await {
            self.oom_seen.store(true, Ordering::Relaxed);
        }
        self.oom_seen.load(Ordering::Relaxed)
    }

    /// Remembers what the kernel has counted; whether it could be read or was known.
    pub(super) fn note_oom(&self) -> bool {
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

    /// Ends the container when its writable layer is seen above `limit_mb`, first after `pause`.
    /// Returns when it did or the container is gone.
    pub(super) async fn watch_storage(self: Arc<Self>, limit_mb: u64, pause: Duration) {
        let mut next = pause;
        loop {
            tokio::time::sleep(next).await;
            let Ok(docker) = self.client.docker().await else { continue };
            let asked = Instant::now();
            let options = InspectContainerOptions { size: true };
            let found = match docker.inspect_container(&self.engine_id, Some(options)).await {
                Ok(found) => found,
                Err(error) if has_status(&error, 404) => return,
                Err(_) => continue,
            };
            next = pause.max(asked.elapsed() * COST_FACTOR);
            let mut size = u64::try_from(found.size_rw.unwrap_or(0)).unwrap_or(0);
            if size > limit_mb.saturating_mul(MIB) {
                let layer = found.graph_driver.and_then(|d| d.data.get("UpperDir").cloned());
                size = allocated(layer, size).await;
            }
            if size > limit_mb.saturating_mul(MIB) {
                self.end_over_storage(size / MIB, limit_mb).await;
                return;
            }
        }
    }

    async fn end_over_storage(&self, size_mb: u64, limit_mb: u64) {
        let why = format!(
            "storage limit exceeded: the container {} wrote {size_mb} MiB, {limit_mb} MiB are \
             allowed; it was ended",
            self.name
        );
        self.over_storage.set(why).ok();
        let Ok(docker) = self.client.docker().await else { return };
        let options = KillContainerOptions { signal: "KILL".to_owned() };
        if let Err(error) = docker.kill_container(&self.engine_id, Some(options)).await {
            tracing::warn!(%error, container = self.name, "cannot end it over its storage limit");
        }
    }
}

/// The bytes that a layer really takes. The engine counts the length of files, so that one sparse
/// file looks like a full disk; where this host has the layer, its blocks are counted instead.
async fn allocated(layer: Option<String>, length: u64) -> u64 {
    let Some(layer) = layer else { return length };
    supervise::blocking(move || blocks(Path::new(&layer)).unwrap_or(length)).await
}

fn blocks(layer: &Path) -> std::io::Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let mut total = 0;
    let mut pending = vec![layer.to_owned()];
    // The first one must be readable; what disappears meanwhile counts nothing.
    std::fs::read_dir(layer)?;
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            total += meta.blocks() * 512;
            if meta.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    Ok(total)
}

/// Where the kernel counts the memory limit's kills in the container `id` whose first process is
/// `pid` on the engine's host, when that is this host.
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
    fn the_count_is_found_in_both_versions_of_cgroups() {
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

    #[test]
    fn holes_take_no_blocks() {
        let dir = tempfile::tempdir().expect("directory");
        let file = std::fs::File::create(dir.path().join("sparse")).expect("created");
        file.set_len(1 << 40).expect("set");
        std::fs::write(dir.path().join("full"), vec![1; 1 << 20]).expect("written");
        let size = blocks(dir.path()).expect("readable");
        assert!((1 << 20..2 << 20).contains(&size), "{size}");
        assert!(blocks(&dir.path().join("absent")).is_err());
    }
}
