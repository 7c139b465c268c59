//! Time limits of a trial and the rules that compute them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::spec::task::TaskSpec;

/// Effective time limits, seconds: multiplier, override and ceiling are already applied.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Timeouts {
    /// Image build or pull.
    pub build_sec: f64,
    /// Install script.
    pub install_sec: f64,
    /// Execute script; no limit when absent.
    pub agent_sec: Option<f64>,
    /// Test script.
    pub verifier_sec: f64,
}

impl Timeouts {
    /// The time limits of a task; those of its first step if it has several.
    pub fn for_task(task: &TaskSpec) -> Self {
        let step = task.steps.first();
        Self {
            build_sec: task.environment.build_sec,
            install_sec: task.install_sec,
            agent_sec: step.and_then(|step| step.agent.timeout_sec),
            verifier_sec: step.map_or(0.0, |step| step.verifier.timeout_sec),
        }
    }
}

/// Converts seconds of a spec to a duration; fractions count, nothing is rounded to zero.
pub fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value.max(0.001)).unwrap_or(Duration::MAX)
}

/// The verifier's time limit: the override, else the task's, capped by the ceiling, times the
/// multiplier. Zero, negative and absent mean unset.
pub fn verifier_timeout(
    task: f64,
    multiplier: f64,
    overridden: Option<f64>,
    ceiling: Option<f64>,
) -> f64 {
    let set = |value: Option<f64>| value.filter(|v| *v > 0.0);
    let limit = set(overridden).unwrap_or(task) * multiplier;
    match set(ceiling) {
        Some(ceiling) => limit.min(ceiling * multiplier),
        None => limit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verifier_timeout_applies_override_multiplier_and_ceiling() {
        let vectors = [
            (100.0, 1.0, None, None::<f64>, 100.0),
            (100.0, 2.0, None, None, 200.0),
            (100.0, 1.0, Some(50.0), None, 50.0),
            (100.0, 2.0, Some(50.0), None, 100.0),
            (100.0, 1.0, None, Some(60.0), 60.0),
            (100.0, 2.0, None, Some(150.0), 200.0),
            (200.0, 2.0, None, Some(150.0), 300.0),
            (100.0, 1.0, Some(50.0), Some(100.0), 50.0),
            (100.0, 1.0, Some(200.0), Some(100.0), 100.0),
            (100.0, 1.0, Some(0.0), None, 100.0),
            (100.0, 1.0, None, Some(0.0), 100.0),
        ];
        for (task, multiplier, overridden, ceiling, expected) in vectors {
            let got = verifier_timeout(task, multiplier, overridden, ceiling);
            assert!(
                (got - expected).abs() < 1e-9,
                "{task} {multiplier} {overridden:?} {ceiling:?}: {got}"
            );
        }
    }

    #[test]
    fn timeout_seconds_keep_fraction_and_saturate() {
        assert_eq!(seconds(0.5), Duration::from_millis(500));
        assert_eq!(seconds(f64::INFINITY), Duration::MAX);
    }
}
