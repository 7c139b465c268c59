//! Which life of the server this is, and for how long it was seen alive.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rollout_protocol::digest::Digest;
use rollout_protocol::wire::position::Incarnation;
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::Instant;

use super::fault::Fault;
use super::link::{Link, PATIENCE, api_request, parse_api};

/// How often the streams are looked at: a stream that was made anew behind a living connection is
/// noticed within this.
const CHECK: Duration = Duration::from_secs(2);
/// First wait after a look in vain.
const AGAIN: Duration = Duration::from_millis(100);
/// An answer vouches for so much time after it.
const VOUCHED: Duration = Duration::from_secs(3);

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
struct Standing {
    connection: u64,
    found: Result<Incarnation, Fault>,
}

/// What is known of the server's life.
#[derive(Debug)]
pub(super) struct Life {
    standing: watch::Sender<Option<Standing>>,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
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

impl Default for Life {
    fn default() -> Self {
        let seen = Seen {
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

impl Life {
    /// The stream of offers has this sequence.
    pub(super) fn saw_work(&self, sequence: u64) {
        let mut seen = self.seen();
        seen.work = seen.work.max(sequence);
    }

    /// The stream of reports has this sequence.
    pub(super) fn saw_report(&self, sequence: u64) {
        let mut seen = self.seen();
        seen.reports = seen.reports.max(sequence);
    }

    /// Whether an offer may have been delivered before, whatever the server says.
    pub(super) fn is_doubtful(&self, sequence: u64) -> bool {
        sequence <= self.seen().doubtful
    }

    /// A clock that stands still while the server does not answer.
    pub(super) fn online(&self) -> Duration {
        let seen = self.seen();
        seen.online + seen.answered.elapsed().min(VOUCHED)
    }

    fn heard(&self) {
        let mut seen = self.seen();
        let more = seen.answered.elapsed().min(VOUCHED);
        seen.online += more;
        seen.answered = Instant::now();
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seen {
    /// A life was found over this connection, and the stream of offers so far.
    fn connected(&mut self, connection: u64, last: u64) {
        let before = self.connection.replace(connection);
        if before.is_some_and(|before| before != connection) {
            self.doubtful = last;
        }
    }

    /// The life with these streams. `before` are the sequences that were known when they were asked
    /// for.
    fn judge(
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

impl Link {
    /// The life that was found over the present connection, without waiting.
    pub(super) fn known_life(&self) -> Option<Incarnation> {
        let connection = self.connection().ok()?;
        let standing = self.life.standing.borrow();
        let standing = standing.as_ref().filter(|s| s.connection == connection)?;
        standing.found.as_ref().ok().copied()
    }

    /// The present life, found over the present connection.
    pub(super) async fn present_life(&self) -> Result<Incarnation, Fault> {
        match self.known_life() {
            Some(life) => Ok(life),
            None => self.check_life().await,
        }
    }

    /// Looks at the streams now.
    pub(super) async fn check_life(&self) -> Result<Incarnation, Fault> {
        let connection = self.connection()?;
        let before = {
            let seen = self.life.seen();
            (seen.work, seen.reports)
        };
        let streams = [&self.names.work, &self.names.reports];
        let requests =
            streams.map(|name| api_request(&format!("STREAM.INFO.{name}"), &serde_json::json!({})));
        let answers = self.replies.ask(&self.client, requests.into(), PATIENCE).await;
        let answered = answers.iter().any(|a| !matches!(a, Err(Fault::Unreachable(_))));
        if answered {
            self.life.heard();
        }
        let mut infos = answers.into_iter().map(|a| parse_api::<StreamInfo>(&a?.payload));
        let mut next = || infos.next().unwrap_or(Err(Fault::Unreachable("no answer".into())));
        let found = match (next(), next()) {
            (Ok(work), Ok(reports)) => {
                let mut seen = self.life.seen();
                seen.connected(connection, work.state.last_seq);
                Ok(seen.judge(&work, &reports, before))
            }
            (Err(fault), _) | (_, Err(fault)) => Err(fault),
        };
        let standing = Standing { connection, found: found.clone() };
        self.life.standing.send_replace(Some(standing));
        found
    }

    /// Waits until the life of the present connection is known.
    pub(super) async fn wait_for_life(&self) -> Incarnation {
        let mut standing = self.life.standing.subscribe();
        loop {
            if let Some(life) = self.known_life() {
                return life;
            }
            // The sender is in this link.
            let _changed = standing.changed().await;
        }
    }
}

/// Looks at the streams again and again, and at once over each new connection.
pub(super) async fn keep(link: Arc<Link>) {
    let mut contact = link.contact();
    let mut again = AGAIN;
    loop {
        let found = if link.connection().is_ok() { link.check_life().await.is_ok() } else { false };
        let pause = if found { CHECK } else { again };
        again = if found { AGAIN } else { CHECK.min(again * 2) };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = contact.changed() => again = AGAIN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(created: &str, last_seq: u64) -> StreamInfo {
        let state = StreamState { last_seq, ..StreamState::default() };
        StreamInfo { created: created.to_owned(), state }
    }

    #[test]
    fn what_was_there_before_a_new_connection_is_doubtful() {
        let life = Life::default();
        life.seen().connected(1, 7);
        assert!(!life.is_doubtful(7), "nobody was cut off");
        life.seen().connected(1, 9);
        assert!(!life.is_doubtful(7));
        life.seen().connected(2, 9);
        assert!(life.is_doubtful(9) && !life.is_doubtful(10));
    }

    #[test]
    fn a_life_is_creation_times_and_sequences_that_only_grow() {
        let life = Life::default();
        let judge = |work: &StreamInfo, reports: &StreamInfo| {
            let mut seen = life.seen();
            let before = (seen.work, seen.reports);
            seen.judge(work, reports, before)
        };
        let first = judge(&info("a", 5), &info("b", 7));
        life.saw_work(9);
        life.saw_report(8);
        assert_eq!(judge(&info("a", 9), &info("b", 20)), first);
        let lost = judge(&info("a", 9), &info("b", 6));
        assert_ne!(lost, first, "reports went back below what was acknowledged");
        assert_eq!(judge(&info("a", 10), &info("b", 6)), lost);
        let lost_work = judge(&info("a", 8), &info("b", 6));
        assert_ne!(lost_work, lost, "offers too");
        assert_ne!(judge(&info("c", 0), &info("b", 6)), lost_work, "made anew");
        let other = Life::default().seen().judge(&info("a", 1), &info("b", 1), (0, 0));
        assert_eq!(other, first, "whoever has seen no loss agrees");
    }
}
