//! Signals of the operating system: the first requests an orderly stop, the second kills.

use std::io;

use rollout_base::supervise::{self, Task};
use rollout_protocol::wire::control::StopLevel;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

/// Listens for SIGINT, SIGTERM and SIGHUP while the task lives. The receiver gets a level per
/// signal. A terminal that is closed sends SIGHUP more than once, so that one never kills; where
/// SIGHUP was ignored at the start (`nohup`), it stays ignored.
///
/// # Errors
/// When the handlers cannot be installed.
pub fn listen() -> io::Result<(mpsc::Receiver<StopLevel>, Task<()>)> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = hangups()?;
    let (sender, receiver) = mpsc::channel(4);
    let task = supervise::spawn("signals", async move {
        let mut level = StopLevel::Drain;
        loop {
            // All are safe to cancel: a signal stays pending until it is received.
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                () = received(&mut hangup) => {
                    tracing::warn!("the terminal was closed (SIGHUP): stopping");
                    hangup = None;
                    if level == StopLevel::Kill {
                        continue;
                    }
                }
            }
            if sender.send(level).await.is_err() {
                return;
            }
            level = StopLevel::Kill;
        }
    });
    Ok((receiver, task))
}

/// The stream of SIGHUP, unless this process ignores that signal.
fn hangups() -> io::Result<Option<Signal>> {
    // If this cannot be determined, the signal is left as it is.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if ignores(&status, SignalKind::hangup()) == Some(false) {
        signal(SignalKind::hangup()).map(Some)
    } else {
        Ok(None)
    }
}

/// Whether a process with this `/proc/<pid>/status` ignores a signal.
fn ignores(status: &str, kind: SignalKind) -> Option<bool> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    let bit = u32::try_from(kind.as_raw_value()).ok()?.checked_sub(1)?;
    Some(mask.checked_shr(bit)? & 1 == 1)
}

async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => signal.recv().await.unwrap_or_default(),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_ignored_by_process_is_read_from_proc_status() {
        let status = "Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\n";
        assert_eq!(ignores(status, SignalKind::hangup()), Some(true));
        assert_eq!(ignores(status, SignalKind::terminate()), Some(false));
        assert_eq!(ignores("Name:\tx\n", SignalKind::hangup()), None);
    }
}
