//! Time limits. Task files give them, the job multiplies, overrides and caps them.

use rollout_protocol::spec::timeout::{Timeouts, verifier_timeout};

use super::super::fields::{Field, Fields};

/// Longest time limit, seconds: 31 years, so that products stay far from infinity.
const LONGEST_SEC: f64 = 1e9;

/// Largest multiplier.
const LARGEST_MULTIPLIER: f64 = 1e6;

/// Time limits as a task file gives them, defaults filled in, seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TaskTimeouts {
    /// `environment.build_timeout_sec`.
    pub build_sec: f64,
    /// `agent.install_timeout_sec`.
    pub install_sec: f64,
    /// `agent.timeout_sec`; no limit when absent.
    pub agent_sec: Option<f64>,
    /// `verifier.timeout_sec`.
    pub verifier_sec: f64,
}

impl Default for TaskTimeouts {
    fn default() -> Self {
        Self { build_sec: 600.0, install_sec: 300.0, agent_sec: Some(600.0), verifier_sec: 600.0 }
    }
}

/// What a job does to the time limits of its tasks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeoutRules {
    /// Factor of every time limit.
    pub multiplier: f64,
    /// Replaces the tasks' verifier time limit; zero and less mean unset.
    pub verifier_override_sec: Option<f64>,
    /// Ceiling of the verifier's time limit; zero and less mean unset.
    pub verifier_max_sec: Option<f64>,
}

impl Default for TimeoutRules {
    fn default() -> Self {
        Self { multiplier: 1.0, verifier_override_sec: None, verifier_max_sec: None }
    }
}

impl TimeoutRules {
    /// The effective time limits of a task.
    pub fn apply(&self, task: &TaskTimeouts) -> Timeouts {
        Timeouts {
            build_sec: task.build_sec * self.multiplier,
            install_sec: task.install_sec * self.multiplier,
            agent_sec: task.agent_sec.map(|limit| limit * self.multiplier),
            verifier_sec: verifier_timeout(
                task.verifier_sec,
                self.multiplier,
                self.verifier_override_sec,
                self.verifier_max_sec,
            ),
        }
    }
}

/// A time limit of a task file.
pub(crate) fn read(field: &Field<'_>, default: f64) -> f64 {
    let expected = "a number of seconds above 0, at most 1e9";
    field.number(expected, |v| v > 0.0 && v <= LONGEST_SEC).unwrap_or(default)
}

/// A time limit of a job file: zero and less mean unset.
pub(crate) fn read_optional(field: &Field<'_>) -> Option<f64> {
    let expected = "a number of seconds, at most 1e9 (0 means unset)";
    field.number(expected, |v| v <= LONGEST_SEC).filter(|v| *v > 0.0)
}

/// `timeout_multiplier`.
pub(crate) fn read_multiplier(job: &mut Fields<'_>) -> f64 {
    let expected = "a number above 0, at most 1e6";
    job.take("timeout_multiplier")
        .number(expected, |v| v > 0.0 && v <= LARGEST_MULTIPLIER)
        .unwrap_or(1.0)
}

#[cfg(test)]
mod tests {
    use super::super::super::problem::ErrorKind;
    use super::super::testing::read_field;
    use super::*;

    #[test]
    fn the_multiplier_reaches_every_limit_once() {
        let rules = TimeoutRules {
            multiplier: 2.0,
            verifier_override_sec: Some(50.0),
            verifier_max_sec: Some(40.0),
        };
        let limits = rules.apply(&TaskTimeouts::default());
        assert_eq!(
            limits,
            Timeouts {
                build_sec: 1200.0,
                install_sec: 600.0,
                agent_sec: Some(1200.0),
                verifier_sec: 80.0
            }
        );
    }

    #[test]
    fn task_limits_are_positive_and_finite() {
        assert!((read_field("0.5", |f| read(f, 600.0)).0 - 0.5).abs() < 1e-9);
        assert!((read_field("~", |f| read(f, 600.0)).0 - 600.0).abs() < 1e-9);
        for bad in ["0", "-1", ".inf", ".nan", "1e10"] {
            let faults = read_field(bad, |f| read(f, 600.0)).1;
            assert_eq!(faults, [("x".to_owned(), ErrorKind::BadValue)], "{bad}");
        }
        let faults = read_field("'60'", |f| read(f, 600.0)).1;
        assert_eq!(faults, [("x".to_owned(), ErrorKind::WrongType)]);
    }

    #[test]
    fn job_limits_of_zero_or_less_are_unset() {
        for (text, expected) in [("0", None), ("-5", None), ("12.5", Some(12.5))] {
            let (value, faults, _) = read_field(text, read_optional);
            assert_eq!((value, faults), (expected, Vec::new()), "{text}");
        }
        assert_eq!(read_field(".nan", read_optional).1.len(), 1);
    }
}
