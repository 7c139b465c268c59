//! Which life of the server this is, and for how long it was seen alive.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_protocol::digest::Digest;
use rollout_protocol::wire::position::Incarnation;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::Instant;

use super::client::{ANSWER_TIMEOUT, NatsClient, api_request, parse_api};
use super::error::NatsError;

/// How often the streams are looked at: a stream that was made anew behind a living connection is
/// noticed within this.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// First wait after a look in vain.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// An answer vouches for so much time after it.
const ANSWER_VALIDITY: Duration = Duration::from_secs(3);

/// The state of a stream, as far as it names a life.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct StreamInfo {
    pub(super) created: String,
    pub(super) state: StreamState,
}

/// Counters of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(super) struct StreamState {
    #[serde(default)]
    pub(super) messages: u64,
    #[serde(default)]
    pub(super) bytes: u64,
    #[serde(default)]
    pub(super) first_seq: u64,
    #[serde(default)]
    pub(super) last_seq: u64,
    #[serde(default)]
    pub(super) consumer_count: u64,
}

/// What was found out over the present connection, or why nothing was.
#[derive(Debug, Clone)]
struct IncarnationCheck {
    connection: u64,
    found: Result<Incarnation, NatsError>,
}

/// What is known of the server's life.
#[derive(Debug)]
pub(super) struct IncarnationTracker {
    standing: watch::Sender<Option<IncarnationCheck>>,
    seen: Mutex<ObservedStreams>,
}

#[derive(Debug)]
struct ObservedStreams {
    /// Highest sequence of an offer, and of a report, that the stream was seen to have.
    work: u64,
    reports: u64,
    /// Both streams' times of creation.
    created: Option<(String, String)>,
    /// Changes when sequences went back.
    losses: u64,
    /// The last connection over which a life was found.
    connection: Option<u64>,
    /// Last sequence of an offer when a lost connection was made again: the server may have been
    /// killed meanwhile and have forgotten to whom it delivered what came before.
    doubtful: u64,
    /// Time during which the server answered, until the last answer.
    online: Duration,
    answered: Instant,
}

impl Default for IncarnationTracker {
    fn default() -> Self {
        let seen = ObservedStreams {
            work: 0,
            reports: 0,
            created: None,
            losses: 0,
            connection: None,
            doubtful: 0,
            online: Duration::ZERO,
            answered: Instant::now(),
        };
        Self { standing: watch::Sender::new(None), seen: Mutex::new(seen) }
    }
}

impl IncarnationTracker {
    /// The stream of offers has this sequence.
    pub(super) fn observe_offer(&self, sequence: u64) {
        let mut seen = self.observed();
        seen.work = seen.work.max(sequence);
    }

    /// The stream of reports has this sequence.
    pub(super) fn observe_report(&self, sequence: u64) {
        let mut seen = self.observed();
        seen.reports = seen.reports.max(sequence);
    }

    /// Whether an offer may have been delivered before, whatever the server says.
    pub(super) fn may_be_redelivered(&self, sequence: u64) -> bool {
        sequence <= self.observed().doubtful
    }

    /// A clock that stands still while the server does not answer.
    pub(super) fn online_time(&self) -> Duration {
        let seen = self.observed();
        seen.online + seen.answered.elapsed().min(ANSWER_VALIDITY)
    }

    fn mark_answered(&self) {
        let mut seen = self.observed();
        let more = seen.answered.elapsed().min(ANSWER_VALIDITY);
        seen.online += more;
        seen.answered = Instant::now();
    }

    fn observed(&self) -> MutexGuard<'_, ObservedStreams> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObservedStreams {
    /// A life was found over this connection, and the stream of offers so far.
    fn mark_connected(&mut self, connection: u64, last: u64) {
        let before = self.connection.replace(connection);
        if before.is_some_and(|before| before != connection) {
            self.doubtful = last;
        }
    }

    /// The life with these streams. `before` are the sequences that were known when they were asked
    /// for.
    fn identify(
        &mut self,
        work: &StreamInfo,
        reports: &StreamInfo,
        before: (u64, u64),
    ) -> Incarnation {
        let created = (work.created.clone(), reports.created.clone());
        if self.created.as_ref() != Some(&created) {
            self.created = Some(created);
            (self.work, self.reports) = (work.state.last_seq, reports.state.last_seq);
        } else if work.state.last_seq < before.0 || reports.state.last_seq < before.1 {
            tracing::warn!("the server lost the end of a stream and uses its sequences again");
            self.losses = rand::random();
            (self.work, self.reports) = (work.state.last_seq, reports.state.last_seq);
        }
        let name = format!("{} {} {}", work.created, reports.created, self.losses);
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&Digest::sha256(name.as_bytes()).as_bytes()[..16]);
        Incarnation(u128::from_be_bytes(bytes))
    }
}

