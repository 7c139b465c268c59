//! Polling of conditions up to a deadline.

use std::time::{Duration, Instant};

/// Deadline for anything that must happen, generous enough for two processors shared by thirty
/// programs. Only failing tests wait this long.
pub const LONG_DEADLINE: Duration = Duration::from_secs(120);

/// Deadline for the end of a run, a search or a stack of containers: one that hangs. Machines differ, and
/// three runs in containers at once take minutes on a slow one.
pub const RUN_DEADLINE: Duration = Duration::from_mins(10);

/// Time between the first checks.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Longest time between two checks. Many conditions read a whole output, `/proc` or a list of
/// containers.
const LAST_PAUSE: Duration = Duration::from_millis(100);

/// Time between two requests to a server.
const ASYNC_PAUSE: Duration = Duration::from_millis(20);

/// Polls `condition` until it holds.
///
/// # Panics
/// When it does not hold within `deadline`; `what` names the condition.
#[track_caller]
pub fn until(deadline: Duration, what: &str, condition: impl FnMut() -> bool) {
    assert!(holds_within(deadline, condition), "not within {deadline:?}: {what}");
}

/// Polls an asynchronous condition, such as a query to a server, until it holds.
///
/// # Panics
/// When it does not hold within `deadline`; `what` names the condition.
pub async fn until_async(deadline: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < deadline, "not within {deadline:?}: {what}");
        tokio::time::sleep(ASYNC_PAUSE).await;
    }
}

/// Polls `condition` until it holds or `deadline` has passed. Returns whether it held.
#[expect(clippy::disallowed_methods, reason = "this is the loop with the deadline")]
pub fn holds_within(deadline: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if condition() {
            return true;
        }
        let waited = start.elapsed();
        if waited > deadline {
            return false;
        }
        std::thread::sleep(pause_after(waited).min(deadline - waited + FIRST_PAUSE));
    }
}

/// Time until the next check: a condition is noticed at most a twentieth later than it could be.
pub fn pause_after(waited: Duration) -> Duration {
    (waited / 20).clamp(FIRST_PAUSE, LAST_PAUSE)
}
