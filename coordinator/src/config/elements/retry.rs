//! `retry`: retry of infrastructure failures.

use rollout_protocol::limits::TRIES_PER_ITEM;
use rollout_protocol::retry::RetryPolicy;

use super::super::diagnostics::ErrorKind;
use super::super::reader::{Field, Fields};

keys! {
    /// The keys of `retry` in job files.
    pub(crate) table RetryKeys {
        max_attempts: Value("integer"), "3", "Tries per trial, including the first; at most 20.";
        initial_delay_ms: Value("integer"), "1000", "Delay before the second try, ms.";
        max_delay_ms: Value("integer"), "30000", "Longest delay between tries, ms.";
        multiplier: Value("number"), "2.0", "Factor from one delay to the next.", "" => ParkKeys::ALL;
    }

    /// The keys of `retry` in every file.
    pub(crate) table ParkKeys {
        max_park_sec: Value("integer"), "900",
            "Longest wait for an unavailable engine, registry or store, s; 0 disables waiting.";
    }
}

/// Longest delay between two attempts, milliseconds: a day.
const MAX_DELAY_MS: u64 = 24 * 3600 * 1000;

/// Longest wait for an unavailable service, seconds: a week.
const MAX_PARK_SEC: u64 = 7 * 24 * 3600;

/// Reads the policy, with defaults for absent keys.
pub(crate) fn read(field: &Field<'_>) -> RetryPolicy {
    let default = RetryPolicy::default();
    let Some(mut fields) = field.mapping() else { return default };
    let delay = 0..=MAX_DELAY_MS;
    let max_attempts =
        fields.take(RetryKeys::max_attempts).integer(&(1..=u64::from(TRIES_PER_ITEM)));
    let initial_delay_ms = fields.take(RetryKeys::initial_delay_ms).integer(&delay);
    let max_delay = fields.take(RetryKeys::max_delay_ms);
    let initial_delay_ms = initial_delay_ms.unwrap_or(default.initial_delay_ms);
    let policy = RetryPolicy {
        max_attempts: max_attempts
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(default.max_attempts),
        initial_delay_ms,
        max_delay_ms: max_delay
            .integer(&delay)
            .unwrap_or(default.max_delay_ms.max(initial_delay_ms)),
        multiplier: fields
            .take(RetryKeys::multiplier)
            .number("a number from 1 to 1000", |v| (1.0..=1000.0).contains(&v))
            .unwrap_or(default.multiplier),
        max_park_sec: max_park_sec(&mut fields),
    };
    if policy.max_delay_ms < policy.initial_delay_ms {
        let found = format!("a cap of {} ms", policy.max_delay_ms);
        let expected = format!("at least initial_delay_ms, {} ms", policy.initial_delay_ms);
        max_delay.reject(ErrorKind::Conflict, found, expected);
    }
    fields.finish();
    policy
}

/// Reads the longest wait for an unavailable service, seconds.
pub(crate) fn max_park_sec(fields: &mut Fields<'_>) -> u32 {
    let sec = fields.take(ParkKeys::max_park_sec).integer(&(0..=MAX_PARK_SEC));
    let sec = sec.and_then(|sec| u32::try_from(sec).ok());
    sec.unwrap_or_else(|| RetryPolicy::default().max_park_sec)
}

#[cfg(test)]
mod tests {
    use super::super::testing::read_field;
    use super::*;

    #[test]
    fn retry_policy_missing_keys_use_defaults() {
        let (policy, faults, _) = read_field("{max_attempts: 1, multiplier: 3}", read);
        assert_eq!(faults, []);
        assert_eq!(
            policy,
            RetryPolicy { max_attempts: 1, multiplier: 3.0, ..RetryPolicy::default() }
        );
        assert_eq!(read_field("~", read).0, RetryPolicy::default());
    }

    #[test]
    fn retry_policy_errors_are_all_reported() {
        let text = "{max_attempts: 0, initial_delay_ms: 50, max_delay_ms: 5, multiplier: 0.5, max_park_sec: -1, max_retries: 2}";
        let faults = read_field(text, read).1;
        assert_eq!(
            faults,
            [
                ("x.max_attempts".to_owned(), ErrorKind::BadValue),
                ("x.multiplier".to_owned(), ErrorKind::BadValue),
                ("x.max_park_sec".to_owned(), ErrorKind::BadValue),
                ("x.max_delay_ms".to_owned(), ErrorKind::Conflict),
                ("x.max_retries".to_owned(), ErrorKind::UnknownKey),
            ]
        );
    }
}
