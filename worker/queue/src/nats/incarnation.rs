//! The server's incarnation, and for how long the server responded.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_base::common_times::next_time;
use rollout_protocol::digest::Digest;
use rollout_protocol::wire::position::Incarnation;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::Instant;

use super::client::{ANSWER_TIMEOUT, NatsClient, api_request, parse_api};
use super::error::NatsError;

/// Interval of stream checks: a stream that was recreated during a connection is noticed within
/// this.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// First wait after a failed check.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Time without an answer after which another server of a cluster is tried. The choice of a new
/// leader takes a few seconds.
const UNANSWERED_FOR: Duration = Duration::from_secs(10);
/// Longest time between two such attempts.
const MAX_UNANSWERED_FOR: Duration = Duration::from_secs(60);
/// Time after a response in which the server counts as responding.
const ANSWER_VALIDITY: Duration = Duration::from_secs(3);

/// The part of a stream's state that identifies an incarnation.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct StreamInfo {
    pub(super) created: String,
    pub(super) state: StreamState,
    /// Present on servers of a cluster.
    #[serde(default)]
    cluster: Option<StreamCluster>,
}

/// The part of a cluster that has a stream.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct StreamCluster {
    #[serde(default)]
    leader: Option<String>,
}

impl StreamInfo {
    /// The information, unless the server knows no leader: one that is cut off from its cluster
    /// answers with what it knew last.
    fn led(self) -> Result<Self, NatsError> {
        match &self.cluster {
            Some(StreamCluster { leader: None }) => {
                Err(NatsError::Unreachable("a stream has no leader".to_owned()))
            }
            _ => Ok(self),
        }
    }
}

/// Counters of a stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(super) struct StreamState {
    #[serde(default)]
    pub(super) messages: u64,
    #[serde(default)]
    pub(super) bytes: u64,
    #[serde(default)]
    pub(super) last_seq: u64,
    #[serde(default)]
    consumer_count: u64,
}

/// The stream of offers at a look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct OfferStream {
    /// The server's incarnation, once it is known.
    pub(super) incarnation: Option<Incarnation>,
    /// Its consumers.
    pub(super) consumers: u64,
    /// Whether it has offers, of any pool, that wait or are not acknowledged.
    pub(super) has_offers: bool,
}

impl OfferStream {
    fn new(incarnation: Incarnation, state: &StreamState) -> Self {
        let incarnation = Some(incarnation);
        Self { incarnation, consumers: state.consumer_count, has_offers: state.messages > 0 }
    }
}

/// The result of a check over one connection.
#[derive(Debug, Clone)]
struct IncarnationCheck {
    connection: u64,
    found: Result<Incarnation, NatsError>,
}

/// The state from which the server's incarnation is derived.
#[derive(Debug)]
pub(super) struct IncarnationTracker {
    last_check: watch::Sender<Option<IncarnationCheck>>,
    observed: Mutex<ObservedStreams>,
    offers: watch::Sender<OfferStream>,
}

#[derive(Debug)]
struct ObservedStreams {
    /// Highest sequence seen in the stream of offers, and in the stream of reports.
    work: u64,
    reports: u64,
    /// Creation times of both streams.
    created: Option<(String, String)>,
    /// Changes when a stream's last sequence went back.
    losses: u64,
    /// The last connection over which an incarnation was found.
    connection: Option<u64>,
    /// Last sequence of an offer at the last reconnection: the server may have been killed
    /// meanwhile and have forgotten the deliveries of earlier offers.
    doubtful_up_to: u64,
    /// Total time in which the server responded, until its last response.
    online: Duration,
    last_response: Instant,
}

impl Default for IncarnationTracker {
    fn default() -> Self {
        let seen = ObservedStreams {
            work: 0,
            reports: 0,
            created: None,
            losses: 0,
            connection: None,
            doubtful_up_to: 0,
            online: Duration::ZERO,
            last_response: Instant::now(),
        };
        let offers = watch::Sender::new(OfferStream::default());
        Self { last_check: watch::Sender::new(None), observed: Mutex::new(seen), offers }
    }
}

