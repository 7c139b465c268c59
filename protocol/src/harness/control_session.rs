//! The controls of one command of a harness: requests, acknowledgements and deadlines, as a state
//! machine without a clock.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::control::{ControlAction, ControlDocument, ControlFile, WrittenControl};
use super::hook_event::{HookEvent, HookEventBody};
use crate::digest::Digest;
use crate::limits;

/// A control that was requested while a harness ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HarnessControl {
    /// Digest of the bytes of its file.
    pub control_version: Digest,
    /// Its number, from 1. The control with which every command begins has number 0.
    pub seq: u64,
    /// The requested action.
    pub action: ControlAction,
    /// Name of a checkpoint, or another label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// When it was requested.
    pub requested_at: Timestamp,
    /// The requester.
    pub requested_by: String,
    /// When its file was in place; absent if that is not known.
    #[serde(default)]
    pub delivered_at: Option<Timestamp>,
    /// The acknowledgement; absent if there was none.
    #[serde(default)]
    pub acknowledgement: Option<ControlAcknowledgement>,
    /// Whether the command was ended because it ignored this control.
    #[serde(default)]
    pub ended_command: bool,
}

/// An acknowledgement of a control by a harness.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlAcknowledgement {
    /// The action that the harness takes; the requested one if it does not say.
    pub action_taken: ControlAction,
    /// The step after which it was acknowledged.
    pub step_index: Option<u64>,
}

/// A request for a control.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlRequest {
    /// The action.
    pub action: ControlAction,
    /// Name of a checkpoint, or another label.
    pub label: Option<String>,
    /// The requester.
    pub requested_by: String,
    /// Longest wait for the acknowledgement.
    pub timeout: Duration,
    /// How long after this wait a command that ignored `stop` may still run.
    pub grace: Duration,
}

/// Why a control is not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ControlRefusal {
    /// The command got as many controls as it may.
    #[error("the agent's command already got {} controls", limits::HARNESS_CONTROLS)]
    TooMany,
    /// Another action would replace `stop`.
    #[error("the agent was already asked to stop")]
    Stopping,
    /// The label or the requester is too long.
    #[error("the label or the requester has more than {} bytes", limits::HARNESS_NAME_BYTES)]
    TextTooLong,
}

/// The controls of one command of a harness. Times are since the start of the command.
#[derive(Debug)]
pub struct ControlSession {
    last: ControlDocument,
    controls: Vec<TrackedControl>,
}

#[derive(Debug)]
struct TrackedControl {
    control: HarnessControl,
    timeout: Duration,
    grace: Duration,
    state: ControlState,
}

/// How far a control is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ControlState {
    /// Its file is being written.
    Writing,
    /// Its file could not be written. The harness may have read it all the same.
    NotDelivered,
    /// It can be acknowledged until this time.
    Pending { until: Duration },
    /// It was not acknowledged; this is the end of its grace time.
    Unacknowledged { grace_until: Duration },
    /// It was acknowledged in time.
    Acknowledged,
}

impl ControlSession {
    /// The session of a command that begins with this control.
    pub const fn new(initial: ControlDocument) -> Self {
        Self { last: initial, controls: Vec::new() }
    }

    /// Adds a control; returns its index and its file, which must be written now.
    ///
    /// # Errors
    /// [`ControlRefusal`]; nothing changed.
    pub fn begin(
        &mut self,
        request: ControlRequest,
        at: Timestamp,
    ) -> Result<(usize, ControlFile), ControlRefusal> {
        let too_long = |text: &str| text.len() > limits::HARNESS_NAME_BYTES;
        if request.label.as_deref().is_some_and(too_long) || too_long(&request.requested_by) {
            return Err(ControlRefusal::TextTooLong);
        }
        if self.controls.len() >= limits::HARNESS_CONTROLS {
            return Err(ControlRefusal::TooMany);
        }
        if self.is_stopping() && request.action != ControlAction::Stop {
            return Err(ControlRefusal::Stopping);
        }
        let ControlRequest { action, label, requested_by, timeout, grace } = request;
        self.last = self.last.next(action, label.clone(), requested_by.clone(), at);
        let file = self.last.to_file();
        let control = HarnessControl {
            control_version: file.written.version,
            seq: file.written.seq,
            action,
            label,
            requested_at: at,
            requested_by,
            delivered_at: None,
            acknowledgement: None,
            ended_command: false,
        };
        self.controls.push(TrackedControl {
            control,
            timeout,
            grace,
            state: ControlState::Writing,
        });
        Ok((self.controls.len() - 1, file))
    }