impl NatsClient {
    /// The life that was found over the present connection, without waiting.
    pub(super) fn known_incarnation(&self) -> Option<Incarnation> {
        let connection = self.connection().ok()?;
        let standing = self.life.standing.borrow();
        let standing = standing.as_ref().filter(|s| s.connection == connection)?;
        standing.found.as_ref().ok().copied()
    }

    /// The present life, found over the present connection.
    pub(super) async fn current_incarnation(&self) -> Result<Incarnation, NatsError> {
        match self.known_incarnation() {
            Some(life) => Ok(life),
            None => self.check_incarnation().await,
        }
    }

    /// Looks at the streams now.
    pub(super) async fn check_incarnation(&self) -> Result<Incarnation, NatsError> {
        let connection = self.connection()?;
        let before = {
            let seen = self.life.observed();
            (seen.work, seen.reports)
        };
        let streams = [&self.names.work, &self.names.reports];
        let requests =
            streams.map(|name| api_request(&format!("STREAM.INFO.{name}"), &serde_json::json!({})));
        let answers = self.replies.request_all(&self.client, requests.into(), ANSWER_TIMEOUT).await;
        let answered = answers.iter().any(|a| !matches!(a, Err(NatsError::Unreachable(_))));
        if answered {
            self.life.mark_answered();
        }
        let mut infos = answers.into_iter().map(|a| parse_api::<StreamInfo>(&a?.payload));
        let mut next = || infos.next().unwrap_or(Err(NatsError::Unreachable("no answer".into())));
        let found = match (next(), next()) {
            (Ok(work), Ok(reports)) => {
                let mut seen = self.life.observed();
                seen.mark_connected(connection, work.state.last_seq);
                Ok(seen.identify(&work, &reports, before))
            }
            (Err(fault), _) | (_, Err(fault)) => Err(fault),
        };
        let standing = IncarnationCheck { connection, found: found.clone() };
        self.life.standing.send_replace(Some(standing));
        found
    }

    /// Waits until the life of the present connection is known.
    pub(super) async fn wait_for_incarnation(&self) -> Incarnation {
        let mut standing = self.life.standing.subscribe();
        loop {
            if let Some(life) = self.known_incarnation() {
                return life;
            }
            // The sender is in this link.
            let _changed = standing.changed().await;
        }
    }
}

/// Looks at the streams again and again, and at once over each new connection.
pub(super) async fn watch_incarnation(link: Arc<NatsClient>) {
    let mut contact = link.connection_status();
    let mut again = RETRY_PAUSE;
    loop {
        let found =
            if link.connection().is_ok() { link.check_incarnation().await.is_ok() } else { false };
        let pause = if found { CHECK_INTERVAL } else { again };
        again = if found { RETRY_PAUSE } else { CHECK_INTERVAL.min(again * 2) };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = contact.changed() => again = RETRY_PAUSE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream_info(created: &str, last_seq: u64) -> StreamInfo {
        let state = StreamState { last_seq, ..StreamState::default() };
        StreamInfo { created: created.to_owned(), state }
    }

    #[test]
    fn sequence_before_reconnect_is_doubtful() {
        let life = IncarnationTracker::default();
        life.observed().mark_connected(1, 7);
        assert!(!life.may_be_redelivered(7), "nobody was cut off");
        life.observed().mark_connected(1, 9);
        assert!(!life.may_be_redelivered(7));
        life.observed().mark_connected(2, 9);
        assert!(life.may_be_redelivered(9) && !life.may_be_redelivered(10));
    }

    #[test]
    fn incarnation_changes_after_stream_loss_or_recreation() {
        let life = IncarnationTracker::default();
        let judge = |work: &StreamInfo, reports: &StreamInfo| {
            let mut seen = life.observed();
            let before = (seen.work, seen.reports);
            seen.identify(work, reports, before)
        };
        let first = judge(&stream_info("a", 5), &stream_info("b", 7));
        life.observe_offer(9);
        life.observe_report(8);
        assert_eq!(judge(&stream_info("a", 9), &stream_info("b", 20)), first);
        let lost = judge(&stream_info("a", 9), &stream_info("b", 6));
        assert_ne!(lost, first, "reports went back below what was acknowledged");
        assert_eq!(judge(&stream_info("a", 10), &stream_info("b", 6)), lost);
        let lost_work = judge(&stream_info("a", 8), &stream_info("b", 6));
        assert_ne!(lost_work, lost, "offers too");
        assert_ne!(judge(&stream_info("c", 0), &stream_info("b", 6)), lost_work, "made anew");
        let other = IncarnationTracker::default().observed().identify(
            &stream_info("a", 1),
            &stream_info("b", 1),
            (0, 0),
        );
        assert_eq!(other, first, "whoever has seen no loss agrees");
    }
}
