//! Commands to the session of a run: what its user wants.

use std::sync::Arc;
use std::time::Duration;

use rollout_engine::journal::RunLayout;
use rollout_protocol::wire::command::{IN_PROGRESS_PAUSE, RunCommand, TrialSelection};
use rollout_queue::traits::RunControl as _;
use tokio::sync::watch;

use super::hosted_run::HostedRun;
use super::progress::SessionStage;
use super::record::WantedState;
use crate::launch::control_socket::ControlSocketClient;

/// Pause between two attempts to reach a session, and the first one after a refusal.
const COMMAND_PAUSE: Duration = Duration::from_millis(200);

/// Longest pause after a refusal.
const MAX_REFUSAL_PAUSE: Duration = Duration::from_secs(60);

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CommandEnd {
    /// The session has done it.
    Done,
    /// It is doing it. A large run cancels its trials portion by portion, and is asked again.
    InProgress,
    /// It opens its socket a moment after the run, or has ended.
    Unreached,
    /// It refuses the command for this reason.
    Refused(String),
}

/// The refusals in a row of a command.
#[derive(Debug, Default)]
struct Refusals {
    count: u32,
    reason: Option<String>,
}

impl Refusals {
    /// Notes a refusal; returns whether its reason is another one than before.
    fn note(&mut self, reason: &str) -> bool {
        self.count = self.count.saturating_add(1);
        let is_new = self.reason.as_deref() != Some(reason);
        if is_new {
            self.reason = Some(reason.to_owned());
        }
        is_new
    }

    /// The pause before the command is sent again: twice as long after each refusal.
    fn pause(&self) -> Duration {
        let doublings = self.count.saturating_sub(1).min(16);
        COMMAND_PAUSE.saturating_mul(1 << doublings).min(MAX_REFUSAL_PAUSE)
    }
}

/// Tells a session what its user wants, as often as that changes.
pub(super) async fn enforce(run: Arc<HostedRun>, mut stage: watch::Receiver<SessionStage>) {
    let wanted = run.wanted();
    if stage.wait_for(|stage| *stage != SessionStage::Opening).await.is_err() {
        return;
    }
    let warn = |reason: &str| tracing::warn!("run {} refuses a command: {reason}", run.id());
    tell(wanted, |want| send(Arc::clone(&run), want), warn).await;
}

/// Sends what is wanted until it is done. `warn` is told why a session refuses it, once for each reason.
async fn tell<F: Future<Output = CommandEnd>>(
    mut wanted: watch::Receiver<WantedState>,
    send: impl Fn(WantedState) -> F,
    warn: impl Fn(&str),
) {
    // A new session is not paused.
    let mut applied = WantedState::Running;
    let mut refusals = Refusals::default();
    loop {
        let want = *wanted.borrow_and_update();
        let pause = if want == applied {
            None
        } else {
            match send(want).await {
                CommandEnd::Done => {
                    applied = want;
                    refusals = Refusals::default();
                    continue;
                }
                CommandEnd::InProgress => Some(IN_PROGRESS_PAUSE),
                CommandEnd::Unreached => Some(COMMAND_PAUSE),
                CommandEnd::Refused(reason) => {
                    if refusals.note(&reason) {
                        warn(&reason);
                    }
                    Some(refusals.pause())
                }
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause.unwrap_or_default()), if pause.is_some() => {}
            // The same state may be told again.
            other = wanted.wait_for(|now| *now != want) => {
                if other.is_err() {
                    return;
                }
                refusals = Refusals::default();
            }
        }
    }
}

/// Sends a command to the session of a run.
async fn send(run: Arc<HostedRun>, want: WantedState) -> CommandEnd {
    let command = match want {
        WantedState::Running => RunCommand::Continue,
        WantedState::Paused => RunCommand::Pause,
        WantedState::Cancelled => RunCommand::Cancel { selection: TrialSelection::default() },
    };
    let layout = RunLayout::new(run.directory());
    let Ok(Some(client)) = ControlSocketClient::find(&layout).await else {
        return CommandEnd::Unreached;
    };
    match client.command(client.run(), command).await {
        Ok(receipt) => match receipt.refused {
            Some(reason) => CommandEnd::Refused(reason),
            None if receipt.in_progress => CommandEnd::InProgress,
            None => CommandEnd::Done,
        },
        Err(error) => {
            tracing::debug!("run {} did not take a command: {error}", run.id());
            CommandEnd::Unreached
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use tokio::time::timeout;

    use super::*;

    /// Refuses every command, and counts them and the warnings.
    #[derive(Debug, Default)]
    struct RefusingSession {
        sent: RefCell<Vec<WantedState>>,
        warnings: Cell<usize>,
    }

    impl RefusingSession {
        async fn follow(&self, wanted: watch::Receiver<WantedState>, time: Duration) {
            let send = |want| {
                self.sent.borrow_mut().push(want);
                std::future::ready(CommandEnd::Refused("the run is stopping".to_owned()))
            };
            let warn = |_: &str| self.warnings.set(self.warnings.get() + 1);
            let ended = timeout(time, tell(wanted, send, warn)).await;
            assert!(ended.is_err(), "the owner is there");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn session_that_refuses_a_command_is_asked_seldom_with_one_warning() {
        let (owner, wanted) = watch::channel(WantedState::Cancelled);
        let session = RefusingSession::default();
        let repeat = async {
            tokio::time::sleep(Duration::from_secs(1800)).await;
            owner.send_replace(WantedState::Cancelled);
        };
        tokio::join!(session.follow(wanted, Duration::from_secs(3600)), repeat);
        let (sent, warnings) = (session.sent.borrow().len(), session.warnings.get());
        assert!((60..80).contains(&sent), "{sent} in an hour");
        assert_eq!(warnings, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn another_wanted_state_is_told_at_once_after_refusals() {
        let (owner, wanted) = watch::channel(WantedState::Paused);
        let session = RefusingSession::default();
        let change = async {
            tokio::time::sleep(Duration::from_secs(600)).await;
            owner.send_replace(WantedState::Cancelled);
        };
        tokio::join!(session.follow(wanted, Duration::from_millis(600_100)), change);
        assert_eq!(session.sent.borrow().last(), Some(&WantedState::Cancelled));
        assert_eq!(session.warnings.get(), 2, "one for each");
    }
}
