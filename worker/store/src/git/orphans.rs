//! Orphaned git processes: those that outlive the process that started them.

use std::io;
use std::path::Path;
use std::time::Duration;

use rollout_base::supervise;
use tokio::time::Instant;

/// Time that killed processes may take to disappear.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Kills the git processes of a dead process that still work on a repository made by Rollout. The
/// caller owns the repository now, and they would continue to write to it.
///
/// # Errors
/// If one cannot be killed.
pub async fn end_orphans(dir: &Path) -> io::Result<()> {
    let Ok(dir) = dir.canonicalize() else { return Ok(()) };
    let began = Instant::now();
    loop {
        let repository = dir.clone();
        let remaining = supervise::blocking(move || system::end(&repository)).await?;
        if remaining == 0 {
            return Ok(());
        }
        if began.elapsed() > EXIT_TIMEOUT {
            return Err(io::Error::other(format!("cannot kill {remaining} git processes")));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::ffi::OsStr;
    use std::fs;
    use std::io;
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::Path;

    use rustix::io::Errno;
    use rustix::process::{Pid, Signal, kill_process};

    /// Kills all that it finds and returns their number.
    pub(super) fn end(dir: &Path) -> io::Result<usize> {
        let mut found = 0;
        for entry in fs::read_dir("/proc")? {
            let Ok(entry) = entry else { continue };
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(pid) = pid.and_then(Pid::from_raw) else { continue };
            if !works_on(&entry.path(), dir) {
                continue;
            }
            match kill_process(pid, Signal::KILL) {
                Ok(()) => found += 1,
                Err(Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(found)
    }

    /// Whether a process is a git called on the repository. Ended processes and those of other
    /// users cannot be read.
    fn works_on(process: &Path, dir: &Path) -> bool {
        let is_git = fs::read(process.join("comm")).is_ok_and(|name| name.starts_with(b"git"));
        is_git
            && fs::read(process.join("environ")).is_ok_and(|variables| {
                let mut variables = variables.split(|byte| *byte == 0);
                let git_dir = variables.find_map(|variable| variable.strip_prefix(b"GIT_DIR="));
                let of = git_dir.map(|path| Path::new(OsStr::from_bytes(path)).canonicalize());
                matches!(of, Some(Ok(of)) if of == dir)
            })
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::io;
    use std::path::Path;

    /// The owner of a process cannot be determined on this system.
    pub(super) fn end(_: &Path) -> io::Result<usize> {
        Ok(0)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// A git process that works on a repository until its standard input ends.
    fn at_work(dir: &Path) -> std::process::Child {
        let mut git = Command::new("git");
        git.args(["cat-file", "--batch"]).env("GIT_DIR", dir);
        git.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("git")
    }

    #[test]
    fn orphaned_git_of_other_repository_is_not_killed() {
        let temp = tempfile::tempdir().expect("a directory");
        let [one, other] = ["one", "other"].map(|name| temp.path().join(name));
        for dir in [&one, &other] {
            let made = Command::new("git").args(["init", "-q", "--bare"]).arg(dir).status();
            assert!(made.expect("git").success());
        }
        let (mut ours, mut theirs) = (at_work(&one), at_work(&other));
        // Waiting for it would close its standard input.
        let _open = ours.stdin.take();
        // Unreaped processes would still be found: another thread has to wait for them.
        let waiting = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| ours.wait().expect("our child"));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(end_orphans(&one)).expect("ended");
            waiting.join().expect("it ended")
        });
        assert!(!waiting.success());
        assert!(theirs.try_wait().expect("our child").is_none(), "it is another repository's");
        drop(theirs.stdin.take());
        assert!(theirs.wait().expect("our child").success());
    }
}
