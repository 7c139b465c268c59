//! Control groups: limits of memory, processors and processes of one environment, version 1 or 2,
//! where the worker may create them.
//!
//! An environment's group is below the worker's own, so that the worker's limits apply to its
//! environments too. Version 2 allows no group inside one that has processes, so there it is beside
//! the worker's. Only commands are members: each joins through descriptors that the worker opened
//! and sent, so the supervisor is neither counted nor killed with them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rollout_base::shortage::Shortage;
use rollout_base::supervise;
use rollout_protocol::record::LimitEnforcement;
use rollout_protocol::spec::resources::Resources;
use tokio::time::Instant;

/// The controllers that are used.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// Period of the CPU quota.
const PERIOD_MICROSECONDS: u64 = 100_000;

/// Timeout for a group to become empty: its members are dead, but not all reaped yet.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Pause between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// The control groups of one environment.
#[derive(Debug, Default)]
pub(super) struct CgroupSet {
    /// Directories by controller; with version 2 they are the same one.
    by_controller: BTreeMap<&'static str, PathBuf>,
    unified: bool,
    enforced: BTreeMap<&'static str, bool>,
}

/// Parent directories for new groups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CgroupParents {
    /// Version 1: a directory per controller.
    split: BTreeMap<&'static str, PathBuf>,
    /// Version 2: the worker's own group and those above it, up to the mount.
    unified: Vec<PathBuf>,
}

impl CgroupParents {
    /// Finds the worker's own groups.
    pub(super) fn find() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self::parse(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"))
    }

    /// Reads `/proc/self/cgroup` and `/proc/self/mountinfo`.
    fn parse(memberships: &str, mounts: &str) -> Self {
        let mut parents = Self::default();
        for mount in mounts.lines().filter_map(CgroupMount::parse) {
            if mount.kind == "cgroup2" {
                let own = membership(memberships, "").and_then(|path| mount.locate(path));
                let up = own.iter().flat_map(|own| own.ancestors());
                parents.unified = up
                    .take_while(|dir| dir.starts_with(mount.point))
                    .map(Path::to_path_buf)
                    .collect();
                continue;
            }
            for controller in CONTROLLERS {
                if mount.kind == "cgroup"
                    && mount.options.split(',').any(|option| option == controller)
                    && let Some(path) = membership(memberships, controller)
                    && let Some(dir) = mount.locate(path)
                {
                    parents.split.insert(controller, dir);
                }
            }
        }
        parents
    }

    /// Every directory that [`CgroupParents::make`] may make, to be recorded before it does.
    pub(super) fn candidates(&self, name: &str) -> Vec<PathBuf> {
        self.split.values().chain(&self.unified).map(|parent| parent.join(name)).collect()
    }

    /// Creates the groups of an environment and sets its limits. A limit that cannot be set is not
    /// enforced; that is no error.
    ///
    /// # Errors
    /// A temporary shortage of this host: a retry could set the limit.
    pub(super) fn make(
        &self,
        name: &str,
        resources: &Resources,
        pids: u64,
    ) -> io::Result<CgroupSet> {
        let mut groups = CgroupSet::default();
        for (controller, parent) in &self.split {
            let dir = parent.join(name);
            if ok_unless_shortage(fs::create_dir(&dir))?.is_some() {
                groups.by_controller.insert(controller, dir);
            }
        }
        if groups.by_controller.is_empty() {
            for parent in &self.unified {
                let on = fs::read_to_string(parent.join("cgroup.subtree_control"));
                let on = ok_unless_shortage(on)?.unwrap_or_default();
                let dir = parent.join(name);
                if CONTROLLERS.iter().any(|c| on.split_whitespace().any(|word| word == *c))
                    && ok_unless_shortage(fs::create_dir(&dir))?.is_some()
                {
                    groups.unified = true;
                    groups.by_controller = CONTROLLERS.map(|c| (c, dir.clone())).into();
                    break;
                }
            }
        }
        groups.set_limits(resources, pids)?;
        Ok(groups)
    }
}