    /// The file of a control is in place.
    pub fn delivered(&mut self, index: usize, at: Timestamp, now: Duration) {
        let tracked = &mut self.controls[index];
        tracked.control.delivered_at = Some(at);
        if tracked.state == ControlState::Writing {
            tracked.state = ControlState::Pending { until: now.saturating_add(tracked.timeout) };
        }
    }

    /// The file of a control could not be written.
    pub fn not_delivered(&mut self, index: usize) {
        let tracked = &mut self.controls[index];
        if tracked.state == ControlState::Writing {
            tracked.state = ControlState::NotDelivered;
        }
    }

    /// Reads an event of the harness. Returns the control that it acknowledges. An acknowledgement
    /// that is late counts, and spares the command; a second one of the same control does not.
    pub fn event(&mut self, event: &HookEvent) -> Option<usize> {
        let HookEventBody::ControlAck(ack) = &event.body else { return None };
        let named = |tracked: &TrackedControl| {
            tracked.control.control_version == ack.control_version
                && tracked.control.action == ack.action_observed
                && tracked.control.acknowledgement.is_none()
        };
        let index = self.controls.iter().position(named)?;
        let tracked = &mut self.controls[index];
        tracked.control.acknowledgement = Some(ControlAcknowledgement {
            action_taken: ack.action_taken.unwrap_or(ack.action_observed),
            step_index: event.step_index,
        });
        tracked.state = ControlState::Acknowledged;
        Some(index)
    }

    /// Ends the wait for acknowledgements that are overdue; returns their controls.
    pub fn expire(&mut self, now: Duration) -> Vec<usize> {
        let mut expired = Vec::new();
        for (index, tracked) in self.controls.iter_mut().enumerate() {
            if let ControlState::Pending { until } = tracked.state
                && until <= now
            {
                let grace_until = until.saturating_add(tracked.grace);
                tracked.state = ControlState::Unacknowledged { grace_until };
                expired.push(index);
            }
        }
        expired
    }

    /// Whether the command must be ended: it ignored a `stop` for longer than its grace time, and
    /// acknowledged none. Returns that grace time, and records it in the control.
    pub fn take_overdue(&mut self, now: Duration) -> Option<Duration> {
        let overdue =
            self.ignored_stops().find_map(|(index, until)| (until <= now).then_some(index));
        let tracked = &mut self.controls[overdue?];
        tracked.control.ended_command = true;
        Some(tracked.grace)
    }

    /// Whether events or the time can change something.
    pub fn is_waiting(&self) -> bool {
        let pending =
            |tracked: &TrackedControl| matches!(tracked.state, ControlState::Pending { .. });
        self.controls.iter().any(pending) || self.ignored_stops().next().is_some()
    }

    /// Whether the harness may have acknowledged a control whose acknowledgement was not read: it can
    /// read a control and act on it before the one who wrote the control learns that it is in place.
    pub fn may_be_acknowledged(&self) -> bool {
        self.controls.iter().any(|tracked| tracked.control.acknowledgement.is_none())
    }

    /// The time at which the first wait or grace time ends.
    pub fn next_deadline(&self) -> Option<Duration> {
        let waits = self.controls.iter().filter_map(|tracked| match tracked.state {
            ControlState::Pending { until } => Some(until),
            _ => None,
        });
        waits.chain(self.ignored_stops().map(|(_, until)| until)).min()
    }

    /// A control.
    pub fn control(&self, index: usize) -> &HarnessControl {
        &self.controls[index].control
    }

    /// The controls that were written, as an acknowledgement names them.
    pub fn written(&self) -> impl Iterator<Item = WrittenControl> {
        self.controls.iter().map(|TrackedControl { control, .. }| WrittenControl {
            version: control.control_version,
            seq: control.seq,
            action: control.action,
        })
    }

    /// The controls after the end of the command.
    pub fn into_controls(self) -> Vec<HarnessControl> {
        self.controls.into_iter().map(|tracked| tracked.control).collect()
    }

    /// Whether a `stop` was written.
    fn is_stopping(&self) -> bool {
        self.controls.iter().any(|tracked| {
            tracked.control.action == ControlAction::Stop
                && tracked.state != ControlState::NotDelivered
        })
    }

