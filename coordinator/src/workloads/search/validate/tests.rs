use super::*;
use crate::workloads::search::driver::simulated::finished;
use crate::workloads::search::manifest::{NodeStatus, Reason};
use rollout_protocol::search::{EvalId, NodeId};

/// A change that makes a search invalid.
type ManifestMutation = fn(&mut SearchManifest);

/// A finished search.
struct FinishedSearch {
    _keep: tempfile::TempDir,
    directory: SearchDirectory,
}

impl FinishedSearch {
    fn new() -> Self {
        let (_keep, directory) = finished();
        Self { _keep, directory }
    }

    fn root(&self) -> &std::path::Path {
        self.directory.root()
    }

    /// The faults after a change of its manifest, by kind and subject.
    fn with(
        &self,
        change: impl FnOnce(&mut SearchManifest),
        repository: CommitSource<'_>,
    ) -> Vec<(ValidationFaultKind, String)> {
        let mut manifest = self.directory.manifest().expect("there");
        change(&mut manifest);
        let validation = check(&self.directory, &manifest, repository);
        validation.faults.into_iter().map(|fault| (fault.kind, fault.subject)).collect()
    }

    fn changed(
        &self,
        change: impl FnOnce(&mut SearchManifest),
    ) -> Vec<(ValidationFaultKind, String)> {
        self.with(change, CommitSource::Unknown)
    }

    fn found(&self) -> Vec<(ValidationFaultKind, String)> {
        self.changed(|_| {})
    }
}

fn node(
    manifest: &mut SearchManifest,
    id: u32,
) -> &mut crate::workloads::search::manifest::SearchNode {
    manifest.nodes.get_mut(&NodeId(id)).expect("there")
}

fn eval(
    manifest: &mut SearchManifest,
    id: u32,
) -> &mut crate::workloads::search::manifest::SearchEval {
    manifest.evaluations.get_mut(&EvalId(id)).expect("there")
}

#[test]
fn search_untouched_has_no_validation_faults() {
    let (_keep, directory) = finished();
    let manifest = directory.manifest().expect("there");
    let validation = check(&directory, &manifest, CommitSource::Unknown);
    assert_eq!(validation.faults, []);
    let checked = &validation.checked;
    assert!(checked.digests > 15 && checked.decisions == 20 && checked.commits.is_none());
    validation.write(&directory).expect("written");
    let read = |name| std::fs::read_to_string(directory.root().join(name)).expect("there");
    assert!(read("VALIDATION_REPORT.md").contains("No faults found"));
    assert!(read("VALIDATION_REPORT.md").contains("no commits: the search was simulated"));
    assert!(read("VALIDATION_REPORT.json").contains("\"faults\": []"));
}

#[test]
fn artifact_with_changed_byte_is_found() {
    let search = FinishedSearch::new();
    let path = search.root().join("artifacts/candidate_eval_0000.csv");
    let mut bytes = std::fs::read(&path).expect("there");
    bytes[3] ^= 1;
    std::fs::write(&path, bytes).expect("written");
    let both =
        ["eval 0000", "node 0001"].map(|of| (ValidationFaultKind::ChangedFile, of.to_owned()));
    assert_eq!(search.found(), both);
}

#[test]
fn artifact_missing_is_found() {
    let search = FinishedSearch::new();
    let remove = |name: &str| std::fs::remove_file(search.root().join(name)).expect("removed");
    remove("artifacts/candidate_eval_0003.csv");
    remove("eval/0002/score.json");
    remove("context/0001/siblings.md");
    let both = ["eval 0002", "eval 0003", "node 0001"]
        .map(|of| (ValidationFaultKind::MissingFile, of.to_owned()));
    assert_eq!(search.found(), both);
}

