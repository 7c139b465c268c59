//! Health checks: the probe that decides when a service has started.

use std::time::Duration;

use serde_json::Value;

use super::model::HealthCheck;
use super::table::{Table, scalar};
use super::units;

/// Values of Docker for keys that are absent.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(30);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
const DEFAULT_RETRIES: u32 = 3;

/// Reads a health check; `None` if it is disabled.
pub(super) fn read(mut table: Table<'_>) -> Option<HealthCheck> {
    let disabled = table.flag("disable");
    let at = table.at("test");
    let test = table.take("test");
    let duration =
        |table: &mut Table<'_>, key| table.parsed(key, units::duration, "a duration such as `30s`");
    let interval = duration(&mut table, "interval").unwrap_or(DEFAULT_INTERVAL);
    let timeout = duration(&mut table, "timeout").unwrap_or(DEFAULT_TIMEOUT);
    let start_period = duration(&mut table, "start_period").unwrap_or_default();
    let retries = |value: &Value| scalar(value)?.parse().ok();
    let retries = table.parsed("retries", retries, "a number of attempts");
    // A probe of Kubernetes has one interval.
    table.ignore(&["start_interval"]);
    let problems = table.problems;
    table.finish(|_| "a probe of Kubernetes has nothing like it");
    if disabled {
        return None;
    }
    let Some((_, test)) = test else {
        problems.unsupported(&at, "Kubernetes does not run the health check of an image");
        return None;
    };
    let command = match command(&test) {
        Some(command) => command?,
        None => {
            problems.invalid(&at, "it is neither a text nor a list of CMD, CMD-SHELL or NONE");
            return None;
        }
    };
    let retries = retries.filter(|retries| *retries > 0).unwrap_or(DEFAULT_RETRIES);
    Some(HealthCheck { command, interval, timeout, start_period, retries })
}

/// The command of a test. The outer `None` stands for a wrong test, the inner one for no test.
fn command(test: &Value) -> Option<Option<Vec<String>>> {
    let shell = |script: String| Some(Some(["/bin/sh".into(), "-c".into(), script].to_vec()));
    let items = match test {
        Value::String(script) => return shell(script.clone()),
        Value::Array(items) => items.iter().map(scalar).collect::<Option<Vec<_>>>()?,
        _ => return None,
    };
    match (items.first()?.as_str(), items.get(1..)?) {
        ("NONE", []) => Some(None),
        ("CMD", words @ [_, ..]) => Some(Some(words.to_vec())),
        ("CMD-SHELL", [script]) => shell(script.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn health_check_command_has_every_form() {
        let words = |words: &[&str]| Some(Some(words.iter().map(|&w| w.to_owned()).collect()));
        assert_eq!(command(&json!("a b")), words(&["/bin/sh", "-c", "a b"]));
        assert_eq!(command(&json!(["CMD-SHELL", "a b"])), words(&["/bin/sh", "-c", "a b"]));
        assert_eq!(command(&json!(["CMD", "a", "b"])), words(&["a", "b"]));
        assert_eq!(command(&json!(["NONE"])), Some(None));
        for wrong in [json!(["CMD"]), json!(["a"]), json!([]), json!(5)] {
            assert_eq!(command(&wrong), None, "{wrong}");
        }
    }
}
