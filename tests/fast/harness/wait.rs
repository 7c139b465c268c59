//! Conditions are polled until a deadline.

use std::time::Duration;

use rollout_tests::wait::{holds_within, pause_after, until};

#[test]
fn condition_is_polled_until_deadline() {
    let mut checks = 0;
    until(Duration::from_secs(10), "three checks", || {
        checks += 1;
        checks == 3
    });
    assert!(!holds_within(Duration::from_millis(1), || false));
}

#[test]
fn pause_grows_to_its_bound() {
    let pauses = [0, 100, 1000, 2000, 60_000].map(Duration::from_millis).map(pause_after);
    assert_eq!(pauses, [10, 10, 50, 100, 100].map(Duration::from_millis));
}
