//! Scoring profiles: which columns count how much. Two are built in.

use std::path::{Path, PathBuf};

use rollout_protocol::digest::Digest;
use rollout_protocol::limits::CONFIG_FILE_BYTES;
use serde::{Deserialize, Serialize};

/// What makes one sweep better than another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Name, for people.
    pub name: String,
    /// Column with the number of a row's configuration, from 0.
    #[serde(default = "id_column")]
    pub id_column: String,
    /// Column that says whether a configuration succeeded.
    #[serde(default = "status_column")]
    pub status_column: String,
    /// Words for success in it, whatever their case.
    #[serde(default = "ok_values")]
    pub ok_values: Vec<String>,
    /// The metric that must not get worse.
    pub primary: Guarded,
    /// The metrics of the score.
    pub metrics: Vec<Metric>,
    /// Metrics whose fall forbids to explore further.
    #[serde(default)]
    pub risk: Vec<Guarded>,
    /// Largest relative improvement of one metric that counts, in either direction.
    #[serde(default = "clamp")]
    pub clamp: f64,
    /// What is not larger counts as nothing when it is divided by.
    #[serde(default = "eps")]
    pub eps: f64,
    /// When to explore further.
    #[serde(default)]
    pub explore: Explore,
    /// Scores at which grades begin.
    #[serde(default)]
    pub grades: Grades,
}

/// A metric and how much it may fall.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guarded {
    /// Column.
    pub column: String,
    /// Which way is better.
    #[serde(default)]
    pub direction: Direction,
    /// Largest fall, relative to the baseline.
    #[serde(default = "max_rel_drop")]
    pub max_rel_drop: f64,
}

/// A metric of the score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// Column.
    pub column: String,
    /// Which way is better.
    #[serde(default)]
    pub direction: Direction,
    /// How much it counts.
    pub weight: f64,
}

/// Which way is better.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// More.
    #[default]
    Higher,
    /// Less.
    Lower,
}

impl Direction {
    /// How much better `candidate` is than `baseline`.
    pub fn improvement(self, baseline: f64, candidate: f64) -> f64 {
        match self {
            Self::Higher => candidate - baseline,
            Self::Lower => baseline - candidate,
        }
    }
}

/// When to explore further: at a score, or when enough metrics improved.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Explore {
    /// Least score.
    pub min_score: f64,
    /// Least number of metrics that improved …
    pub min_positive: u32,
    /// … and how many more than got worse.
    pub min_margin: u32,
}

/// Scores at which grades begin.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Grades {
    /// Strong.
    pub strong: f64,
    /// Promising.
    pub promising: f64,
    /// Mixed; below it, weak.
    pub mixed: f64,
}

/// Why there is no profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// Neither a built-in name nor a file.
    #[error("`{name}` is neither a file nor one of the built-in profiles {}", Profile::BUILT_IN.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
    },
    /// The file cannot be read.
    #[error("reading {path}")]
    Read {
        /// File.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is no profile.
    #[error("{path} is no profile: {reason}")]
    Parse {
        /// File.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// Values that make no sense.
    #[error("the profile `{name}`")]
    Invalid {
        /// Its name.
        name: String,
        /// Which.
        #[source]
        source: InvalidProfile,
    },
}

/// A value of a profile that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: expected {expected}")]
pub struct InvalidProfile {
    /// The key.
    pub key: String,
    /// What would make sense.
    pub expected: &'static str,
}

impl Profile {
    /// Names of the built-in profiles.
    pub const BUILT_IN: &[&str] = &["returns", "sharpe"];

    /// The built-in profile with a name.
    pub fn built_in(name: &str) -> Option<Self> {
        match name {
            "returns" => Some(returns()),
            "sharpe" => Some(sharpe()),
            _ => None,
        }
    }

    /// The built-in profile of that name, or the one in that YAML or JSON file.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        if let Some(profile) = Self::built_in(name) {
            return Ok(profile);
        }
        let path = Path::new(name);
        let read = |source| ProfileError::Read { path: path.to_owned(), source };
        let size = match std::fs::metadata(path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(ProfileError::Unknown { name: name.to_owned() });
            }
            Err(error) => return Err(read(error)),
        };
        let parse = |reason: String| ProfileError::Parse { path: path.to_owned(), reason };
        if size > CONFIG_FILE_BYTES {
            return Err(parse(format!("it has more than {CONFIG_FILE_BYTES} bytes")));
        }
        let text = std::fs::read_to_string(path).map_err(read)?;
        let profile: Self = serde_saphyr::from_str(&text).map_err(|e| parse(e.to_string()))?;
        let invalid = |source| ProfileError::Invalid { name: profile.name.clone(), source };
        profile.check().map_err(invalid)?;
        Ok(profile)
    }

    /// The columns that count: the primary metric, then the metrics of the score, each once.
    pub fn columns(&self) -> Vec<&str> {
        let primary = self.primary.column.as_str();
        let metrics = self.metrics.iter().map(|metric| metric.column.as_str());
        std::iter::once(primary).chain(metrics.filter(|name| *name != primary)).collect()
    }

    /// The digest of what it says.
    ///
    /// # Errors
    /// Never, for a profile that was checked.
    pub fn digest(&self) -> Result<Digest, serde_json::Error> {
        Digest::of_json(self)
    }

    /// Whether its values make sense.
    ///
    /// # Errors
    /// The first that does not.
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
        let Grades { strong, promising, mixed } = self.grades;
        let ordered = strong >= promising && promising >= mixed;
        check(ordered, "grades", "strong, promising and mixed in falling order")?;
        check(self.explore.min_score.is_finite(), "explore.min_score", "a number")
    }
}

