//! Conditions are polled until a deadline.

use std::time::Duration;

use rollout_tests::wait::{holds_within, until};

#[test]
fn condition_is_polled_until_deadline() {
    let mut checks = 0;
    until(Duration::from_secs(10), "three checks", || {
        checks += 1;
        checks == 3
    });
    assert!(!holds_within(Duration::from_millis(1), || false));
}
