//! Controls of a harness while its command runs: they are written into its environment, and its
//! events are read until it acknowledges them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rollout_environment::{
    Environment, ExecCommand, Failure, FailureKind, OutputSink, OutputStream, Upload,
};
use rollout_protocol::Timestamp;
use rollout_protocol::harness::{ControlDocument, ControlFile, ControlSession, WrittenControl};
use rollout_protocol::spec::agent::AgentKind;
use rollout_protocol::spec::harness::HarnessSpec;
use rollout_protocol::wire::trial_control::TrialControlResult;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::tail::EventTail;
use crate::executor::{COPY_LIMIT, ControlMailbox, MailboxGuard, PendingControl, with_timeout};

/// How often events are read while an acknowledgement is awaited.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Appended to the path of a control for the file that replaces it.
const NEXT_SUFFIX: &str = ".next";

/// The user who may replace every file: the one who places them.
const ROOT: &str = "0";

/// The controls that were written while a command runs, for those who check its events.
#[derive(Debug, Clone, Default)]
pub(super) struct WrittenControls(Arc<Mutex<Vec<WrittenControl>>>);

impl WrittenControls {
    fn push(&self, control: WrittenControl) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(control);
    }

    /// The controls after the first `known` ones.
    pub(super) fn since(&self, known: usize) -> Vec<WrittenControl> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(known..).unwrap_or_default().to_vec()
    }
}

/// Takes the controls of one command and waits for their acknowledgements. Without a control it
/// does nothing.
#[derive(Debug)]
pub(super) struct HarnessController<'a> {
    /// The state of the command, if it can acknowledge controls.
    active: Option<ActiveController>,
    _mailbox: MailboxGuard<'a>,
}

#[derive(Debug)]
struct ActiveController {
    began: Instant,
    control_path: String,
    session: ControlSession,
    tail: EventTail,
    requests: mpsc::Receiver<PendingControl>,
    written: WrittenControls,
    /// Requesters who wait, by the index of their control.
    replies: BTreeMap<usize, oneshot::Sender<TrialControlResult>>,
}

impl<'a> HarnessController<'a> {
    /// The controller of a command that begins now. `initial` is the control that a harness got.
    pub(super) fn new(
        mailbox: &'a ControlMailbox,
        agent: &AgentKind,
        initial: Option<&ControlDocument>,
        written: WrittenControls,
    ) -> Self {
        let (AgentKind::Harness(spec), Some(initial)) = (agent, initial) else {
            return Self { active: None, _mailbox: mailbox.refuse(None) };
        };
        let Some(events_path) = acknowledgements(spec) else {
            let level = Some(spec.integration_level);
            return Self { active: None, _mailbox: mailbox.refuse(level) };
        };
        let (guard, requests) = mailbox.open();
        let active = ActiveController {
            began: Instant::now(),
            control_path: spec.control_path.clone(),
            session: ControlSession::new(initial.clone()),
            tail: EventTail::new(events_path.to_owned()),
            requests,
            written,
            replies: BTreeMap::new(),
        };
        Self { active: Some(active), _mailbox: guard }
    }

    /// Handles controls. Returns only when the command must be ended because it ignored a `stop`,
    /// with the grace time that passed. May be dropped at the end of the command.
    pub(super) async fn wait_until_overdue(&mut self, environment: &dyn Environment) -> Duration {
        match &mut self.active {
            Some(active) => active.wait_until_overdue(environment).await,
            None => std::future::pending().await,
        }
    }

    /// Ends the controls of a command that has ended: reads its last acknowledgements from the
    /// environment, if it can be read, and answers every request. Returns the controls; `None` if
    /// there were none.
    pub(super) async fn finish(
        self,
        environment: Option<&dyn Environment>,
    ) -> Option<ControlSession> {
        let Self { active, _mailbox } = self;
        drop(_mailbox);
        let mut active = active?;
        active.requests.close();
        if let Some(environment) = environment.filter(|_| active.session.may_be_acknowledged()) {
            active.read_events(environment).await;
        }
        for (index, reply) in std::mem::take(&mut active.replies) {
            let control = active.session.control(index).clone();
            let result = TrialControlResult::Unacknowledged { control, command_ended: true };
            let _requester_gone = reply.send(result);
        }
        Some(active.session).filter(|session| session.written().next().is_some())
    }
}