impl IncarnationTracker {
    /// Records that the stream of offers has this sequence.
    pub(super) fn observe_offer(&self, sequence: u64) {
        let mut seen = self.observed();
        seen.work = seen.work.max(sequence);
    }

    /// Records that the stream of reports has this sequence.
    pub(super) fn observe_report(&self, sequence: u64) {
        let mut seen = self.observed();
        seen.reports = seen.reports.max(sequence);
    }

    /// Whether an offer may have been delivered before, regardless of the server's delivery count.
    pub(super) fn may_be_redelivered(&self, sequence: u64) -> bool {
        sequence <= self.observed().doubtful_up_to
    }

    /// The stream of offers at the last check. Its receivers are told of changes only.
    pub(super) fn offers(&self) -> watch::Receiver<OfferStream> {
        self.offers.subscribe()
    }

    fn set_offers(&self, found: OfferStream) {
        self.offers.send_if_modified(|known| std::mem::replace(known, found) != found);
    }

    /// A clock that stops while the server does not respond.
    pub(super) fn online_time(&self) -> Duration {
        let seen = self.observed();
        seen.online + seen.last_response.elapsed().min(ANSWER_VALIDITY)
    }

    fn mark_answered(&self) {
        let mut seen = self.observed();
        let more = seen.last_response.elapsed().min(ANSWER_VALIDITY);
        seen.online += more;
        seen.last_response = Instant::now();
    }

    fn observed(&self) -> MutexGuard<'_, ObservedStreams> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ObservedStreams {
    /// Records the connection over which an incarnation was found, and the last sequence of an
    /// offer.
    fn mark_connected(&mut self, connection: u64, last: u64) {
        let before = self.connection.replace(connection);
        if before.is_some_and(|before| before != connection) {
            self.doubtful_up_to = last;
        }
    }

    /// The incarnation with these streams. `before` are the sequences that were known when the
    /// streams were requested.
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
            tracing::warn!("the server lost the end of a stream and reuses its sequences");
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
    /// The incarnation that was found over the current connection, without waiting.
    pub(super) fn known_incarnation(&self) -> Option<Incarnation> {
        let connection = self.connection().ok()?;
        let last_check = self.incarnation.last_check.borrow();
        let standing = last_check.as_ref().filter(|s| s.connection == connection)?;
        standing.found.as_ref().ok().copied()
    }

    /// The current incarnation, checked over the current connection.
    pub(super) async fn current_incarnation(&self) -> Result<Incarnation, NatsError> {
        match self.known_incarnation() {
            Some(incarnation) => Ok(incarnation),
            None => self.check_incarnation().await,
        }
    }

    /// Checks the streams now.
    pub(super) async fn check_incarnation(&self) -> Result<Incarnation, NatsError> {
        let connection = self.connection()?;
        let before = {
            let seen = self.incarnation.observed();
            (seen.work, seen.reports)
        };
        let streams = [&self.names.work, &self.names.reports];
        let requests =
            streams.map(|name| api_request(&format!("STREAM.INFO.{name}"), &serde_json::json!({})));
        let answers = self.replies.request_all(&self.inner, requests.into(), ANSWER_TIMEOUT).await;
        let answered = answers.iter().any(|a| !matches!(a, Err(NatsError::Unreachable(_))));
        if answered {
            self.incarnation.mark_answered();
        }
        let mut infos = answers.into_iter().map(|a| parse_api::<StreamInfo>(&a?.payload)?.led());
        let mut next = || infos.next().unwrap_or(Err(NatsError::Unreachable("no response".into())));
        let mut offers = None;
        let found = match (next(), next()) {
            (Ok(work), Ok(reports)) => {
                let mut seen = self.incarnation.observed();
                seen.mark_connected(connection, work.state.last_seq);
                let found = seen.identify(&work, &reports, before);
                offers = Some(OfferStream::new(found, &work.state));
                Ok(found)
            }
            (Err(fault), _) | (_, Err(fault)) => Err(fault),
        };
        let check = IncarnationCheck { connection, found: found.clone() };
        self.incarnation.last_check.send_replace(Some(check));
        // Pulls that this wakes know the incarnation already.
        if let Some(offers) = offers {
            self.incarnation.set_offers(offers);
        }
        found
    }

