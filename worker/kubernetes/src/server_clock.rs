//! The clock of the API server, which dates its answers. Leases of pods are written and compared on
//! this clock, because the clocks of two hosts may differ by hours.

use std::time::{Duration, SystemTime};

use kube::Client;
use kube::api::GetParams;
use kube::client::Body;
use kube::core::Request;
use rollout_protocol::Timestamp;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

/// Age of a reading after which the clock is read again: clocks are set.
const READ_EVERY: Duration = Duration::from_secs(300);

/// Pause after a reading that failed.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// Timeout of a reading. It delays the creation of a pod.
const READ_WITHIN: Duration = Duration::from_secs(5);

/// Readings of the clock.
#[derive(Debug, Default)]
pub(super) struct ServerClock {
    readings: Mutex<ClockReadings>,
}

#[derive(Debug, Default)]
struct ClockReadings {
    /// The time that the clock showed, and when.
    last: Option<(SystemTime, Instant)>,
    next_due: Option<Instant>,
}

impl ServerClock {
    /// The time on the clock; `None` before the server tells it.
    pub(super) async fn now(&self, client: &Client) -> Option<SystemTime> {
        let mut readings = self.readings.lock().await;
        if readings.next_due.is_none_or(|due| due <= Instant::now()) {
            let shown = timeout(READ_WITHIN, read(client)).await.ok().flatten();
            let now = Instant::now();
            let pause = if shown.is_some() { READ_EVERY } else { RETRY_AFTER };
            readings.next_due = Some(now + pause);
            readings.last = shown.map(|shown| (shown, now)).or(readings.last);
        }
        readings.last.map(|(shown, read)| shown + read.elapsed())
    }
}

/// The date of an answer, which may be a refusal.
async fn read(client: &Client) -> Option<SystemTime> {
    let request = Request::new("").get("version", &GetParams::default()).ok()?;
    let answer = client.send(request.map(Body::from)).await.ok()?;
    parse_date(answer.headers().get("date")?.to_str().ok()?)
}

fn parse_date(date: &str) -> Option<SystemTime> {
    let date = format!("{} +0000", date.strip_suffix(" GMT")?);
    Timestamp::strptime("%a, %d %b %Y %H:%M:%S %z", date).ok().map(SystemTime::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_of_answer_is_read() {
        let expected = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        assert_eq!(parse_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(expected));
        for other in ["", "Sun, 06 Nov 1994 08:49:37", "now GMT", "784111777"] {
            assert_eq!(parse_date(other), None, "{other}");
        }
    }
}