/// Only a shortage of the host is an error. A full quota of groups is not a full disk.
fn ok_unless_shortage<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(error) if Shortage::from_io_error(&error) == Some(Shortage::Host) => Err(error),
        Err(_) => Ok(None),
    }
}

/// The group of the process for `controller`; version 2 has no controller names.
fn membership<'a>(memberships: &'a str, controller: &str) -> Option<&'a str> {
    memberships.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (names, path) = (fields.next()?, fields.next()?);
        names.split(',').any(|name| name == controller).then_some(path)
    })
}

/// A line of `mountinfo`.
struct CgroupMount<'a> {
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> CgroupMount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (before, after) = line.split_once(" - ")?;
        let mut before = before.split(' ').skip(3);
        let mut after = after.split(' ');
        let (root, point) = (before.next()?, before.next()?);
        let (kind, options) = (after.next()?, after.nth(1)?);
        Some(Self { root, point, kind, options })
    }

    /// The directory of the group `path`, if this mount shows it.
    fn locate(&self, path: &str) -> Option<PathBuf> {
        let below = Path::new(path).strip_prefix(self.root).ok()?;
        Some(Path::new(self.point).join(below))
    }
}

impl CgroupSet {
    fn set_limits(&mut self, resources: &Resources, pids: u64) -> io::Result<()> {
        let memory_mb = resources.memory_ceiling_mb();
        let bytes = (memory_mb.unwrap_or(0) * 1024 * 1024).to_string();
        let quota = u64::from(resources.cpu_ceiling().unwrap_or(0)) * PERIOD_MICROSECONDS;
        let cpu = if self.unified {
            vec![("cpu.max", format!("{quota} {PERIOD_MICROSECONDS}"))]
        } else {
            let period = PERIOD_MICROSECONDS.to_string();
            vec![("cpu.cfs_period_us", period), ("cpu.cfs_quota_us", quota.to_string())]
        };
        let memory = if self.unified { "memory.max" } else { "memory.limit_in_bytes" };
        self.set("cpu", &cpu, quota > 0)?;
        self.set("memory", &[(memory, bytes)], memory_mb.is_some())?;
        self.set("pids", &[("pids.max", pids.to_string())], true)?;
        if let Some(memory_mb) = memory_mb {
            self.forbid_swap(memory_mb);
        }
        Ok(())
    }

    /// Writes the files of a limit if it is `wanted`.
    fn set(
        &mut self,
        controller: &'static str,
        files: &[(&str, String)],
        wanted: bool,
    ) -> io::Result<()> {
        let dir = self.by_controller.get(controller).filter(|_| wanted);
        let Some(dir) = dir else { return Ok(()) };
        let mut held = true;
        for (file, value) in files {
            held &= ok_unless_shortage(fs::write(dir.join(file), value))?.is_some();
        }
        self.enforced.insert(controller, held);
        Ok(())
    }

    /// Limits memory and swap together to the memory limit, where the kernel counts swap.
    fn forbid_swap(&self, memory_mb: u64) {
        let Some(dir) = self.by_controller.get("memory") else { return };
        let (file, value) = if self.unified {
            ("memory.swap.max", 0)
        } else {
            ("memory.memsw.limit_in_bytes", memory_mb * 1024 * 1024)
        };
        if let Err(error) = fs::write(dir.join(file), value.to_string()) {
            tracing::debug!(%error, file, "swap is not limited");
        }
    }

    /// Whether the kernel enforces a limit.
    pub(super) fn enforcement(&self, controller: &str) -> LimitEnforcement {
        if self.enforced.get(controller).copied().unwrap_or(false) {
            LimitEnforcement::Enforced
        } else {
            LimitEnforcement::No
        }
    }

    /// The directories.
    fn directories(&self) -> Vec<PathBuf> {
        let mut all: Vec<_> = self.by_controller.values().cloned().collect();
        all.dedup();
        all
    }

