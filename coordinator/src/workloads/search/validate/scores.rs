//! Validation of scores against the results of evals.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::ValidationFaultKind::Score;
use super::ValidationFindings;
use crate::workloads::search::driver::{SCORES_FILE, Scores, SearchDirectory, SweepFiles, score};
use crate::workloads::search::manifest::{
    ComparisonSummary, EvalStatus, SearchEval, SearchManifest,
};

/// Tolerance of equal numbers, relative to those above 1.
const RELATIVE_TOLERANCE: f64 = 1e-12;

/// Scores all evals with results again. Missing files and paths outside are reported elsewhere.
pub(super) fn check(
    directory: &SearchDirectory,
    manifest: &SearchManifest,
    findings: &mut ValidationFindings,
) {
    if manifest.run_config.dry_run {
        return;
    }
    let mut scored = 0;
    for (id, eval) in &manifest.evaluations {
        let Some([candidate, parent, root]) = sweep_files(directory, manifest, eval) else {
            continue;
        };
        let (candidate, parent, root) = (&candidate, &parent, &root);
        let sweep = SweepFiles { manifest, eval: *id, directory, candidate, parent, root };
        scored += 1;
        let wrong = match score(&sweep) {
            Ok(scores) => {
                let mut wrong = differences(eval, &scores);
                let file = directory.eval(*id).join(SCORES_FILE);
                if !is_written(&file, &scores) {
                    wrong.push(format!("its {SCORES_FILE} does not follow from the results"));
                }
                wrong
            }
            // The manifest records no score either.
            Err(_) if eval.parent_relative.is_none() && eval.root_relative.is_none() => continue,
            Err(error) => vec![format!("it has scores, but no results: {error}")],
        };
        for message in wrong {
            findings.add(Score, format!("eval {id}"), message);
        }
    }
    findings.checked.scores = Some(scored);
}

/// The results of an eval, its parent and the root.
fn sweep_files(
    directory: &SearchDirectory,
    manifest: &SearchManifest,
    eval: &SearchEval,
) -> Option<[PathBuf; 3]> {
    let candidate = eval.candidate_results_csv_path.as_ref();
    let candidate = candidate.filter(|_| eval.status == EvalStatus::Completed)?;
    let parent = &manifest.nodes.get(&eval.parent_node_id)?.baseline_results_csv_path;
    let root = &manifest.root.root_baseline_csv_path;
    let top = directory.root().canonicalize().ok()?;
    let real = |path: &String| {
        let real = directory.resolve_below(path)?.canonicalize().ok()?;
        (real.starts_with(&top) && real.is_file()).then_some(real)
    };
    Some([real(candidate)?, real(parent)?, real(root)?])
}

fn differences(eval: &SearchEval, scores: &Scores) -> Vec<String> {
    let mut wrong = Vec::new();
    if eval.strict_completeness != scores.completeness {
        wrong.push("its row counts do not follow from its results".to_owned());
    }
    let views = [
        ("the parent", &eval.parent_relative, &scores.parent),
        ("the root", &eval.root_relative, &scores.root),
    ];
    for (whom, recorded, computed) in views {
        if !is_same(recorded.as_ref(), computed.as_ref()) {
            wrong.push(format!("its score against {whom} does not follow from the results"));
        }
    }
    wrong
}

fn is_same(recorded: Option<&ComparisonSummary>, computed: Option<&ComparisonSummary>) -> bool {
    let (Some(one), Some(other)) = (recorded, computed) else {
        return recorded.is_none() == computed.is_none();
    };
    let words = |view: &ComparisonSummary| {
        let summary = view.recommendation_summary.as_ref();
        summary.map(|summary| (summary.should_explore, summary.grade, summary.reasons.clone()))
    };
    let number = |view: &ComparisonSummary| {
        view.recommendation_summary.as_ref().map(|summary| summary.score)
    };
    let rows = |view: &ComparisonSummary| (view.baseline_rows_used, view.candidate_rows_used);
    words(one) == words(other)
        && rows(one) == rows(other)
        && is_near(number(one), number(other))
        && is_near(one.primary_delta, other.primary_delta)
}

/// Whether a file has the recomputed comparisons. A missing or invalid file is reported elsewhere.
fn is_written(file: &Path, scores: &Scores) -> bool {
    if scores.comparisons.is_none() {
        return true;
    }
    let found = fs::read(file).ok().and_then(|text| serde_json::from_slice(&text).ok());
    found.is_none_or(|found: Value| is_same_value(&found, &scores.document()))
}

/// Whether two values are equal except for rounding.
fn is_same_value(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => is_near(one.as_f64(), other.as_f64()),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(a, b)| is_same_value(a, b))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(key, a)| other.get(key).is_some_and(|b| is_same_value(a, b)))
        }
        _ => one == other,
    }
}

fn is_near(one: Option<f64>, other: Option<f64>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => {
            let scale = one.abs().max(other.abs()).max(1.0);
            one.total_cmp(&other).is_eq() || (one - other).abs() <= RELATIVE_TOLERANCE * scale
        }
        (None, None) => true,
        _ => false,
    }
}
