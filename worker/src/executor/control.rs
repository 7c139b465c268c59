//! Controls on their way from the worker's service to an execution that runs a harness.

use std::sync::{Mutex, PoisonError};

use rollout_protocol::harness::{ControlRequest, IntegrationLevel};
use rollout_protocol::wire::trial_control::TrialControlResult;
use tokio::sync::{mpsc, oneshot};

/// Controls of one execution that wait for their turn: a person sends them one by one.
const CAPACITY: usize = 8;

/// A control that waits for its result.
#[derive(Debug)]
pub struct PendingControl {
    /// The control.
    pub request: ControlRequest,
    /// Receives the result. Dropped, it means that the command ended before it was written.
    pub reply: oneshot::Sender<TrialControlResult>,
}

/// Receives the controls of an execution. It accepts them only while a command runs that can
/// acknowledge them.
#[derive(Debug, Default)]
pub struct ControlMailbox(Mutex<MailboxState>);

#[derive(Debug, Default)]
enum MailboxState {
    /// No command of an agent runs.
    #[default]
    Closed,
    /// A command runs that cannot acknowledge controls.
    Unsupported(Option<IntegrationLevel>),
    /// A command runs.
    Open(mpsc::Sender<PendingControl>),
}

/// Why a mailbox takes no control.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MailboxRefusal {
    /// No command of an agent runs.
    Closed,
    /// The agent cannot acknowledge controls; the level of its harness, if it has one.
    Unsupported(Option<IntegrationLevel>),
    /// Too many controls wait.
    Full,
}

/// Closes a mailbox when it is dropped: at the end of a command.
#[derive(Debug)]
pub struct MailboxGuard<'a>(&'a ControlMailbox);

impl Drop for MailboxGuard<'_> {
    fn drop(&mut self) {
        self.0.set(MailboxState::Closed);
    }
}

impl ControlMailbox {
    /// Sends a control; the receiver gets its result.
    ///
    /// # Errors
    /// [`MailboxRefusal`].
    pub fn send(
        &self,
        request: ControlRequest,
    ) -> Result<oneshot::Receiver<TrialControlResult>, MailboxRefusal> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*state {
            MailboxState::Closed => Err(MailboxRefusal::Closed),
            MailboxState::Unsupported(level) => Err(MailboxRefusal::Unsupported(*level)),
            MailboxState::Open(sender) => {
                let (reply, result) = oneshot::channel();
                match sender.try_send(PendingControl { request, reply }) {
                    Ok(()) => Ok(result),
                    Err(mpsc::error::TrySendError::Full(_)) => Err(MailboxRefusal::Full),
                    Err(mpsc::error::TrySendError::Closed(_)) => Err(MailboxRefusal::Closed),
                }
            }
        }
    }

    /// Accepts controls until the guard is dropped.
    pub fn open(&self) -> (MailboxGuard<'_>, mpsc::Receiver<PendingControl>) {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        self.set(MailboxState::Open(sender));
        (MailboxGuard(self), receiver)
    }

    /// Refuses controls as unsupported until the guard is dropped.
    pub fn refuse(&self, level: Option<IntegrationLevel>) -> MailboxGuard<'_> {
        self.set(MailboxState::Unsupported(level));
        MailboxGuard(self)
    }

    fn set(&self, state: MailboxState) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rollout_protocol::harness::ControlAction;

    use super::*;

    fn request() -> ControlRequest {
        ControlRequest {
            action: ControlAction::Stop,
            label: None,
            requested_by: "test".to_owned(),
            timeout: Duration::ZERO,
            grace: Duration::ZERO,
        }
    }

    #[test]
    fn mailbox_takes_controls_only_while_open() {
        let mailbox = ControlMailbox::default();
        let refusal = || mailbox.send(request()).expect_err("refused");
        assert_eq!(refusal(), MailboxRefusal::Closed);
        let guard = mailbox.refuse(Some(IntegrationLevel::CliBasic));
        assert_eq!(refusal(), MailboxRefusal::Unsupported(Some(IntegrationLevel::CliBasic)));
        drop(guard);
        assert_eq!(refusal(), MailboxRefusal::Closed);
        let (guard, mut controls) = mailbox.open();
        for _ in 0..CAPACITY {
            mailbox.send(request()).expect("taken");
        }
        assert_eq!(refusal(), MailboxRefusal::Full);
        assert_eq!(controls.try_recv().expect("a control").request, request());
        drop(guard);
        assert_eq!(refusal(), MailboxRefusal::Closed);
    }
}
