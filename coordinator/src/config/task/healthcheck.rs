//! Healthchecks of environments and steps.

use rollout_protocol::spec::task::Healthcheck;

use super::super::elements::timeouts::MAX_TIMEOUT_SEC;
use super::super::reader::Field;

keys! {
    /// The keys of a healthcheck.
    pub(crate) table HealthcheckKeys {
        command: Value("text"), "required", "Command that exits with 0 when the environment is ready.";
        interval_sec: Value("seconds"), "5", "Interval between checks.";
        timeout_sec: Value("seconds"), "30", "Time limit of a check.";
        start_period_sec: Value("seconds"), "0", "Time in which failures do not count.";
        start_interval_sec: Value("seconds"), "5",
            "Interval between checks during `start_period_sec`.";
        retries: Value("integer"), "3", "Consecutive failures after which the environment is unhealthy; 0 means 1.";
    }
}

/// Largest number of consecutive failures: longer than any useful wait.
const MAX_RETRIES: u64 = 1_000_000;

/// Reads a healthcheck; `None` if the table is absent or has no command.
pub(super) fn read(field: &Field<'_>) -> Option<Healthcheck> {
    let mut fields = field.mapping()?;
    let command = fields.take(HealthcheckKeys::command);
    command.required("a command that ends with code 0 when the environment is ready");
    let mut seconds = |key, default: f64, least: f64| {
        let expected = if least > 0.0 { "seconds above 0" } else { "seconds, 0 or more" };
        let value = fields.take(key).number(expected, |v| (least..=MAX_TIMEOUT_SEC).contains(&v));
        value.unwrap_or(default)
    };
    let interval_sec = seconds(HealthcheckKeys::interval_sec, 5.0, 0.0);
    let timeout_sec = seconds(HealthcheckKeys::timeout_sec, 30.0, f64::MIN_POSITIVE);
    let start_period_sec = seconds(HealthcheckKeys::start_period_sec, 0.0, 0.0);
    let start_interval_sec = seconds(HealthcheckKeys::start_interval_sec, 5.0, 0.0);
    let retries = fields.take(HealthcheckKeys::retries).integer(&(0..=MAX_RETRIES));
    fields.finish();
    Some(Healthcheck {
        command: command.non_empty_string()?,
        interval_sec,
        timeout_sec,
        start_period_sec,
        start_interval_sec,
        retries: retries.and_then(|n| u32::try_from(n).ok()).unwrap_or(3),
    })
}
