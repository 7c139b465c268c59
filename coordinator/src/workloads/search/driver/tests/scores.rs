//! Tests of scores of real sweep results.

use super::*;
use crate::workloads::search::manifest::{Reason, SearchEval, SearchRunConfig};
use crate::workloads::search::policy::decide::gate_failure;
use crate::workloads::search::policy::testing::{new_search, promotable_eval};
use rollout_protocol::search::EvalId;

/// A backend that only scores.
struct ScoringBackend;

impl RepositoryMaintenance for ScoringBackend {
    fn reconcile(
        &mut self,
        _: &DesiredRepositoryState,
        _: &std::collections::BTreeSet<String>,
    ) -> Result<Vec<FailedRemoval>, BackendError> {
        unreachable!("nothing is reconciled")
    }

    fn remove(
        &mut self,
        _: &crate::workloads::search::manifest::DeferredCleanup,
    ) -> Result<(), String> {
        unreachable!("nothing is removed")
    }
}

impl SearchBackend for ScoringBackend {
    fn resolve(&mut self, _: &str) -> Result<String, BackendError> {
        unreachable!("nothing begins")
    }

    fn diff(&mut self, _: &str, _: &str) -> Result<Vec<u8>, BackendError> {
        unreachable!("nothing is compared")
    }

    fn generate_ideas(
        &mut self,
        _: Vec<IdeasOrder>,
        _: &mut dyn FnMut(rollout_protocol::search::NodeId) -> Result<(), SearchError>,
    ) -> Result<(), SearchError> {
        unreachable!("nothing is written")
    }

    fn begin_eval(&mut self, _: EvalOrder) -> Result<(), BackendError> {
        unreachable!("nothing is run")
    }

    fn next_result(&mut self) -> Result<EvalResult, BackendError> {
        unreachable!("nothing is run")
    }
}

/// Scores results under a configuration: the reason against promotion, and the eval's error.
fn score_results(
    results: &str,
    change: impl FnOnce(&mut SearchRunConfig),
) -> (Option<Reason>, Option<String>) {
    let (reason, eval, _) = scored_eval(results, change);
    (reason, eval.error.map(|error| error.message))
}

/// Scores results under a configuration: the reason against promotion, the eval, and its search.
fn scored_eval(
    results: &str,
    change: impl FnOnce(&mut SearchRunConfig),
) -> (Option<Reason>, SearchEval, SearchManifest) {
    let place = tempfile::tempdir().expect("a directory");
    let directory = SearchDirectory::new(place.path().join("run"));
    let merged = merge_results(&directory, results, change, |baseline| {
        std::fs::write(baseline, results).expect("written");
    });
    let (eval, manifest) = merged.expect("merged");
    let reason = gate_failure(&manifest, &eval, &directory);
    (reason, eval, manifest)
}

/// Merges results below a baseline that `write` writes.
fn merge_results(
    directory: &SearchDirectory,
    results: &str,
    change: impl FnOnce(&mut SearchRunConfig),
    write: impl FnOnce(&Path),
) -> Result<(SearchEval, SearchManifest), SearchError> {
    directory.create().expect("made");
    let mut manifest = new_search(change);
    let baseline = directory.root().join(&manifest.root.root_baseline_csv_path);
    write(&baseline);
    let eval = promotable_eval(&mut manifest, EvalId(0));
    let attempt = directory.eval(eval.eval_id).join("attempt-1");
    std::fs::create_dir_all(&attempt).expect("made");
    std::fs::write(attempt.join("results.csv"), results).expect("written");
    let result = EvalResult {
        eval_id: eval.eval_id,
        parent_node_id: eval.parent_node_id,
        idea_normalized_sha256: eval.idea_normalized_sha256.clone(),
        round: 0,
        status: eval.status,
        attempt: 1,
        worker: None,
        started_at: None,
        finished_at: None,
        seconds: None,
        candidate_commit: eval.candidate_commit,
        results_csv: Some("attempt-1/results.csv".to_owned()),
        cost: None,
        calls: Vec::new(),
        possible_secrets: vec!["KEY".to_owned()],
        error: None,
    };
    let workshop = ScoringBackend;
    merge::merge(directory, &mut manifest, &workshop, result)?;
    let eval = manifest.evaluations[&eval.eval_id].clone();
    Ok((eval, manifest))
}