    /// Waits until the incarnation is known over the current connection.
    pub(super) async fn wait_for_incarnation(&self) -> Incarnation {
        let mut last_check = self.incarnation.last_check.subscribe();
        loop {
            if let Some(incarnation) = self.known_incarnation() {
                return incarnation;
            }
            // The sender lives as long as this client.
            let _changed = last_check.changed().await;
        }
    }
}

/// Checks the streams periodically, and at once over each new connection. Leaves a server that does
/// not answer although it is connected: it may be cut off from its cluster.
pub(super) async fn watch_incarnation(client: Arc<NatsClient>) {
    let mut contact = client.connection_status();
    let mut again = RETRY_PAUSE;
    let mut unanswered = UnansweredTime::default();
    loop {
        let found = match client.connection() {
            Ok(connection) => {
                let found = client.check_incarnation().await;
                let is_answer = found.as_ref().map_or_else(is_answer, |_| true);
                if unanswered.is_exceeded(connection, is_answer, Instant::now()) {
                    client.try_another_server().await;
                }
                found.is_ok()
            }
            Err(_) => false,
        };
        let next = if found { next_time(CHECK_INTERVAL) } else { Instant::now() + again };
        again = if found { RETRY_PAUSE } else { CHECK_INTERVAL.min(again * 2) };
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            _ = contact.changed() => again = RETRY_PAUSE,
        }
    }
}

/// Whether a server with a working JetStream answered, though with an error.
fn is_answer(fault: &NatsError) -> bool {
    match fault {
        NatsError::Api(error) => error.code != 503,
        NatsError::Denied(_) => true,
        NatsError::Unreachable(_) | NatsError::NoResponders(_) => false,
    }
}

/// How long a connected server has not answered.
#[derive(Debug)]
struct UnansweredTime {
    since: Option<(u64, Instant)>,
    limit: Duration,
}

impl Default for UnansweredTime {
    fn default() -> Self {
        Self { since: None, limit: UNANSWERED_FOR }
    }
}