impl ActiveController {
    async fn wait_until_overdue(&mut self, environment: &dyn Environment) -> Duration {
        loop {
            let waiting = self.session.is_waiting();
            let pause = match self.session.next_deadline() {
                Some(deadline) => deadline.saturating_sub(self.began.elapsed()).min(POLL_INTERVAL),
                None => POLL_INTERVAL,
            };
            tokio::select! {
                biased;
                Some(pending) = self.requests.recv() => self.write(pending, environment).await,
                () = tokio::time::sleep(pause), if waiting => {
                    // Before the reading: an acknowledgement that it misses came later.
                    let now = self.began.elapsed();
                    let is_complete = self.read_events(environment).await;
                    for index in self.session.expire(now) {
                        let control = self.session.control(index).clone();
                        self.answer(
                            index,
                            TrialControlResult::Unacknowledged { control, command_ended: false },
                        );
                    }
                    // While events cannot be read, nothing is known to be ignored.
                    if is_complete && let Some(grace) = self.session.take_overdue(now) {
                        return grace;
                    }
                }
                else => return std::future::pending().await,
            }
        }
    }

    /// Writes a control into the environment.
    async fn write(&mut self, pending: PendingControl, environment: &dyn Environment) {
        let PendingControl { request, reply } = pending;
        let (index, file) = match self.session.begin(request, Timestamp::now()) {
            Ok(begun) => begun,
            Err(refusal) => {
                let reason = refusal.to_string();
                let _requester_gone = reply.send(TrialControlResult::Refused { reason });
                return;
            }
        };
        // Before the harness can acknowledge it.
        self.written.push(file.written);
        self.replies.insert(index, reply);
        match replace_control(environment, &self.control_path, file).await {
            Ok(()) => self.session.delivered(index, Timestamp::now(), self.began.elapsed()),
            Err(failure) => {
                self.session.not_delivered(index);
                let reason = format!("cannot write the control: {}", failure.chain());
                self.answer(index, TrialControlResult::Refused { reason });
            }
        }
    }

    /// Reads new events and answers the requests that they acknowledge. Returns whether the events
    /// were read to their end.
    async fn read_events(&mut self, environment: &dyn Environment) -> bool {
        let versions: Vec<_> = self.session.written().map(|written| written.version).collect();
        let (events, is_complete) = self.tail.read_acknowledgements(environment, versions).await;
        for event in events {
            if let Some(index) = self.session.event(&event) {
                let control = self.session.control(index).clone();
                self.answer(index, TrialControlResult::Acknowledged { control });
            }
        }
        is_complete
    }

    fn answer(&mut self, index: usize, result: TrialControlResult) {
        if let Some(reply) = self.replies.remove(&index) {
            let _requester_gone = reply.send(result);
        }
    }
}

/// The file of events in which a harness acknowledges controls, if it does.
fn acknowledgements(spec: &HarnessSpec) -> Option<&str> {
    spec.events_path.as_deref().filter(|_| spec.manifest().requires_acks())
}

/// Writes the first control, before the command runs.
pub(super) async fn write_control(
    environment: &dyn Environment,
    path: &str,
    control: ControlFile,
) -> Result<(), Failure> {
    let (path, bytes) = (path.to_owned(), Bytes::from(control.bytes));
    let placing = environment.copy_to(vec![Upload::File { path, bytes, executable: false }]);
    with_timeout(COPY_LIMIT, "placing it", placing).await
}

/// Replaces a control that the command may be reading: it sees the old file or the new one, never
/// a part.
async fn replace_control(
    environment: &dyn Environment,
    path: &str,
    control: ControlFile,
) -> Result<(), Failure> {
    let next = format!("{path}{NEXT_SUFFIX}");
    write_control(environment, &next, control).await?;
    let script = "mv -f -- \"$ROLLOUT_CONTROL_NEXT\" \"$ROLLOUT_CONTROL_PATH\"";
    let command = ExecCommand {
        argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        env: [("ROLLOUT_CONTROL_NEXT", next), ("ROLLOUT_CONTROL_PATH", path.to_owned())]
            .map(|(name, value)| (name.to_owned(), value))
            .into(),
        workdir: Some("/".to_owned()),
        user: Some(ROOT.to_owned()),
    };
    let moving = environment.exec(command, Arc::new(DiscardedOutput));
    let exit = with_timeout(COPY_LIMIT, "replacing it", moving).await?;
    if exit.code == 0 {
        return Ok(());
    }
    let message = format!("cannot replace `{path}`: `mv` ended with code {}", exit.code);
    Err(Failure::new(FailureKind::Unusable, message))
}

/// Ignores the output of a command.
struct DiscardedOutput;

impl OutputSink for DiscardedOutput {
    fn write(&self, _: OutputStream, _: &[u8]) {}
}