impl Default for Explore {
    fn default() -> Self {
        Self { min_score: 0.03, min_positive: 2, min_margin: 2 }
    }
}

impl Default for Grades {
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

fn built_in(name: &str, primary: &str, metrics: &[(&str, bool, f64)], risk: &[&str]) -> Profile {
    let direction = |higher: bool| if higher { Direction::Higher } else { Direction::Lower };
    let guarded = |column: &str, max_rel_drop| Guarded {
        column: column.to_owned(),
        direction: Direction::Higher,
        max_rel_drop,
    };
    let metric = |(column, higher, weight): &(&str, bool, f64)| Metric {
        column: (*column).to_owned(),
        direction: direction(*higher),
        weight: *weight,
    };
    Profile {
        name: name.to_owned(),
        id_column: id_column(),
        status_column: status_column(),
        ok_values: ok_values(),
        primary: guarded(primary, max_rel_drop()),
        metrics: metrics.iter().map(metric).collect(),
        risk: risk.iter().map(|column| guarded(column, 0.10)).collect(),
        clamp: clamp(),
        eps: eps(),
        explore: Explore::default(),
        grades: Grades::default(),
    }
}

/// Returns per trade outside the sample first, then growth, ratios and significance.
fn returns() -> Profile {
    let metrics = [
        ("mean_topN_avg_return_per_trade_pct_oos", true, 3.0),
        ("core_topN_cagr", true, 2.0),
        ("core_topN_sharpe", true, 1.5),
        ("core_topN_sortino", true, 1.5),
        ("core_topN_calmar", true, 1.5),
        ("rel_equity_ratio_end", true, 1.5),
        ("rel_equity_ratio_cagr", true, 1.0),
        ("rel_pct_outperform", true, 1.0),
        ("rel_pct_underperform", false, 1.0),
        ("core_topN_volatility", false, 0.75),
        ("core_topN_max_drawdown", true, 1.0),
        ("core_topN_cvar_05", true, 0.75),
        ("sig_t_stat", true, 0.5),
        ("sig_t_p_value", false, 0.5),
        ("sig_bootstrap_prob_mean_gt0", true, 0.5),
    ];
    let risk = ["core_topN_max_drawdown", "core_topN_cvar_05"];
    built_in("returns", "mean_topN_avg_return_per_trade_pct_oos", &metrics, &risk)
}

/// The Sharpe ratio first, returns and the other ratios beside it.
fn sharpe() -> Profile {
    let metrics = [
        ("core_topN_sharpe", true, 1.5),
        ("mean_topN_avg_return_per_trade_pct_oos", true, 1.0),
        ("mean_topN_avg_return_per_trade_pct", true, 1.0),
        ("core_topN_sortino", true, 1.0),
        ("core_topN_calmar", true, 1.0),
        ("core_topN_max_drawdown", true, 1.0),
    ];
    built_in("sharpe", "core_topN_sharpe", &metrics, &["core_topN_max_drawdown"])
}
