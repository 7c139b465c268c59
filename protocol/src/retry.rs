//! The retry policy and its delay rule, without a clock or randomness.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::limits;

/// When and how often infrastructure failures are retried.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// Maximum number of tries, the first one included: 1 means no retry.
    pub max_attempts: u32,
    /// Longest delay before the second try, milliseconds.
    pub initial_delay_ms: u64,
    /// Cap of every delay, milliseconds.
    pub max_delay_ms: u64,
    /// Growth factor of the longest delay from try to try.
    pub multiplier: f64,
    /// Longest time that an execution waits for a service that does not answer, seconds.
    #[serde(default = "max_park_sec")]
    pub max_park_sec: u32,
}

const fn max_park_sec() -> u32 {
    limits::MAX_PARK.as_secs() as u32
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            initial_delay_ms: 1000,
            max_delay_ms: 30_000,
            multiplier: 2.0,
            max_park_sec: max_park_sec(),
        }
    }
}

impl RetryPolicy {
    /// The delay before the next try after `failed` tries (1 or more), or `None` when the policy is
    /// used up. Full jitter: `random` is uniform in [0, 1).
    pub fn delay(&self, failed: u32, random: f64) -> Option<Duration> {
        if failed == 0 || failed >= self.max_attempts {
            return None;
        }
        let exponent = i32::try_from(failed - 1).unwrap_or(i32::MAX);
        let grown = self.initial_delay_ms as f64 * self.multiplier.powi(exponent);
        let longest = grown.min(self.max_delay_ms as f64);
        Some(Duration::from_micros((longest * random.clamp(0.0, 1.0) * 1000.0) as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn retry_delay_doubles_up_to_max_delay() {
        let policy = RetryPolicy { max_attempts: 9, ..RetryPolicy::default() };
        let bounds: Vec<u128> =
            (1..9).map(|n| policy.delay(n, 1.0).expect("within policy").as_millis()).collect();
        assert_eq!(bounds, [1000, 2000, 4000, 8000, 16_000, 30_000, 30_000, 30_000]);
        assert_eq!(policy.delay(9, 0.5), None);
    }

    #[test]
    fn retry_with_max_attempts_one_is_never_due() {
        let policy = RetryPolicy { max_attempts: 1, ..RetryPolicy::default() };
        assert_eq!(policy.delay(1, 0.0), None);
    }

    proptest! {
        #[test]
        fn retry_delay_stays_within_max(n in 1u32..1000, r in 0.0f64..1.0, m in 1.0f64..10.0) {
            let policy = RetryPolicy { max_attempts: u32::MAX, multiplier: m, ..RetryPolicy::default() };
            let delay = policy.delay(n, r).expect("unlimited");
            prop_assert!(delay <= Duration::from_millis(policy.max_delay_ms));
        }
    }
}
