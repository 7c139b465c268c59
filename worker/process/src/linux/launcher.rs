//! The outermost process of a sandbox, as a child of the worker.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use rollout_base::supervise::{self, Task};
use rollout_protocol::spec::environment::ProcessNetwork;
use rollout_store::host::start_ticks;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::process::{Child, Command};
use tokio::sync::{Notify, watch};

/// Timeout for a sandbox to end by itself, and again after a kill. Milliseconds are usual; a
/// process that dumps its memory to a slow disk takes longer.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Output of the supervisor beside the control socket, in the directory of the environment.
const LOG_FILE: &str = "supervisor.log";

/// Number and start time of the process, in the directory of the environment.
const PID_FILE: &str = "supervisor.pid";

/// The process and the state of its exit. The process ends when the control socket closes.
#[derive(Debug)]
pub(super) struct Launcher {
    ended: watch::Receiver<bool>,
    kill: Arc<Notify>,
    _task: Task<()>,
}

impl Launcher {
    /// Starts the supervisor of the sandbox in `directory` with its end of the control socket.
    pub(super) async fn start(
        helper: &[OsString],
        directory: &Path,
        network: ProcessNetwork,
        control: OwnedFd,
    ) -> io::Result<Self> {
        let (program, words) = helper.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let network = match network {
            ProcessNetwork::Host => "host",
            ProcessNetwork::None => "none",
        };
        let mut command = Command::new(program);
        command.args(words).arg("outer").arg(directory).arg(network).env_clear();
        command.stdin(Stdio::from(control)).stdout(Stdio::null());
        // From its first moment no signal of the worker's terminal reaches it, such as that of Ctrl-C:
        // the worker ends it.
        command.process_group(0);
        let directory = directory.to_owned();
        let mut child = supervise::blocking(move || spawn(command, &directory)).await?;
        let (sender, ended) = watch::channel(false);
        let kill = Arc::new(Notify::new());
        let kill_requested = Arc::clone(&kill);
        let task = supervise::spawn("sandbox-launcher", async move {
            tokio::select! {
                _ = child.wait() => {}
                () = kill_requested.notified() => {
                    // An error means that it has ended.
                    let _killed = child.kill().await;
                }
            }
            sender.send_replace(true);
        });
        Ok(Self { ended, kill, _task: task })
    }

    /// Waits until no process of the sandbox is alive, after its control socket was closed.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] when it does not end even after a kill.
    pub(super) async fn end(&self) -> io::Result<()> {
        for kill in [false, true] {
            if kill {
                self.kill.notify_one();
            }
            let mut ended = self.ended.clone();
            let wait = ended.wait_for(|ended| *ended);
            if let Ok(Ok(_)) = tokio::time::timeout(EXIT_TIMEOUT, wait).await {
                return Ok(());
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}

/// Starts the process and records it, also when its caller is gone. Blocks.
fn spawn(mut command: Command, directory: &Path) -> io::Result<Child> {
    let log = File::options().create(true).append(true).open(directory.join(LOG_FILE))?;
    let child = command.stderr(log).spawn()?;
    // The process ends when nothing else holds its end of the socket.
    drop(command);
    write_pid_file(directory, child.id());
    Ok(child)
}

/// Records the process for a reaper. Without the record a reaper can only wait. Blocks.
fn write_pid_file(directory: &Path, pid: Option<u32>) {
    let text = pid.and_then(|pid| Some(format!("{pid} {}", start_ticks(pid)?)));
    if let Some(text) = text
        && let Err(error) = std::fs::write(directory.join(PID_FILE), text)
    {
        tracing::debug!(%error, "cannot record the supervisor of a sandbox");
    }
}

/// Kills the outermost process of the sandbox in `directory`, if it is still the recorded one. Blocks.
pub(super) fn kill_recorded(directory: &Path) {
    let text = std::fs::read_to_string(directory.join(PID_FILE)).unwrap_or_default();
    let Some((pid, started)) = text.split_once(' ') else { return };
    let (Ok(pid), Ok(started)) = (pid.parse::<i32>(), started.parse::<u64>()) else { return };
    let Some(number) = Pid::from_raw(pid) else { return };
    // The handle always refers to one process, so the check is still valid at the kill.
    let Ok(handle) = pidfd_open(number, PidfdFlags::empty()) else { return };
    if start_ticks(pid.unsigned_abs()) == Some(started)
        && let Err(error) = pidfd_send_signal(&handle, Signal::KILL)
    {
        tracing::debug!(%error, pid, "the supervisor of a sandbox ended by itself");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::control;

    #[tokio::test]
    async fn supervisor_leads_group_of_its_own() {
        let directory = tempfile::tempdir().expect("made");
        let script = "read -r stat </proc/$$/stat; echo \"$stat\" >\"$1/stat\"";
        let helper = ["/bin/sh", "-c", script].map(OsString::from);
        let (_ours, theirs) = control::sockets().expect("opened");
        let launcher =
            Launcher::start(&helper, directory.path(), ProcessNetwork::Host, theirs).await;
        launcher.expect("started").end().await.expect("ended");

        let stat = std::fs::read_to_string(directory.path().join("stat")).expect("written");
        let pid = stat.split(' ').next().expect("a field");
        let (_, fields) = stat.rsplit_once(") ").expect("the name in parentheses");
        assert_eq!(fields.split(' ').nth(2), Some(pid), "{stat}");
    }
}
