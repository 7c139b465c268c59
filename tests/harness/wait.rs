//! Waiting for conditions.

use std::time::{Duration, Instant};

/// Within which anything happens that happens at all, also on a machine with two processors and
/// thirty programs that want them. A test that fails waits so long; none that passes does.
pub const LONG_DEADLINE: Duration = Duration::from_secs(120);

/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Time between two questions to a server.
const ASYNC_PAUSE: Duration = Duration::from_millis(20);

/// Polls `condition` until it holds.
///
/// # Panics
/// When it does not hold within `deadline`; `what` says what was waited for.
#[track_caller]
pub fn until(deadline: Duration, what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(deadline, condition), "not within {deadline:?}: {what}");
}

/// Polls a condition that is asked of a server until it holds.
///
/// # Panics
/// When it does not hold within `deadline`; `what` says what was waited for.
pub async fn until_async(deadline: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < deadline, "not within {deadline:?}: {what}");
        tokio::time::sleep(ASYNC_PAUSE).await;
    }
}

/// Polls `condition` until it holds or `deadline` has passed; says whether it held.
#[expect(clippy::disallowed_methods, reason = "this is the loop with the deadline")]
pub fn holds_within(deadline: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if start.elapsed() > deadline {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_is_polled_until_deadline() {
        let mut looks = 0;
        until(Duration::from_secs(10), "three looks", || {
            looks += 1;
            looks == 3
        });
        assert!(!holds_within(Duration::from_millis(1), || false));
    }
}