    /// Opens the files through which a process joins.
    pub(super) fn join_files(&self) -> io::Result<Vec<File>> {
        let open = |dir: &PathBuf| File::options().write(true).open(dir.join("cgroup.procs"));
        self.directories().iter().map(open).collect()
    }

    /// Number of processes killed by the memory limit.
    pub(super) fn oom_kills(&self) -> u64 {
        let file = if self.unified { "memory.events" } else { "memory.oom_control" };
        let Some(dir) = self.by_controller.get("memory") else { return 0 };
        let text = fs::read_to_string(dir.join(file)).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok());
        count.unwrap_or(0)
    }
}

/// Removes groups and kills their members. A group that no longer exists is a success.
pub(super) async fn remove(directories: &[PathBuf]) -> io::Result<()> {
    let until = Instant::now() + REMOVE_TIMEOUT;
    for dir in directories {
        loop {
            let attempt = dir.clone();
            let removed = supervise::blocking(move || remove_one(&attempt)).await;
            match removed {
                Ok(()) => break,
                Err(error) if Instant::now() > until => return Err(error),
                Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
            }
        }
    }
    Ok(())
}

fn remove_one(dir: &Path) -> io::Result<()> {
    match fs::remove_dir(dir) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => {
            end_members(dir);
            Err(error)
        }
    }
}

fn end_members(dir: &Path) {
    let members = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    for pid in members.lines().filter_map(|line| rustix::process::Pid::from_raw(line.parse().ok()?))
    {
        // The process may have ended meanwhile.
        let _killed = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_parents_are_found_in_v1_and_v2() {
        let split = CgroupParents::parse(
            "8:pids:/\n4:memory:/box/1\n1:cpu,cpuacct:/a\n0::/\n",
            "35 31 0:33 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
             39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
             40 31 0:37 /a /sys/fs/cgroup/cpu rw shared:4 - cgroup cgroup rw,cpu,cpuacct\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
        );
        assert_eq!(split.split["memory"], Path::new("/sys/fs/cgroup/memory/box/1"));
        assert_eq!(split.split["pids"], Path::new("/sys/fs/cgroup/pids"));
        assert_eq!(split.split["cpu"], Path::new("/sys/fs/cgroup/cpu"));

        let unified = CgroupParents::parse(
            "0::/user.slice/app.scope\n",
            "29 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
        );
        let up = ["user.slice/app.scope", "user.slice", ""];
        let up = up.map(|below| Path::new("/sys/fs/cgroup").join(below));
        assert_eq!(unified.unified, up);
        assert!(unified.split.is_empty());
    }

    #[test]
    fn cgroup_v2_is_made_where_controllers_are_enabled() {
        let dir = tempfile::tempdir().expect("directory");
        let own = dir.path().join("own");
        fs::create_dir(&own).expect("made");
        fs::write(own.join("cgroup.subtree_control"), "").expect("written");
        fs::write(dir.path().join("cgroup.subtree_control"), "cpu memory pids").expect("written");
        let unified = vec![own, dir.path().to_path_buf()];
        let parents = CgroupParents { unified, ..CgroupParents::default() };
        let resources = Resources { cpus: 2, memory_mb: 64, ..Resources::default() };
        let groups = parents.make("x", &resources, 100).expect("nothing is short");
        assert_eq!(groups.directories(), [dir.path().join("x")]);
        let read = |file| fs::read_to_string(dir.path().join("x").join(file)).expect("set");
        assert_eq!(read("cpu.max"), "200000 100000");
        assert_eq!(read("memory.max"), "67108864");
        assert_eq!(groups.enforcement("pids"), LimitEnforcement::Enforced);
        fs::write(dir.path().join("x/memory.events"), "low 0\noom 3\noom_kill 2\n")
            .expect("written");
        assert_eq!(groups.oom_kills(), 2);
        assert_eq!(CgroupSet::default().enforcement("memory"), LimitEnforcement::No);
    }
}
