//! Processes that use a disk.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use crate::processes;

/// Processes with a directory, a program or an open file on the file system that is mounted at a path.
pub(super) fn of_file_system(mounted: &Path) -> Vec<u32> {
    let Ok(device) = fs::metadata(mounted).map(|found| found.dev()) else { return Vec::new() };
    let own = std::process::id();
    let pids = processes::all().into_iter().map(|process| process.pid);
    pids.filter(|pid| *pid != own && uses(*pid, device)).collect()
}

fn uses(pid: u32, device: u64) -> bool {
    let process = Path::new("/proc").join(pid.to_string());
    let is_there = |link: &Path| fs::metadata(link).is_ok_and(|found| found.dev() == device);
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    ["cwd", "root", "exe"].iter().any(|name| is_there(&process.join(name)))
        || files.map(|entry| entry.path()).any(|file| is_there(&file))
}

/// Kills processes, their descendants and all users of a file system at the same moment: none runs on
/// after it saw another one die.
pub(super) fn kill_together(mounted: &Path, members: &[u32]) {
    let mut stopped = BTreeSet::new();
    loop {
        let below = members.iter().flat_map(|pid| processes::descendants(*pid));
        let all = below.map(|process| process.pid).chain(members.iter().copied());
        let all = all.chain(of_file_system(mounted));
        // New ones may have been started meanwhile by those that ran on.
        let new: Vec<u32> = all.filter(|pid| stopped.insert(*pid)).collect();
        if new.is_empty() {
            break;
        }
        new.iter().for_each(|pid| signal(*pid, Signal::STOP));
    }
    stopped.iter().for_each(|pid| signal(*pid, Signal::KILL));
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // It may have ended by itself.
    let _ended = pid.map(|pid| kill_process(pid, signal));
}