#[test]
fn candidate_is_judged_for_its_own_file_and_not_for_the_disk() {
    let column = "mean_topN_avg_return_per_trade_pct_oos";
    let whole = format!("config_id,status,{column}\n0,ok,1\n1,ok,1\n");
    let merged = |results: &str, write: &dyn Fn(&Path)| {
        let place = tempfile::tempdir().expect("a directory");
        let directory = SearchDirectory::new(place.path().join("run"));
        merge_results(&directory, results, without_limit, write).map(|(eval, _)| eval)
    };
    let text = |path: &Path| std::fs::write(path, &whole).expect("written");
    let good = merged(&whole, &text).expect("merged");
    assert_eq!((good.error, good.possible_secrets), (None, vec!["KEY".to_owned()]));
    let malformed = merged("a,a\n", &text).expect("merged");
    assert_eq!(malformed.error.expect("a verdict").error_type, "results_unreadable");
    // The system opens a directory, and does not read it.
    let unreadable = merged(&whole, &|path| std::fs::create_dir(path).expect("made"));
    assert!(matches!(unreadable, Err(SearchError::File { .. })), "{unreadable:?}");
    let gone = merged(&whole, &|_| ());
    assert!(matches!(gone, Err(SearchError::Damaged { .. })), "{gone:?}");
    let damaged = merged(&whole, &|path| std::fs::write(path, "a,a\n").expect("written"));
    assert!(matches!(damaged, Err(SearchError::Damaged { .. })), "{damaged:?}");
}

#[test]
fn sweep_with_ok_rows_without_numbers_is_promoted_with_warning() {
    let column = "mean_topN_avg_return_per_trade_pct_oos";
    let whole = format!("config_id,status,{column},core_topN_sharpe\n0,ok,1,1\n1,ok,1,1\n");
    let (reason, eval, _) = scored_eval(&whole, without_limit);
    assert_eq!((reason, eval.results_warning), (None, None));

    let lacking = format!(
        "config_id,status,{column},core_topN_sharpe,note\n\
         0,ok,1,nan,\n1,ok,nan,inf,\n2,ok,1,1,x\n3,error,nan,nan,\n"
    );
    let change = |config: &mut SearchRunConfig| {
        without_limit(config);
        config.min_ok_rate = 0.0;
    };
    let (reason, eval, mut manifest) = scored_eval(&lacking, change);
    assert_eq!(reason, None, "it may be promoted");
    let expected = "2 of 3 successful rows have no number in `mean_topN_avg_return_per_trade_pct_oos`, \
                    `core_topN_sharpe`: the others decide the score";
    assert_eq!(eval.results_warning.as_deref(), Some(expected));
    manifest.evaluations.insert(eval.eval_id, eval.clone());
    let why = crate::workloads::search::report::decision_reason(&manifest, &eval);
    assert_eq!(why.as_deref(), Some(expected), "a report shows it");
}

#[test]
fn sweep_without_ok_rows_or_metrics_is_rejected() {
    let column = "mean_topN_avg_return_per_trade_pct_oos";
    let limited = |config: &mut SearchRunConfig| config.sweep_config_limit = Some(2);
    let failed = format!("config_id,status,{column}\n0,error,nan\n1,error,nan\n");
    assert_eq!(score_results(&failed, limited), (Some(Reason::IncompleteRows), None));
    let (reason, error) = score_results("config_id,status,z\n0,ok,1\n1,ok,1\n", limited);
    assert_eq!(reason, Some(Reason::MissingPrimaryDelta));
    assert!(error.is_some_and(|error| error.contains("no number in any metric")));
}

fn without_limit(config: &mut SearchRunConfig) {
    (config.sweep_config_limit, config.min_candidate_rows) = (None, 2);
}

#[test]
fn sweep_without_config_id_is_rejected_only_with_limit() {
    let column = "mean_topN_avg_return_per_trade_pct_oos";
    let sweep = format!("status,{column}\nok,1\nOK,2\n");
    assert_eq!(score_results(&sweep, without_limit), (None, None));
    let failed = format!("status,{column}\nok,1\nerror,2\n");
    assert_eq!(score_results(&failed, without_limit), (Some(Reason::OkRateTooLow), None));
    let (reason, error) = score_results(&sweep, |config| config.sweep_config_limit = Some(2));
    assert_eq!(reason, Some(Reason::IncompleteRows));
    assert!(error.is_some_and(|error| error.contains("`config_id`")));
    let (reason, error) = score_results(&format!("{column}\n1\n2\n"), without_limit);
    assert_eq!(reason, Some(Reason::MissingStatus));
    assert!(error.is_some_and(|error| error.contains("`status`")));
}
