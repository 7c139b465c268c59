//! The metrics with the largest changes.

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::config::{MetricDirection, ScoringProfile};
use crate::workloads::search::score::{ColumnDelta, SweepComparison};

/// Maximum number of metrics of one kind.
const MAX_METRICS: usize = 10;

/// Maximum length of a column name in bytes.
const MAX_NAME_BYTES: usize = 200;

/// Both comparisons of an eval.
#[derive(Deserialize)]
struct ScoreDocument {
    parent_relative: SweepComparison,
    root_relative: SweepComparison,
}

/// The largest changes in a file with both comparisons; null without one, as for a simulated eval.
pub(super) fn largest_changes(file: &PathBuf, profile: &ScoringProfile) -> Value {
    let content = super::read_bounded(file).ok().flatten().unwrap_or_default();
    let document: Option<ScoreDocument> = serde_json::from_slice(&content).ok();
    let largest = |view: &SweepComparison| largest_of_comparison(view, profile);
    json!({
        "parent_relative": document.as_ref().map(|document| largest(&document.parent_relative)),
        "root_relative": document.as_ref().map(|document| largest(&document.root_relative)),
    })
}

/// Improvements and losses of the profile's metrics, and changes of the other columns, whose better
/// direction is unknown.
fn largest_of_comparison(view: &SweepComparison, profile: &ScoringProfile) -> Value {
    let (mut better, mut worse, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for (name, delta) in &view.columns {
        let relative = relative(delta, profile.eps);
        let row = (name.as_str(), *delta, relative);
        let Some(direction) = direction(profile, name) else {
            others.push(row);
            continue;
        };
        let improvement = direction.improvement(delta.baseline_mean, delta.candidate_mean);
        if improvement > 0.0 {
            better.push(row);
        } else if improvement < 0.0 {
            worse.push(row);
        }
    }
    others.retain(|(_, delta, _)| delta.delta != 0.0);
    json!({
        "improvements": top_rows(better),
        "losses": top_rows(worse),
        "other_changes": top_rows(others),
    })
}

fn direction(profile: &ScoringProfile, column: &str) -> Option<MetricDirection> {
    let guarded = std::iter::once(&profile.primary).chain(&profile.risk);
    let guarded = guarded.map(|metric| (&metric.column, metric.direction));
    let metrics = profile.metrics.iter().map(|metric| (&metric.column, metric.direction));
    metrics.chain(guarded).find(|(name, _)| *name == column).map(|(_, direction)| direction)
}

/// The change relative to the baseline, or the absolute change if the baseline is 0.
fn relative(delta: &ColumnDelta, eps: f64) -> f64 {
    let base = delta.baseline_mean.abs();
    delta.delta / if base > eps { base } else { 1.0 }
}

/// The largest changes, by name where they are equal.
fn top_rows(mut rows: Vec<(&str, ColumnDelta, f64)>) -> Value {
    rows.sort_by(|(a, _, one), (b, _, other)| {
        other.abs().total_cmp(&one.abs()).then_with(|| a.cmp(b))
    });
    let rows = rows.iter().take(MAX_METRICS).map(|(name, delta, relative)| {
        json!({
            "column": rollout_protocol::limits::shorten((*name).to_owned(), MAX_NAME_BYTES),
            "baseline_mean": delta.baseline_mean,
            "candidate_mean": delta.candidate_mean,
            "delta": delta.delta,
            "relative": relative,
        })
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::search::score::{compare, summarize};

    #[test]
    fn deltas_are_sorted_by_size_and_direction_of_profile() {
        let profile: ScoringProfile = serde_json::from_value(json!({
            "name": "test",
            "primary": {"column": "speed"},
            "metrics": [
                {"column": "speed", "weight": 1.0},
                {"column": "errors", "weight": 1.0, "direction": "lower"},
                {"column": "memory", "weight": 1.0, "direction": "lower"},
            ],
        }))
        .expect("a profile");
        let many: String = (0..30).map(|n| format!(",other{n:02}")).collect();
        let header = format!("config_id,status,speed,errors,memory{many}\n");
        let row = |start: &str, by: f64| {
            let others: String = (0..30).map(|n| format!(",{}", f64::from(n) * by)).collect();
            summarize(format!("{header}{start}{others}\n").as_bytes(), &profile, None)
        };
        let before = row("0,ok,1,10,4", 1.0).expect("a sweep");
        let after = row("0,ok,1.5,5,8", 2.0).expect("a sweep");
        let found = largest_of_comparison(&compare(&before, &after, &profile), &profile);
        let names = |key: &str| -> Vec<String> {
            let rows = found[key].as_array().expect("rows").iter();
            rows.map(|row| row["column"].as_str().expect("a name").to_owned()).collect()
        };
        assert_eq!(names("improvements"), ["errors", "speed"]);
        assert_eq!(names("losses"), ["memory"]);
        assert_eq!(names("other_changes").len(), MAX_METRICS);
        assert_eq!(names("other_changes")[0], "other01", "all doubled: by name");
        assert_eq!(found["losses"][0]["relative"], 1.0);
    }

    #[test]
    fn deltas_of_missing_score_file_are_null() {
        let profile = ScoringProfile::built_in("returns").expect("a profile");
        let nothing = json!({"parent_relative": null, "root_relative": null});
        assert_eq!(largest_changes(&"/nonexistent".into(), &profile), nothing);
    }
}