/// A repository that lacks one commit.
struct CommitsWithout(&'static str);

impl CommitLookup for CommitsWithout {
    fn is_reachable(&self, reference: &str, _: &str) -> Result<bool, String> {
        Ok(reference != self.0)
    }
}

#[test]
fn node_commit_unreachable_is_found() {
    let search = FinishedSearch::new();
    let lacks = |name| search.with(|_| {}, CommitSource::Known(&CommitsWithout(name)));
    assert_eq!(
        lacks("tree/run/n0002"),
        [(ValidationFaultKind::UnreachableCommit, "node 0002".to_owned())]
    );
    assert_eq!(lacks("another"), []);
}

#[test]
fn baseline_outside_artifacts_is_found() {
    let search = FinishedSearch::new();
    let root = search.root();
    std::fs::copy(root.join("artifacts/root_baseline.csv"), root.join("b.csv")).expect("copied");
    let found = search.changed(|manifest| {
        let root = node(manifest, 0);
        root.baseline_results_csv_path = "b.csv".to_owned();
        root.baseline_provenance.copied_to_path = "b.csv".to_owned();
    });
    // The decisions made with it do not follow any more, either.
    assert!(
        found.contains(&(ValidationFaultKind::OutsideArtifacts, "node 0000".to_owned())),
        "{found:?}"
    );
    for path in ["/etc/passwd", "../secret", "artifacts/../../x"] {
        let found = search.changed(|manifest| {
            node(manifest, 0).baseline_results_csv_path = path.to_owned();
        });
        assert!(
            found.contains(&(ValidationFaultKind::BadPath, "node 0000".to_owned())),
            "{path} {found:?}"
        );
    }
}

#[test]
fn artifact_symlinked_outside_is_found() {
    let search = FinishedSearch::new();
    let path = search.root().join("artifacts/candidate_eval_0003.csv");
    std::fs::remove_file(&path).expect("removed");
    std::os::unix::fs::symlink("/etc/hostname", &path).expect("linked");
    assert_eq!(search.found(), [(ValidationFaultKind::BadPath, "eval 0003".to_owned())]);
}

#[test]
fn frontier_with_missing_node_is_found() {
    let search = FinishedSearch::new();
    let wanted = [(ValidationFaultKind::Frontier, "node 0006".to_owned())];
    let found = search.changed(|manifest| {
        manifest.state.frontier_node_ids.pop();
    });
    assert_eq!(found, wanted);
    let found = search.changed(|manifest| {
        let expanded = manifest.state.expanded_node_ids_by_depth.get_mut(&1).expect("there");
        expanded.push(NodeId(6));
    });
    assert_eq!(found, wanted, "twice");
    assert_eq!(search.changed(|m| node(m, 6).status = NodeStatus::Expanded), wanted);
}

#[test]
fn manifest_with_contradicting_nodes_or_counters_is_found() {
    let search = FinishedSearch::new();
    let changes: &[(&str, ManifestMutation)] = &[
        ("search", |manifest| manifest.state.next_eval_id = 3),
        ("search", |manifest| manifest.state.next_node_id = 3),
        ("search", |manifest| manifest.run_config.scoring_profile.clamp = 9.0),
        ("node 0002", |manifest| node(manifest, 2).commit = "other".into()),
        ("node 0002", |manifest| node(manifest, 2).parent_node_id = Some(NodeId(2))),
        ("node 0002", |manifest| node(manifest, 2).idea_chain.clear()),
        ("node 0002", |manifest| {
            let name = node(manifest, 1).ref_name.clone();
            node(manifest, 2).ref_name = name;
        }),
        ("eval 0005", |manifest| eval(manifest, 5).parent_node_id = NodeId(99)),
    ];
    for (subject, change) in changes {
        let found = search.changed(change);
        let wanted = (ValidationFaultKind::Structure, (*subject).to_owned());
        assert!(found.contains(&wanted), "{subject}: {found:?}");
    }
}

#[test]
fn decision_not_following_from_results_is_found() {
    let search = FinishedSearch::new();
    let wanted = |id: &str| [(ValidationFaultKind::Decision, format!("eval {id}"))];
    let found = search.changed(|manifest| {
        let decision = eval(manifest, 2).decision.as_mut().expect("decided");
        decision.promotion_reason = Some(Reason::BeyondBeam);
    });
    assert_eq!(found, wanted("0002"));
    let found = search.changed(|manifest| {
        let view = eval(manifest, 1).parent_relative.as_mut().expect("there");
        view.primary_delta = Some(-1.0);
    });
    assert!(found.contains(&wanted("0001")[0]), "{found:?}");
    assert_eq!(search.changed(|manifest| eval(manifest, 7).decision = None), wanted("0007"));
}

fn root_score(manifest: &mut SearchManifest) -> &mut f64 {
    let view = eval(manifest, 0).root_relative.as_mut().expect("there");
    &mut view.recommendation_summary.as_mut().expect("there").score
}

#[test]
fn score_not_matching_results_is_found() {
    let search = FinishedSearch::new();
    let mut manifest = search.directory.manifest().expect("there");
    manifest.run_config.dry_run = false;
    let column = manifest.run_config.scoring_profile.primary.column.clone();
    let write = |name: &str, value: f64| {
        let rows: String = (0..10).map(|n| format!("{n},ok,{value}\n")).collect();
        let text = format!("config_id,status,{column}\n{rows}");
        std::fs::write(search.root().join(name), text).expect("written");
    };
    let [baseline, results] = ["artifacts/root_baseline.csv", "artifacts/candidate_eval_0000.csv"];
    write(baseline, 3.0);
    write(results, 3.3);
    let [candidate, parent, root] = [results, baseline, baseline].map(|n| search.root().join(n));
    let scores =
        crate::workloads::search::driver::score(&crate::workloads::search::driver::SweepFiles {
            manifest: &manifest,
            eval: EvalId(0),
            directory: &search.directory,
            candidate: &candidate,
            parent: &parent,
            root: &root,
        })
        .expect("scored");
    let file = search.directory.eval(EvalId(0)).join("score.json");
    let document = serde_json::to_string(&scores.document()).expect("serializable");
    std::fs::write(&file, &document).expect("written");
    let first = eval(&mut manifest, 0);
    first.strict_completeness = scores.completeness;
    (first.parent_relative, first.root_relative) = (scores.parent, scores.root);
    let wrong = |change: ManifestMutation| {
        let mut manifest = manifest.clone();
        change(&mut manifest);
        let found = check(&search.directory, &manifest, CommitSource::Unknown);
        assert!(found.checked.scores.is_some_and(|scores| scores > 0));
        let of = |fault: &ValidationFault| {
            fault.kind == ValidationFaultKind::Score && fault.subject == "eval 0000"
        };
        found.faults.iter().filter(|fault| of(fault)).count()
    };
    assert_eq!(wrong(|_| {}), 0);
    let other = document.replace("\"baseline_mean\":3.0", "\"baseline_mean\":3.5");
    assert_ne!(other, document, "the file has the means");
    std::fs::write(&file, other).expect("written");
    assert_eq!(wrong(|_| {}), 1);
    std::fs::write(&file, document).expect("written");
    assert_eq!(wrong(|manifest| *root_score(manifest) += 1e-15), 0);
    assert_eq!(wrong(|manifest| *root_score(manifest) += 1e-9), 1);
    assert_eq!(wrong(|manifest| eval(manifest, 0).parent_relative = None), 1);
    let rows: ManifestMutation = |manifest| {
        eval(manifest, 0).strict_completeness.as_mut().expect("there").ok_count = 9;
    };
    assert_eq!(wrong(rows), 1);
    write(results, 3.4);
    // The scores against the parent and the root, and the file with both.
    assert_eq!(wrong(|_| {}), 3);
}

#[test]
fn checkout_missing_is_found() {
    let search = FinishedSearch::new();
    std::fs::remove_dir_all(search.root().join("wt/0006")).expect("removed");
    let found = || {
        let found = search.changed(|manifest| {
            manifest.run_config.dry_run = false;
            manifest.run_config.keep_rejected_worktrees = true;
            for (id, eval) in &mut manifest.evaluations {
                let decision = eval.decision.as_ref().expect("decided");
                let is_rejected = decision.promoted_to_node_id.is_none();
                let kept = is_rejected && eval.candidate_commit.is_some();
                eval.candidate_ref_name = kept.then(|| format!("tree/run/e{id}"));
                // A simulated eval has no logs.
                eval.experiment_dir = None;
            }
        });
        found
            .into_iter()
            .filter(|(kind, _)| *kind == ValidationFaultKind::MissingFile)
            .collect::<Vec<_>>()
    };
    let before = found();
    let is_missing = |of: &str| before.contains(&(ValidationFaultKind::MissingFile, of.to_owned()));
    assert!(is_missing("node 0006") && before.iter().any(|(_, of)| of.starts_with("eval ")));
    assert!(!is_missing("node 0001"), "it was expanded");
    for (_, of) in &before {
        let path = of.replace("node ", "wt/").replace("eval ", "cand/");
        std::fs::create_dir_all(search.root().join(path)).expect("made");
    }
    assert_eq!(found(), []);
}

#[test]
fn eval_file_contradicting_manifest_is_found() {
    let search = FinishedSearch::new();
    let changed = |name: &str, from: &str, to: &str| {
        let path = search.root().join(name);
        let before = std::fs::read_to_string(&path).expect(name);
        assert!(before.contains(from), "{name} has no {from}: {before}");
        std::fs::write(&path, before.replacen(from, to, 1)).expect("written");
        let found = search.found();
        std::fs::write(&path, before).expect("written");
        found
    };
    let (other, damaged) = (ValidationFaultKind::ChangedFile, ValidationFaultKind::UnreadableFile);
    for (name, from, to, kind) in [
        ("eval/0000/eval_result.json", "\"attempt\": 1", "\"attempt\": 7", other),
        ("eval/0000/eval_result.json", "\"round\": 0", "\"round\": 3", other),
        ("eval/0000/eval_result.json", "{", "[", damaged),
        ("eval/0000/score.json", "0.02", "0.03", other),
        ("eval/0000/score.json", "{", "", damaged),
    ] {
        let found = changed(name, from, to);
        assert!(found.contains(&(kind, "eval 0000".to_owned())), "{name} {from}: {found:?}");
    }
    let found = changed("node_ideas/0000/idea-000.md", "same", "other");
    let both = [(other, "eval 0000".to_owned()), (other, "node 0000".to_owned())];
    assert!(both.iter().all(|fault| found.contains(fault)), "{found:?}");
    std::fs::remove_dir_all(search.root().join("eval/0000/attempt-1")).expect("removed");
    assert_eq!(search.found(), [(ValidationFaultKind::MissingFile, "eval 0000".to_owned())]);
}
