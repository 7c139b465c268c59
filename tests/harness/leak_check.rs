//! Leftovers of the program outside the project's files.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cluster::Cluster;
use crate::docker::DockerEngine;
use crate::processes::{self, ProcessInfo};
use crate::project::Project;
use crate::s3_process::S3Process;
use crate::wait;

/// Time the system may take for cleanup that the program leaves to it.
pub const CLEANUP_DEADLINE: Duration = wait::LONG_DEADLINE;

/// Asserts that the project has no processes or objects outside its directory.
///
/// # Panics
/// With the leftovers.
#[track_caller]
pub fn assert_no_leaks(project: &Project) {
    let mark = project.mark();
    wait::holds_within(CLEANUP_DEADLINE, || processes::with_mark(&mark).is_empty());
    assert_eq!(processes::with_mark(&mark), [], "processes");
    assert_eq!(containers(project), Vec::<String>::new(), "containers");
}

/// Leftovers of a cluster after waiting up to `within`: processes except its servers, containers,
/// mounts, control groups. `executions` are the short names of all its executions.
pub fn cluster_leaks(cluster: &Cluster, executions: &[String], within: Duration) -> Vec<String> {
    let servers = [cluster.server.pid(), cluster.s3.as_ref().and_then(S3Process::pid)];
    leaks_except(&cluster.project, servers, executions, within)
}

/// Like [`cluster_leaks`], for a project without a server.
pub fn project_leaks(project: &Project, executions: &[String], within: Duration) -> Vec<String> {
    leaks_except(project, [None, None], executions, within)
}

fn leaks_except(
    project: &Project,
    servers: [Option<u32>; 2],
    executions: &[String],
    within: Duration,
) -> Vec<String> {
    let left = || {
        let processes =
            processes_of(project).into_iter().filter(|p| !servers.contains(&Some(p.pid)));
        let processes = processes.map(|process| format!("{process:?}"));
        let groups = control_groups(executions).into_iter().map(|g| g.display().to_string());
        processes.chain(groups).chain(containers(project)).collect::<Vec<_>>()
    };
    wait::holds_within(within, || left().is_empty());
    left()
}

/// Entries of a directory; empty when it does not exist.
pub fn directory_entries(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Processes of the project, found by their arguments, environment or mounts.
fn processes_of(project: &Project) -> Vec<ProcessInfo> {
    let path = project.path().to_string_lossy().into_owned();
    let own = std::process::id();
    let has = |pid: u32, file: &str| {
        let content = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        content.windows(path.len()).any(|window| window == path.as_bytes())
    };
    let of_project = |process: &ProcessInfo| {
        process.pid != own
            && (process.arguments.contains(&path)
                || has(process.pid, "environ")
                || has(process.pid, "mountinfo"))
    };
    processes::all().into_iter().filter(of_project).collect()
}

/// Control groups of the sandboxes of these executions.
fn control_groups(executions: &[String]) -> Vec<PathBuf> {
    control_groups_named(|name| {
        let Some(rest) = name.strip_prefix("sandbox-") else { return false };
        executions.iter().any(|execution| rest.starts_with(execution.as_str()))
    })
}

/// Control groups with such a name.
pub(crate) fn control_groups_named(is_wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let (mut found, mut below) = (Vec::new(), vec![PathBuf::from("/sys/fs/cgroup")]);
    while let Some(directory) = below.pop() {
        for path in directory_entries(&directory).into_iter().filter(|path| path.is_dir()) {
            if is_wanted(&path.file_name().unwrap_or_default().to_string_lossy()) {
                found.push(path.clone());
            }
            below.push(path);
        }
    }
    found
}

fn containers(project: &Project) -> Vec<String> {
    let path = project.path().to_string_lossy().into_owned();
    DockerEngine::connect().map(|engine| engine.containers(&path)).unwrap_or_default()
}
