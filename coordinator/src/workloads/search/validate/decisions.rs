//! Validation of decisions: each must follow from its eval and the other evals of its depth.

use std::collections::BTreeSet;

use super::ValidationFaultKind::Decision;
use super::ValidationFindings;
use crate::workloads::search::driver::SearchDirectory;
use crate::workloads::search::manifest::{Reason, SearchManifest};
use crate::workloads::search::policy::decide::{ArtifactLookup, decide};
use rollout_protocol::search::EvalId;

/// Existence of files at the time of the decision: files missing now are reported elsewhere.
struct RecordedArtifacts<'a> {
    directory: &'a SearchDirectory,
    gone: BTreeSet<String>,
}

impl ArtifactLookup for RecordedArtifacts<'_> {
    fn exists(&self, path: &str) -> bool {
        !self.gone.contains(path) || self.directory.exists(path)
    }
}

pub(super) fn check(
    directory: &SearchDirectory,
    manifest: &SearchManifest,
    findings: &mut ValidationFindings,
) {
    let artifacts = RecordedArtifacts { directory, gone: recorded_missing_files(manifest) };
    let mut again = manifest.clone();
    for depth in manifest.state.completed_depths.iter().copied() {
        let promoted: BTreeSet<EvalId> =
            decide(&mut again, depth, &artifacts).into_iter().collect();
        for (id, eval) in manifest.evals_at(depth) {
            findings.checked.decisions += 1;
            let mut wrong = |message: &str| findings.add(Decision, format!("eval {id}"), message);
            let Some(decision) = &eval.decision else {
                wrong("it has no decision, although its depth is completed");
                continue;
            };
            let Some(expected) = again.evaluations[id].decision.as_ref() else { continue };
            if decision.passed_gate != expected.passed_gate {
                wrong("its gate decision does not follow from its results");
            }
            // Earlier versions recorded no reason for promoted evals.
            let unsaid = decision.promotion_reason.is_none() && promoted.contains(id);
            if decision.promotion_reason != expected.promotion_reason && !unsaid {
                wrong("its reason does not follow from its results");
            }
            if decision.rank_score != expected.rank_score {
                wrong("its rank is not its score against the root");
            }
            if decision.primary_regressed != expected.primary_regressed {
                wrong("`primary_regressed` does not follow from its results");
            }
            if decision.promoted_to_node_id.is_some() != promoted.contains(id) {
                wrong("its promotion does not follow from the ranks of its depth");
            }
        }
    }
    for (id, eval) in &manifest.evaluations {
        if eval.depth >= manifest.state.current_depth && eval.decision.is_some() {
            findings.add(Decision, format!("eval {id}"), "it was decided before its depth ended");
        }
    }
}

/// Files that were missing at the time of the decision.
fn recorded_missing_files(manifest: &SearchManifest) -> BTreeSet<String> {
    let mut gone = BTreeSet::new();
    for eval in manifest.evaluations.values() {
        match eval.decision.as_ref().and_then(|decision| decision.promotion_reason) {
            Some(Reason::ResultsGone) => gone.extend(eval.candidate_results_csv_path.clone()),
            Some(Reason::BaselineGone) => {
                let node = manifest.nodes.get(&eval.parent_node_id);
                gone.extend(node.map(|node| node.baseline_results_csv_path.clone()));
            }
            _ => {}
        }
    }
    gone
}
