//! Killing of all processes that commands started.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bollard::query_parameters::{RestartContainerOptions, TopOptions};
use rollout_environment::{ExecCommand, Failure, FailureKind, OutputSink, OutputStream, kill};
use tokio::time::{Instant, sleep};

use super::container::Container;

/// Timeout of the script: with 3,000 processes it took 3 seconds in a measurement.
const SWEEP_WITHIN: Duration = Duration::from_secs(10);

/// Time for killed processes to disappear from the engine's list.
const GONE_WITHIN: Duration = Duration::from_secs(2);

/// After this long, a restarted container is either up or has failed.
const SETTLED_AFTER: Duration = Duration::from_millis(300);

/// Format in which the engine's host lists the container's processes.
const PS: &str = "-eo pid,ppid,stat";

impl Container {
    /// Ends every process but the container's own. If the script fails, the container is restarted:
    /// all processes end with the first one, and files stay.
    pub(super) async fn kill_processes(&self) -> Result<(), Failure> {
        let swept = match tokio::time::timeout(SWEEP_WITHIN, self.sweep()).await {
            Ok(Ok(true)) => self.wait_for_survivors().await,
            Ok(Err(failure)) => Err(failure),
            Ok(Ok(false)) | Err(_) => Ok(false),
        };
        match swept {
            Ok(true) => Ok(()),
            Err(failure)
                if matches!(failure.kind, FailureKind::Gone | FailureKind::Unreachable) =>
            {
                Err(failure)
            }
            Ok(false) | Err(_) if !self.is_running().await? => Ok(()),
            Ok(false) | Err(_) => self.restart().await,
        }
    }

    /// Runs the script; returns whether it left nothing.
    async fn sweep(&self) -> Result<bool, Failure> {
        let command = ExecCommand {
            argv: ["/bin/sh", "-c", kill::SCRIPT].map(str::to_owned).to_vec(),
            env: BTreeMap::new(),
            workdir: Some("/".to_owned()),
            user: Some("0".to_owned()),
        };
        Ok(self.exec(command, Arc::new(DiscardedOutput)).await?.code == 0)
    }

    /// Whether only the container's own processes are left, as seen from outside it. False if they
    /// cannot be listed.
    async fn wait_for_survivors(&self) -> Result<bool, Failure> {
        let deadline = Instant::now() + GONE_WITHIN;
        let mut pause = Duration::from_millis(20);
        loop {
            match self.count_survivors().await? {
                Some(0) => return Ok(true),
                Some(_) => {}
                // The script's own result is no proof: its shell belongs to the container.
                None => return Ok(false),
            }
            if Instant::now() > deadline {
                return Ok(false);
            }
            sleep(pause).await;
            pause *= 2;
        }
    }

    /// Number of processes that are not the container's own; `None` when the engine cannot list
    /// them.
    async fn count_survivors(&self) -> Result<Option<usize>, Failure> {
        let state = self.inspect().await?.state.unwrap_or_default();
        let Some(init) = state.pid.filter(|pid| *pid > 0) else { return Ok(Some(0)) };
        let options = TopOptions { ps_args: PS.to_owned() };
        match self.client.docker().await?.top_processes(&self.engine_id, Some(options)).await {
            Ok(list) => Ok(Some(count_strangers(init, &list.processes.unwrap_or_default()))),
            Err(error) => {
                // Some engine hosts have no ps.
                tracing::debug!(%error, container = self.name, "cannot list processes");
                Ok(None)
            }
        }
    }

    async fn restart(&self) -> Result<(), Failure> {
        tracing::info!(container = self.name, "restarting it to end its processes");
        // The count of kills by the memory limit restarts with the container.
        self.oom_killed().await;
        let options = RestartContainerOptions { t: Some(0), signal: None };
        let restarted =
            self.client.docker().await?.restart_container(&self.engine_id, Some(options)).await;
        if let Err(error) = restarted {
            let mut failure = self.failure("cannot end all processes by a restart", error);
            if failure.kind != FailureKind::Unreachable && failure.kind != FailureKind::Gone {
                failure.kind = FailureKind::LeftBehind;
            }
            return Err(failure);
        }
        // A first process that cannot start appears to run for some milliseconds.
        sleep(SETTLED_AFTER).await;
        self.check_running().await
    }
}

/// Counts the live processes that are neither `init` nor in the tree of its only child. Rows are
/// process, parent and state. Orphans of commands are children of `init`; the parents of commands
/// are not in the list.
fn count_strangers(init: i64, rows: &[Vec<String>]) -> usize {
    let alive: Vec<(i64, i64)> = rows
        .iter()
        .filter_map(|row| match row.as_slice() {
            [pid, parent, state, ..] if !state.starts_with(['Z', 'X']) => {
                Some((pid.parse().ok()?, parent.parse().ok()?))
            }
            _ => None,
        })
        .collect();
    let mut own = BTreeSet::from([init]);
    if let Some((first, _)) = alive.iter().find(|(_, parent)| *parent == init) {
        own.insert(*first);
    }
    // Parents may come after their children.
    for _ in 0..alive.len() {
        for (pid, parent) in &alive {
            if *parent != init && own.contains(parent) {
                own.insert(*pid);
            }
        }
    }
    alive.iter().filter(|(pid, _)| !own.contains(pid)).count()
}

/// Discards the script's output.
struct DiscardedOutput;

impl OutputSink for DiscardedOutput {
    fn write(&self, _stream: OutputStream, _bytes: &[u8]) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str) -> Vec<Vec<String>> {
        text.lines().map(|l| l.split_whitespace().map(str::to_owned).collect()).collect()
    }

    #[test]
    fn stray_process_count_excludes_own_tree_and_zombies() {
        let own = "100 90 Ss\n101 100 S\n102 101 S\n103 102 S";
        assert_eq!(count_strangers(100, &rows(own)), 0);
        let orphan = format!("{own}\n200 100 S\n201 200 R");
        assert_eq!(count_strangers(100, &rows(&orphan)), 2);
        let command = format!("{own}\n300 90 Ss\n301 300 S");
        assert_eq!(count_strangers(100, &rows(&command)), 2);
        let dead = format!("{own}\n300 90 Zs\n301 100 Z+");
        assert_eq!(count_strangers(100, &rows(&dead)), 0);
    }
}