    /// Controls `stop` that were not acknowledged in time, and the ends of their grace times; none
    /// once any `stop` was acknowledged.
    fn ignored_stops(&self) -> impl Iterator<Item = (usize, Duration)> {
        let stops = |tracked: &TrackedControl| tracked.control.action == ControlAction::Stop;
        let heeded = self
            .controls
            .iter()
            .any(|tracked| stops(tracked) && tracked.control.acknowledgement.is_some());
        let ignored = self.controls.iter().enumerate().filter(move |_| !heeded);
        ignored.filter_map(move |(index, tracked)| match tracked.state {
            ControlState::Unacknowledged { grace_until } if stops(tracked) => {
                Some((index, grace_until))
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::hook_event::ControlAck;
    use super::super::testing;
    use super::*;
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;
    const TIMEOUT: Duration = Duration::from_secs(60);
    const GRACE: Duration = Duration::from_secs(30);

    fn session() -> ControlSession {
        ControlSession::new(ControlDocument::initial(NOW))
    }

    fn request(action: ControlAction) -> ControlRequest {
        let requested_by = "test".to_owned();
        ControlRequest { action, label: None, requested_by, timeout: TIMEOUT, grace: GRACE }
    }

    /// Writes a control at this second.
    fn write(session: &mut ControlSession, action: ControlAction, second: u64) -> ControlFile {
        let (index, file) = session.begin(request(action), NOW).expect("accepted");
        session.delivered(index, NOW, Duration::from_secs(second));
        file
    }

    fn ack(version: Digest, observed: ControlAction, taken: Option<ControlAction>) -> HookEvent {
        HookEvent {
            ts: NOW,
            seq: 1,
            ids: testing::ids(),
            step_index: Some(3),
            payload_ref: None,
            redaction: None,
            body: HookEventBody::ControlAck(ControlAck {
                control_version: version,
                control_seq: None,
                action_observed: observed,
                action_taken: taken,
                reason: None,
            }),
        }
    }

    #[test]
    fn acknowledgement_of_version_and_action_settles_control() {
        let mut session = session();
        let file = write(&mut session, ControlAction::Checkpoint, 5);
        let version = file.written.version;
        let initial = ControlDocument::initial(NOW).to_file().written.version;
        for wrong in [
            ack(initial, ControlAction::Continue, None),
            ack(initial, ControlAction::Checkpoint, None),
            ack(version, ControlAction::Stop, None),
        ] {
            assert_eq!(session.event(&wrong), None, "{wrong:?}");
            assert!(session.is_waiting());
        }
        let taken = Some(ControlAction::Continue);
        assert_eq!(session.event(&ack(version, ControlAction::Checkpoint, taken)), Some(0));
        let found = session.control(0).acknowledgement.expect("acknowledged");
        assert_eq!((found.action_taken, found.step_index), (ControlAction::Continue, Some(3)));
        assert!(!session.is_waiting());
        assert_eq!(session.event(&ack(version, ControlAction::Checkpoint, None)), None);
        assert_eq!(session.expire(Duration::MAX), Vec::<usize>::new());
    }

    #[test]
    fn ignored_stop_ends_command_after_timeout_and_grace() {
        let mut session = session();
        let file = write(&mut session, ControlAction::Stop, 5);
        let second = Duration::from_secs;
        assert_eq!(session.next_deadline(), Some(second(65)));
        assert_eq!(session.expire(second(64)), Vec::<usize>::new());
        assert_eq!(session.expire(second(65)), [0]);
        assert_eq!(session.expire(second(66)), Vec::<usize>::new(), "it is reported once");
        assert_eq!(
            (session.take_overdue(second(94)), session.next_deadline()),
            (None, Some(second(95)))
        );
        assert_eq!(session.take_overdue(second(95)), Some(GRACE));
        assert!(session.control(0).ended_command);
        assert_eq!(session.control(0).control_version, file.written.version);
        assert_eq!(session.control(0).acknowledgement, None);
    }

    #[test]
    fn late_acknowledgement_of_stop_spares_command() {
        let mut session = session();
        let file = write(&mut session, ControlAction::Stop, 0);
        assert_eq!(session.expire(TIMEOUT), [0]);
        assert!(session.is_waiting());
        assert_eq!(session.event(&ack(file.written.version, ControlAction::Stop, None)), Some(0));
        assert_eq!(session.take_overdue(Duration::MAX), None);
        assert!(!session.is_waiting());
    }

    #[test]
    fn ignored_checkpoint_never_ends_command() {
        let mut session = session();
        write(&mut session, ControlAction::Checkpoint, 0);
        assert_eq!(session.expire(Duration::MAX), [0]);
        assert_eq!(session.take_overdue(Duration::MAX), None);
        assert!(!session.is_waiting());
    }

    #[test]
    fn control_beyond_its_limits_is_refused() {
        let mut session = session();
        let mut long = request(ControlAction::Stop);
        long.label = Some("x".repeat(limits::HARNESS_NAME_BYTES + 1));
        assert_eq!(session.begin(long, NOW).expect_err("refused"), ControlRefusal::TextTooLong);
        write(&mut session, ControlAction::Stop, 0);
        let other = session.begin(request(ControlAction::Checkpoint), NOW);
        assert_eq!(other.expect_err("refused"), ControlRefusal::Stopping);
        for _ in 1..limits::HARNESS_CONTROLS {
            write(&mut session, ControlAction::Stop, 0);
        }
        let more = session.begin(request(ControlAction::Stop), NOW);
        assert_eq!(more.expect_err("refused"), ControlRefusal::TooMany);
        assert_eq!(session.into_controls().len(), limits::HARNESS_CONTROLS);
    }

    #[test]
    fn stop_that_was_not_delivered_neither_blocks_nor_ends() {
        let mut session = session();
        let (index, _) = session.begin(request(ControlAction::Stop), NOW).expect("accepted");
        session.not_delivered(index);
        assert!(!session.is_waiting());
        assert_eq!(
            (session.expire(Duration::MAX), session.take_overdue(Duration::MAX)),
            (vec![], None)
        );
        assert!(session.begin(request(ControlAction::Checkpoint), NOW).is_ok());
    }

    #[test]
    fn control_that_is_being_written_may_be_acknowledged() {
        let mut session = session();
        assert!(!session.may_be_acknowledged());
        let (_, file) = session.begin(request(ControlAction::Stop), NOW).expect("accepted");
        assert!(session.may_be_acknowledged() && !session.is_waiting());
        assert_eq!(session.event(&ack(file.written.version, ControlAction::Stop, None)), Some(0));
        assert!(!session.may_be_acknowledged());
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Request(bool),
        Ack(usize),
        Pass(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            any::<bool>().prop_map(Step::Request),
            (0..6usize).prop_map(Step::Ack),
            (0..50u64).prop_map(Step::Pass),
        ];
        proptest::collection::vec(step, 0..60)
    }

    proptest! {
        #[test]
        fn control_is_answered_once_and_command_ended_only_for_ignored_stop(steps in steps()) {
            let (mut session, mut now) = (session(), Duration::ZERO);
            let (mut files, mut expired) = (Vec::new(), Vec::new());
            for step in steps {
                match step {
                    Step::Request(stop) => {
                        let action =
                            if stop { ControlAction::Stop } else { ControlAction::Checkpoint };
                        if let Ok((index, file)) = session.begin(request(action), NOW) {
                            prop_assert_eq!((index, file.written.seq), (files.len(), files.len() as u64 + 1));
                            session.delivered(index, NOW, now);
                            files.push((file.written, now, false));
                        }
                    }
                    Step::Ack(of) => {
                        let Some((written, _, acked)) = files.get_mut(of) else { continue };
                        let found = session.event(&ack(written.version, written.action, None));
                        prop_assert_eq!(found, (!*acked).then_some(of));
                        *acked = true;
                    }
                    Step::Pass(seconds) => {
                        now += Duration::from_secs(seconds);
                        for index in session.expire(now) {
                            prop_assert!(!files[index].2 && files[index].1 + TIMEOUT <= now);
                            prop_assert!(!expired.contains(&index));
                            expired.push(index);
                        }
                        let stops = || files.iter().filter(|(file, ..)| file.action == ControlAction::Stop);
                        let heeded = stops().any(|(_, _, acked)| *acked);
                        let due = stops().any(|(_, at, _)| *at + TIMEOUT + GRACE <= now);
                        prop_assert_eq!(session.take_overdue(now).is_some(), due && !heeded);
                    }
                }
            }
            let written: Vec<_> = files.iter().map(|(file, ..)| *file).collect();
            prop_assert_eq!(session.written().collect::<Vec<_>>(), written);
        }
    }
}
