//! Scoring profiles: columns of a sweep and their weights. Two are built in.

mod built_in;
mod file;

use rollout_protocol::digest::Digest;
use serde::{Deserialize, Serialize};

pub use file::ProfileError;

/// The rules that score a sweep against its baseline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScoringProfile {
    /// Name, informational.
    pub name: String,
    /// Column with a row's configuration number, from 0.
    #[serde(default = "id_column")]
    pub id_column: String,
    /// Column with the status of a configuration.
    #[serde(default = "status_column")]
    pub status_column: String,
    /// Status values that mean success; case is ignored.
    #[serde(default = "ok_values")]
    pub ok_values: Vec<String>,
    /// The metric that must not get worse.
    pub primary: GuardedMetric,
    /// The metrics of the score.
    pub metrics: Vec<ScoreMetric>,
    /// Metrics that rule out further exploration if they fall too far.
    #[serde(default)]
    pub risk: Vec<GuardedMetric>,
    /// Largest relative improvement of one metric that counts, in either direction.
    #[serde(default = "clamp")]
    pub clamp: f64,
    /// Baselines up to this magnitude count as zero.
    #[serde(default = "eps")]
    pub eps: f64,
    /// Conditions for exploring further.
    #[serde(default)]
    pub explore: ExploreRule,
    /// Lowest scores of the grades.
    #[serde(default)]
    pub grades: GradeThresholds,
}

/// A metric and its largest allowed fall.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuardedMetric {
    /// Column.
    pub column: String,
    /// Better direction.
    #[serde(default)]
    pub direction: MetricDirection,
    /// Largest allowed fall, relative to the baseline.
    #[serde(default = "max_rel_drop")]
    pub max_rel_drop: f64,
}

/// A metric of the score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScoreMetric {
    /// Column.
    pub column: String,
    /// Better direction.
    #[serde(default)]
    pub direction: MetricDirection,
    /// Weight in the score.
    pub weight: f64,
}

/// Better direction of a metric.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MetricDirection {
    /// Higher is better.
    #[default]
    Higher,
    /// Lower is better.
    Lower,
}

impl MetricDirection {
    /// Improvement of `candidate` over `baseline`; negative if it is worse.
    pub fn improvement(self, baseline: f64, candidate: f64) -> f64 {
        match self {
            Self::Higher => candidate - baseline,
            Self::Lower => baseline - candidate,
        }
    }
}

/// Conditions for exploring further: a score, or enough improved metrics.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExploreRule {
    /// Lowest score.
    pub min_score: f64,
    /// Lowest number of improved metrics.
    pub min_positive: u32,
    /// Lowest surplus of improved metrics over worse ones.
    pub min_margin: u32,
}

/// Lowest scores of the grades.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GradeThresholds {
    /// Strong.
    pub strong: f64,
    /// Promising.
    pub promising: f64,
    /// Mixed; lower scores are weak.
    pub mixed: f64,
}

/// Error of parsing a profile.
#[derive(Debug)]
pub(super) enum ProfileParseError {
    /// The text is not a profile: location and cause.
    Syntax(String),
    /// The profile has an invalid value.
    Invalid {
        /// Name of the profile.
        name: String,
        /// The invalid value.
        source: InvalidProfile,
    },
}

/// An invalid value of a profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: expected {expected}")]
pub struct InvalidProfile {
    /// The key.
    pub key: String,
    /// Accepted values.
    pub expected: &'static str,
}

impl ScoringProfile {
    /// Parses and checks a profile in YAML or JSON text.
    ///
    /// # Errors
    /// [`ProfileParseError`].
    pub(super) fn parse(text: &str) -> Result<Self, ProfileParseError> {
        let profile: Self = serde_saphyr::from_str(text)
            .map_err(|error| ProfileParseError::Syntax(error.to_string()))?;
        match profile.check() {
            Ok(()) => Ok(profile),
            Err(source) => Err(ProfileParseError::Invalid { name: profile.name, source }),
        }
    }

    /// The columns used: the primary metric, then the metrics of the score, each once.
    pub fn columns(&self) -> Vec<&str> {
        let primary = self.primary.column.as_str();
        let metrics = self.metrics.iter().map(|metric| metric.column.as_str());
        std::iter::once(primary).chain(metrics.filter(|name| *name != primary)).collect()
    }

    /// The digest of its content.
    ///
    /// # Errors
    /// Never, for a checked profile.
    pub fn digest(&self) -> Result<Digest, serde_json::Error> {
        Digest::sha256_json(self)
    }

    /// Checks its values.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn check(&self) -> Result<(), InvalidProfile> {
        let check = |good: bool, key: &str, expected| {
            let fault = || InvalidProfile { key: key.to_owned(), expected };
            if good { Ok(()) } else { Err(fault()) }
        };
        check(!self.ok_values.is_empty(), "ok_values", "at least one word")?;
        check(!self.metrics.is_empty(), "metrics", "at least one metric")?;
        let positive = |value: f64| value.is_finite() && value > 0.0;
        check(positive(self.clamp), "clamp", "a number above 0")?;
        check(positive(self.eps), "eps", "a number above 0")?;
        let mut columns = std::collections::BTreeSet::new();
        for (index, metric) in self.metrics.iter().enumerate() {
            let key = format!("metrics[{index}]");
            check(positive(metric.weight), &format!("{key}.weight"), "a number above 0")?;
            check(columns.insert(&metric.column), &format!("{key}.column"), "every column once")?;
        }
        let guarded = self.risk.iter().enumerate().map(|(n, risk)| (format!("risk[{n}]"), risk));
        for (key, guarded) in guarded.chain([("primary".to_owned(), &self.primary)]) {
            let drop = guarded.max_rel_drop;
            let good = drop.is_finite() && drop >= 0.0;
            check(good, &format!("{key}.max_rel_drop"), "a number of 0 or more")?;
        }
        let GradeThresholds { strong, promising, mixed } = self.grades;
        let ordered = strong >= promising && promising >= mixed;
        check(ordered, "grades", "strong, promising and mixed in descending order")?;
        check(self.explore.min_score.is_finite(), "explore.min_score", "a number")
    }
}

impl Default for ExploreRule {
    fn default() -> Self {
        Self { min_score: 0.03, min_positive: 2, min_margin: 2 }
    }
}

impl Default for GradeThresholds {
    fn default() -> Self {
        Self { strong: 0.10, promising: 0.03, mixed: -0.02 }
    }
}

fn id_column() -> String {
    "config_id".to_owned()
}

fn status_column() -> String {
    "status".to_owned()
}

fn ok_values() -> Vec<String> {
    vec!["ok".to_owned()]
}

const fn clamp() -> f64 {
    2.0
}

const fn eps() -> f64 {
    1e-12
}

const fn max_rel_drop() -> f64 {
    0.05
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(name: &str) -> ScoringProfile {
        ScoringProfile::built_in(name).expect("built in")
    }

    #[test]
    fn profile_with_invalid_weight_or_grades_is_refused() {
        assert!(ScoringProfile::BUILT_IN.iter().all(|name| profile(name).check().is_ok()));
        assert_ne!(profile("returns").digest().ok(), profile("sharpe").digest().ok());
        let mut wrong = profile("returns");
        wrong.metrics[3].weight = -1.0;
        assert_eq!(wrong.check().expect_err("a weight").key, "metrics[3].weight");
        let mut wrong = profile("returns");
        wrong.grades.mixed = 1.0;
        assert_eq!(wrong.check().expect_err("an order").key, "grades");
        assert!(matches!(ScoringProfile::load("no-such"), Err(ProfileError::Unknown { .. })));
    }
}