impl UnansweredTime {
    /// Records the outcome of a check over a connection. Returns whether the server has not answered
    /// for so long that another one should be tried.
    fn is_exceeded(&mut self, connection: u64, is_answer: bool, now: Instant) -> bool {
        if is_answer {
            *self = Self::default();
            return false;
        }
        let since = match self.since {
            Some((of, since)) if of == connection => since,
            _ => now,
        };
        self.since = Some((connection, since));
        if now.duration_since(since) < self.limit {
            return false;
        }
        self.since = None;
        self.limit = (self.limit * 2).min(MAX_UNANSWERED_FOR);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream_info(created: &str, last_seq: u64) -> StreamInfo {
        let state = StreamState { last_seq, ..StreamState::default() };
        StreamInfo { created: created.to_owned(), state, cluster: None }
    }

    #[test]
    fn sequence_before_reconnect_is_doubtful() {
        let incarnation = IncarnationTracker::default();
        incarnation.observed().mark_connected(1, 7);
        assert!(!incarnation.may_be_redelivered(7), "the connection was never lost");
        incarnation.observed().mark_connected(1, 9);
        assert!(!incarnation.may_be_redelivered(7));
        incarnation.observed().mark_connected(2, 9);
        assert!(incarnation.may_be_redelivered(9) && !incarnation.may_be_redelivered(10));
    }

    #[test]
    fn information_of_server_without_leader_is_no_answer() {
        let parse = |cluster: &str| {
            let text = format!(r#"{{"created": "a", "state": {{"last_seq": 1}}{cluster}}}"#);
            serde_json::from_str::<StreamInfo>(&text).expect("an answer").led()
        };
        assert!(parse("").is_ok(), "not a cluster");
        assert!(parse(r#", "cluster": {"name": "c", "leader": "n1"}"#).is_ok());
        let lost = parse(r#", "cluster": {"name": "c"}"#).expect_err("no leader");
        assert!(!is_answer(&lost), "{lost}");
    }

    #[test]
    fn stream_of_offers_tells_its_changes_only() {
        let read = |incarnation, text: &str| {
            let state: StreamState = serde_json::from_str(text).expect("a state");
            OfferStream::new(Incarnation(incarnation), &state)
        };
        let incarnation = IncarnationTracker::default();
        let mut offers = incarnation.offers();
        let mut is_told = |found| {
            incarnation.set_offers(found);
            let is_changed = offers.has_changed().expect("a sender");
            assert_eq!(*offers.borrow_and_update(), found);
            is_changed
        };
        let idle = read(1, r#"{"messages": 0, "bytes": 0, "last_seq": 7, "consumer_count": 2}"#);
        assert_eq!((idle.consumers, idle.has_offers), (2, false));
        assert!(is_told(idle) && !is_told(idle));
        assert!(is_told(read(1, r#"{"messages": 1, "last_seq": 8, "consumer_count": 2}"#)));
        assert!(is_told(read(1, r#"{"messages": 1, "last_seq": 8, "consumer_count": 3}"#)));
        assert!(!is_told(read(1, r#"{"messages": 4, "last_seq": 11, "consumer_count": 3}"#)));
        assert!(is_told(read(2, r#"{"messages": 4, "last_seq": 11, "consumer_count": 3}"#)));
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_does_not_answer_is_left_after_a_while() {
        let mut unanswered = UnansweredTime::default();
        let begin = Instant::now();
        let second = |seconds: u64| begin + Duration::from_secs(seconds);
        assert!(!unanswered.is_exceeded(1, false, second(0)));
        assert!(!unanswered.is_exceeded(1, true, second(8)));
        assert!(!unanswered.is_exceeded(1, false, second(11)), "it answered meanwhile");
        assert!(unanswered.is_exceeded(1, false, second(21)));
        assert!(!unanswered.is_exceeded(2, false, second(22)), "another server");
        assert!(!unanswered.is_exceeded(2, false, second(41)), "the time doubles");
        assert!(unanswered.is_exceeded(2, false, second(42)));
    }

    #[test]
    fn incarnation_changes_after_stream_loss_or_recreation() {
        let incarnation = IncarnationTracker::default();
        let judge = |work: &StreamInfo, reports: &StreamInfo| {
            let mut seen = incarnation.observed();
            let before = (seen.work, seen.reports);
            seen.identify(work, reports, before)
        };
        let first = judge(&stream_info("a", 5), &stream_info("b", 7));
        incarnation.observe_offer(9);
        incarnation.observe_report(8);
        assert_eq!(judge(&stream_info("a", 9), &stream_info("b", 20)), first);
        let lost = judge(&stream_info("a", 9), &stream_info("b", 6));
        assert_ne!(lost, first, "reports went back below what was acknowledged");
        assert_eq!(judge(&stream_info("a", 10), &stream_info("b", 6)), lost);
        let lost_work = judge(&stream_info("a", 8), &stream_info("b", 6));
        assert_ne!(lost_work, lost, "offers too");
        assert_ne!(judge(&stream_info("c", 0), &stream_info("b", 6)), lost_work, "recreated");
        let other = IncarnationTracker::default().observed().identify(
            &stream_info("a", 1),
            &stream_info("b", 1),
            (0, 0),
        );
        assert_eq!(other, first, "a tracker that has seen no loss agrees");
    }
}
