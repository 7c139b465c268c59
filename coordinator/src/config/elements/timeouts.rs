//! Time limits: set by task files; multiplied, overridden and capped by the job.

use rollout_protocol::spec::task::Healthcheck;
use rollout_protocol::spec::timeout::{Timeouts, verifier_timeout};

use super::super::reader::{Field, Fields};

keys! {
    /// Multipliers of time limits.
    pub(crate) table MultiplierKeys {
        timeout_multiplier: Value("number"), "1.0",
            "Multiplier of every time limit without a multiplier of its own.";
        environment_build_timeout_multiplier: Value("number"), "timeout_multiplier",
            "Multiplier of the time limits of image builds and pulls.";
        agent_setup_timeout_multiplier: Value("number"), "timeout_multiplier",
            "Multiplier of the time limits of install scripts.";
        agent_timeout_multiplier: Value("number"), "timeout_multiplier",
            "Multiplier of the time limits of execute scripts.";
        verifier_timeout_multiplier: Value("number"), "timeout_multiplier",
            "Multiplier of the time limits of test scripts.";
    }
}

/// Longest time limit, seconds: 31 years, so that products stay far from infinity.
pub(crate) const MAX_TIMEOUT_SEC: f64 = 1e9;

/// Longest time between the start of an environment and its first command, seconds.
const MAX_START_GRACE_SEC: f64 = 3600.0;

/// Largest multiplier.
const MAX_MULTIPLIER: f64 = 1e6;

/// Time limits of a task file, defaults filled in, seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TaskTimeouts {
    /// `environment.build_timeout_sec`.
    pub build_sec: f64,
    /// `agent.install_timeout_sec`.
    pub install_sec: f64,
    /// `agent.timeout_sec`; no limit if absent.
    pub agent_sec: Option<f64>,
    /// `verifier.timeout_sec`.
    pub verifier_sec: f64,
}

impl Default for TaskTimeouts {
    fn default() -> Self {
        Self { build_sec: 600.0, install_sec: 300.0, agent_sec: Some(600.0), verifier_sec: 600.0 }
    }
}

/// Changes that a job makes to the time limits of its tasks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeoutRules {
    /// Multiplier of every time limit without a multiplier of its own.
    pub multiplier: f64,
    /// Multiplier of image builds and pulls.
    pub build_multiplier: Option<f64>,
    /// Multiplier of the agents' install scripts.
    pub setup_multiplier: Option<f64>,
    /// Multiplier of the agents' execute scripts.
    pub agent_multiplier: Option<f64>,
    /// Multiplier of test scripts.
    pub verifier_multiplier: Option<f64>,
    /// Replaces the tasks' verifier time limit; zero or less means unset.
    pub verifier_override_sec: Option<f64>,
    /// Ceiling of the verifier's time limit; zero or less means unset.
    pub verifier_max_sec: Option<f64>,
    /// Replaces the tasks' `start_grace_sec`.
    pub start_grace_sec: Option<f64>,
}

impl Default for TimeoutRules {
    fn default() -> Self {
        Self {
            multiplier: 1.0,
            build_multiplier: None,
            setup_multiplier: None,
            agent_multiplier: None,
            verifier_multiplier: None,
            verifier_override_sec: None,
            verifier_max_sec: None,
            start_grace_sec: None,
        }
    }
}

impl TimeoutRules {
    /// The effective time limits of a task.
    pub fn apply(&self, task: &TaskTimeouts) -> Timeouts {
        Timeouts {
            build_sec: self.build(task.build_sec),
            install_sec: self.setup(task.install_sec),
            agent_sec: task.agent_sec.map(|limit| self.agent(limit)),
            verifier_sec: self.verifier(task.verifier_sec),
        }
    }

    /// The effective time limit of an image's build or pull.
    pub fn build(&self, task_sec: f64) -> f64 {
        task_sec * self.build_multiplier.unwrap_or(self.multiplier)
    }

    /// The effective time limit of an install script.
    pub fn setup(&self, task_sec: f64) -> f64 {
        task_sec * self.setup_multiplier.unwrap_or(self.multiplier)
    }

    /// The effective time limit of an execute script, without the agent's own override and ceiling.
    pub fn agent(&self, task_sec: f64) -> f64 {
        task_sec * self.agent_multiplier.unwrap_or(self.multiplier)
    }

    /// Applies the multiplier to a health check: to its time limit and its start period. The
    /// intervals between checks are not time limits.
    pub fn healthcheck(&self, check: &Healthcheck) -> Healthcheck {
        Healthcheck {
            timeout_sec: check.timeout_sec * self.multiplier,
            start_period_sec: check.start_period_sec * self.multiplier,
            ..check.clone()
        }
    }

