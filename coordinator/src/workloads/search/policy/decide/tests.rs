use super::super::testing::{new_search, promotable_eval};
use super::*;
use crate::workloads::search::manifest::{EvalStatus, SearchEval};
use rollout_protocol::search::NodeId;

struct ArtifactsExcept(&'static str);

impl ArtifactLookup for ArtifactsExcept {
    fn exists(&self, path: &str) -> bool {
        path != self.0
    }
}

/// A change that makes an eval fail the gate.
type EvalMutation = fn(&mut SearchManifest, &mut SearchEval);

fn reason(change: impl FnOnce(&mut SearchManifest, &mut SearchEval)) -> Option<Reason> {
    let mut manifest = new_search(|_| {});
    let mut eval = promotable_eval(&mut manifest, EvalId(0));
    change(&mut manifest, &mut eval);
    gate_failure(&manifest, &eval, &ArtifactsExcept("gone"))
}

#[test]
fn promotion_gate_failure_has_its_own_reason() {
    assert_eq!(reason(|_, _| {}), None);
    let cases: Vec<(Reason, EvalMutation)> = vec![
        (Reason::NotCompleted, |_, eval| eval.status = EvalStatus::Failed),
        (Reason::NoChanges, |_, eval| eval.status = EvalStatus::NoChanges),
        (Reason::MissingCommit, |_, eval| eval.candidate_commit = None),
        (Reason::MissingResults, |_, eval| eval.candidate_results_csv_path = None),
        (Reason::ResultsGone, |_, eval| eval.candidate_results_csv_path = Some("gone".into())),
        (Reason::ResultsElsewhere, |_, eval| {
            eval.candidate_results_csv_path = Some("/tmp/results.csv".into());
        }),
        (Reason::MissingBaseline, |manifest, _| baseline(manifest, "")),
        (Reason::BaselineGone, |manifest, _| baseline(manifest, "gone")),
        (Reason::BaselineElsewhere, |manifest, _| baseline(manifest, "/tmp/baseline.csv")),
        (Reason::IncompleteRows, |_, eval| {
            eval.strict_completeness.as_mut().expect("there").error_count = 1;
        }),
        (Reason::MissingRowsUsed, |_, eval| eval.parent_relative = None),
        (Reason::RowsUsedMismatch, |_, eval| view(eval).candidate_rows_used = 9),
        (Reason::TooFewRows, |manifest, eval| {
            manifest.run_config.sweep_config_limit = None;
            view(eval).candidate_rows_used = 99;
        }),
        (Reason::MissingStatus, |manifest, eval| {
            manifest.run_config.sweep_config_limit = None;
            view(eval).candidate_rows_used = 100;
            eval.strict_completeness = None;
        }),
        (Reason::OkRateTooLow, |manifest, eval| {
            manifest.run_config.sweep_config_limit = None;
            view(eval).candidate_rows_used = 100;
            eval.strict_completeness.as_mut().expect("there").error_count = 1;
        }),
        (Reason::MissingPrimaryDelta, |_, eval| view(eval).primary_delta = None),
        (Reason::MissingPrimaryDelta, |_, eval| view(eval).primary_delta = Some(f64::NAN)),
        (Reason::PrimaryRegressed, |_, eval| view(eval).primary_delta = Some(-1e-9)),
        (Reason::PrimaryRegressed, |_, eval| {
            let summary = view(eval).recommendation_summary.as_mut().expect("there");
            summary.reasons = vec!["primary_metric_regressed".into()];
        }),
        (Reason::NotWorthExploring, |_, eval| {
            let summary = view(eval).recommendation_summary.as_mut().expect("there");
            summary.should_explore = false;
        }),
    ];
    for (expected, change) in cases {
        assert_eq!(reason(change), Some(expected));
    }
}

#[test]
fn promotion_gate_within_tolerance_or_mixed_grade_passes() {
    // Without a minimum share no status is needed.
    assert_eq!(
        reason(|manifest, eval| {
            (manifest.run_config.sweep_config_limit, manifest.run_config.min_ok_rate) = (None, 0.0);
            view(eval).candidate_rows_used = 100;
            eval.strict_completeness = None;
        }),
        None
    );
    // A tolerance accepts the regression, and mixed grades may pass.
    assert_eq!(
        reason(|manifest, eval| {
            manifest.run_config.primary_tolerance = 1e-6;
            view(eval).primary_delta = Some(-1e-9);
        }),
        None
    );
    assert_eq!(
        reason(|_, eval| {
            let summary = view(eval).recommendation_summary.as_mut().expect("there");
            (summary.should_explore, summary.grade) =
                (false, crate::workloads::search::score::Grade::Mixed);
        }),
        None
    );
}

fn baseline(manifest: &mut SearchManifest, path: &str) {
    let root = manifest.nodes.get_mut(&NodeId(0)).expect("the root");
    root.baseline_results_csv_path = path.to_owned();
}

fn view(eval: &mut SearchEval) -> &mut crate::workloads::search::manifest::ComparisonSummary {
    eval.parent_relative.as_mut().expect("there")
}

#[test]
fn ranking_tie_goes_to_primary_metric_then_older_eval() {
    let mut manifest = new_search(|config| config.beam_width = 3);
    let scores = [
        (0, Some(0.5), Some(0.1)),
        (1, Some(0.5), Some(0.2)),
        (2, Some(0.5), Some(0.2)),
        (3, Some(f64::NAN), Some(0.9)),
        (4, None, None),
        (5, Some(0.5), None),
    ];
    for (id, score, delta) in scores {
        let mut eval = promotable_eval(&mut manifest, EvalId(id));
        let view = eval.root_relative.as_mut().expect("there");
        view.primary_delta = delta;
        match (score, view.recommendation_summary.as_mut()) {
            (Some(score), Some(summary)) => summary.score = score,
            _ => view.recommendation_summary = None,
        }
        manifest.evaluations.insert(EvalId(id), eval);
    }
    let promoted = decide(&mut manifest, 0, &ArtifactsExcept(""));
    assert_eq!(promoted, [3, 1, 2].map(EvalId));
    let reason = |id: u32| {
        let decision = manifest.evaluations[&EvalId(id)].decision.as_ref().expect("decided");
        decision.promotion_reason
    };
    assert_eq!(
        [0, 4, 5].map(reason),
        [Some(Reason::BeyondBeam), Some(Reason::Unranked), Some(Reason::BeyondBeam)]
    );
}

#[test]
fn score_not_finite_is_never_promoted() {
    for worst in [f64::NEG_INFINITY, f64::INFINITY, f64::NAN] {
        let mut manifest = new_search(|config| config.beam_width = 3);
        let mut eval = promotable_eval(&mut manifest, EvalId(0));
        let view = eval.root_relative.as_mut().expect("there");
        view.primary_delta = Some(worst);
        view.recommendation_summary.as_mut().expect("there").score = worst;
        manifest.evaluations.insert(EvalId(0), eval);
        assert_eq!(decide(&mut manifest, 0, &ArtifactsExcept("")), []);
        let decision = manifest.evaluations[&EvalId(0)].decision.as_ref().expect("decided");
        assert_eq!(
            (decision.passed_gate, decision.promotion_reason),
            (true, Some(Reason::Unranked))
        );
    }
}
