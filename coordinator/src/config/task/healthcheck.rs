//! Healthchecks of environments and steps.

use rollout_protocol::spec::task::Healthcheck;

use super::super::elements::timeouts::LONGEST_SEC;
use super::super::fields::Field;

/// Failures in a row that a check may have: far more than anybody waits for.
const MOST_RETRIES: u64 = 1_000_000;

/// A check; nothing when the table is absent or has no command.
pub(super) fn read(field: &Field<'_>) -> Option<Healthcheck> {
    let mut fields = field.mapping()?;
    let command = fields.take("command");
    command.required("a command that ends with code 0 when the environment is ready");
    let mut seconds = |key, default: f64, least: f64| {
        let expected = if least > 0.0 { "seconds above 0" } else { "seconds, 0 or more" };
        let value = fields.take(key).number(expected, |v| (least..=LONGEST_SEC).contains(&v));
        value.unwrap_or(default)
    };
    let interval_sec = seconds("interval_sec", 5.0, 0.0);
    let timeout_sec = seconds("timeout_sec", 30.0, f64::MIN_POSITIVE);
    let start_period_sec = seconds("start_period_sec", 0.0, 0.0);
    let start_interval_sec = seconds("start_interval_sec", 5.0, 0.0);
    let retries = fields.take("retries").integer(&(1..=MOST_RETRIES));
    fields.finish();
    Some(Healthcheck {
        command: command.name()?,
        interval_sec,
        timeout_sec,
        start_period_sec,
        start_interval_sec,
        retries: retries.and_then(|n| u32::try_from(n).ok()).unwrap_or(3),
    })
}
