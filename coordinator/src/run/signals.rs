//! Signals of the operating system: the first asks for an orderly stop, the second kills.

use rollout_protocol::wire::control::StopLevel;
use rollout_worker::supervise::{self, Task};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Listens for SIGINT and SIGTERM while the task lives. The receiver gets a level per signal.
///
/// # Errors
/// When the handlers cannot be installed.
pub fn listen() -> std::io::Result<(mpsc::Receiver<StopLevel>, Task<()>)> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let (sender, receiver) = mpsc::channel(4);
    let task = supervise::spawn("signals", async move {
        let mut level = StopLevel::Drain;
        loop {
            // Both are safe to cancel: a signal stays pending until it is received.
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            if sender.send(level).await.is_err() {
                return;
            }
            level = StopLevel::Kill;
        }
    });
    Ok((receiver, task))
}