    /// The effective time limit of a hook that prepares artifacts for collection.
    pub fn hook(&self, task_sec: f64) -> f64 {
        task_sec * self.multiplier
    }

    /// The effective time limit of a test script.
    pub fn verifier(&self, task_sec: f64) -> f64 {
        verifier_timeout(
            task_sec,
            self.verifier_multiplier.unwrap_or(self.multiplier),
            self.verifier_override_sec,
            self.verifier_max_sec,
        )
    }
}

/// Reads the time between the start of an environment and its first command.
pub(crate) fn read_start_grace(field: &Field<'_>) -> Option<f64> {
    field.number("a number of seconds from 0 to 3600", |v| (0.0..=MAX_START_GRACE_SEC).contains(&v))
}

/// Reads a time limit of a task file.
pub(crate) fn read(field: &Field<'_>, default: f64) -> f64 {
    let expected = "a number of seconds above 0, at most 1e9";
    field.number(expected, |v| v > 0.0 && v <= MAX_TIMEOUT_SEC).unwrap_or(default)
}

/// Reads a time limit of a job file; zero or less means unset.
pub(crate) fn read_optional(field: &Field<'_>) -> Option<f64> {
    let expected = "a number of seconds, at most 1e9 (0 means unset)";
    field.number(expected, |v| v <= MAX_TIMEOUT_SEC).filter(|v| *v > 0.0)
}

/// Reads `timeout_multiplier` and the multipliers of specific time limits.
pub(crate) fn read_multipliers(job: &mut Fields<'_>) -> TimeoutRules {
    let expected = "a number above 0, at most 1e6";
    let mut factor = |key| job.take(key).number(expected, |v| v > 0.0 && v <= MAX_MULTIPLIER);
    TimeoutRules {
        multiplier: factor(MultiplierKeys::timeout_multiplier).unwrap_or(1.0),
        build_multiplier: factor(MultiplierKeys::environment_build_timeout_multiplier),
        setup_multiplier: factor(MultiplierKeys::agent_setup_timeout_multiplier),
        agent_multiplier: factor(MultiplierKeys::agent_timeout_multiplier),
        verifier_multiplier: factor(MultiplierKeys::verifier_timeout_multiplier),
        ..TimeoutRules::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::diagnostics::ErrorKind;
    use super::super::testing::read_field;
    use super::*;

    #[test]
    fn timeout_multiplier_scales_every_limit_once() {
        let rules = TimeoutRules {
            multiplier: 2.0,
            verifier_override_sec: Some(50.0),
            verifier_max_sec: Some(40.0),
            ..TimeoutRules::default()
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
    fn timeout_multiplier_scales_healthcheck_but_not_its_intervals() {
        let rules = TimeoutRules { multiplier: 3.0, ..TimeoutRules::default() };
        let check = Healthcheck {
            command: "true".to_owned(),
            interval_sec: 5.0,
            timeout_sec: 30.0,
            start_period_sec: 10.0,
            start_interval_sec: 2.0,
            retries: 4,
        };
        let scaled = rules.healthcheck(&check);
        assert_eq!((scaled.timeout_sec, scaled.start_period_sec), (90.0, 30.0));
        assert_eq!((scaled.interval_sec, scaled.start_interval_sec), (5.0, 2.0));
        assert_eq!((scaled.retries, rules.hook(20.0)), (4, 60.0));
    }

    #[test]
    fn timeout_multiplier_of_phase_replaces_general_one() {
        let rules = TimeoutRules {
            multiplier: 2.0,
            build_multiplier: Some(3.0),
            setup_multiplier: Some(0.5),
            agent_multiplier: Some(10.0),
            verifier_multiplier: Some(1.0),
            ..TimeoutRules::default()
        };
        let limits = rules.apply(&TaskTimeouts::default());
        assert_eq!(
            limits,
            Timeouts {
                build_sec: 1800.0,
                install_sec: 150.0,
                agent_sec: Some(6000.0),
                verifier_sec: 600.0
            }
        );
    }

    #[test]
    fn task_timeout_not_positive_and_finite_is_refused() {
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
    fn job_timeout_of_zero_or_less_is_unset() {
        for (text, expected) in [("0", None), ("-5", None), ("12.5", Some(12.5))] {
            let (value, faults, _) = read_field(text, read_optional);
            assert_eq!((value, faults), (expected, Vec::new()), "{text}");
        }
        assert_eq!(read_field(".nan", read_optional).1.len(), 1);
    }
}
