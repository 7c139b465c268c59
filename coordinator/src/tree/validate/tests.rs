use super::*;
use crate::tree::ids::{EvalId, NodeId};
use crate::tree::manifest::{NodeStatus, Provenance, Reason};
use crate::tree::run::play::finished;

/// What a search is after a change, by kind and subject.
fn faults(
    change: impl FnOnce(&std::path::Path, &mut Manifest),
    repository: Repository<'_>,
) -> Vec<(FaultKind, String)> {
    let (keep, directory) = finished();
    let mut manifest = directory.manifest().expect("there");
    change(directory.root(), &mut manifest);
    let validation = check(&directory, &manifest, repository).expect("readable");
    drop(keep);
    validation.faults.into_iter().map(|fault| (fault.kind, fault.subject)).collect()
}

fn changed(change: impl FnOnce(&std::path::Path, &mut Manifest)) -> Vec<(FaultKind, String)> {
    faults(change, Repository::Unknown)
}

fn node(manifest: &mut Manifest, id: u32) -> &mut crate::tree::manifest::Node {
    manifest.nodes.get_mut(&NodeId(id)).expect("there")
}

fn eval(manifest: &mut Manifest, id: u32) -> &mut crate::tree::manifest::Eval {
    manifest.evaluations.get_mut(&EvalId(id)).expect("there")
}

#[test]
fn a_search_as_it_was_left_is_sound() {
    let (_keep, directory) = finished();
    let manifest = directory.manifest().expect("there");
    let validation = check(&directory, &manifest, Repository::Unknown).expect("readable");
    assert_eq!(validation.faults, []);
    let checked = &validation.checked;
    assert!(checked.digests > 15 && checked.decisions == 20 && checked.commits.is_none());
    validation.write(&directory).expect("written");
    let read = |name| std::fs::read_to_string(directory.root().join(name)).expect("there");
    assert!(read("VALIDATION_REPORT.md").contains("Nothing is wrong"));
    assert!(read("VALIDATION_REPORT.md").contains("no repository was asked"));
    assert!(read("VALIDATION_REPORT.json").contains("\"faults\": []"));
}

#[test]
fn a_changed_byte_of_an_artifact_is_found() {
    let found = changed(|root, _| {
        let path = root.join("artifacts/candidate_eval_0000.csv");
        let mut bytes = std::fs::read(&path).expect("there");
        bytes[3] ^= 1;
        std::fs::write(&path, bytes).expect("written");
    });
    let both = ["eval 0000", "node 0001"].map(|of| (FaultKind::ChangedFile, of.to_owned()));
    assert_eq!(found, both);
}

#[test]
fn a_missing_artifact_is_found() {
    let found = changed(|root, _| {
        std::fs::remove_file(root.join("artifacts/candidate_eval_0003.csv")).expect("removed");
    });
    assert_eq!(found, [(FaultKind::MissingFile, "eval 0003".to_owned())]);
    let found = changed(|root, _| {
        std::fs::remove_file(root.join("eval/0002/score.json")).expect("removed");
    });
    assert_eq!(found, [(FaultKind::MissingFile, "eval 0002".to_owned())]);
}

/// A repository that lacks one commit.
struct Without(&'static str);

impl Commits for Without {
    fn is_reachable(&self, reference: &str, _: &str) -> Result<bool, String> {
        Ok(reference != self.0)
    }
}

#[test]
fn an_unreachable_commit_of_a_node_is_found() {
    let found = faults(|_, _| {}, Repository::Known(&Without("tree/run/n0002")));
    assert_eq!(found, [(FaultKind::UnreachableCommit, "node 0002".to_owned())]);
    assert_eq!(faults(|_, _| {}, Repository::Known(&Without("another"))), []);
}

#[test]
fn a_baseline_outside_of_the_artifacts_is_found() {
    let found = changed(|root, manifest| {
        std::fs::copy(root.join("artifacts/root_baseline.csv"), root.join("b.csv"))
            .expect("copied");
        let sha256 = manifest.root.root_baseline_provenance.sha256.clone();
        let root = node(manifest, 0);
        root.baseline_results_csv_path = "b.csv".to_owned();
        root.baseline_provenance =
            Provenance { source_path: String::new(), copied_to_path: "b.csv".to_owned(), sha256 };
    });
    assert!(found.contains(&(FaultKind::OutsideArtifacts, "node 0000".to_owned())), "{found:?}");
    for path in ["/etc/passwd", "../secret", "artifacts/../../x"] {
        let found = changed(|_, manifest| {
            node(manifest, 0).baseline_results_csv_path = path.to_owned();
        });
        assert!(found.contains(&(FaultKind::BadPath, "node 0000".to_owned())), "{path} {found:?}");
    }
}

#[test]
fn an_artifact_that_leads_elsewhere_is_found() {
    let found = changed(|root, _| {
        let path = root.join("artifacts/candidate_eval_0003.csv");
        std::fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink("/etc/hostname", &path).expect("linked");
    });
    assert_eq!(found, [(FaultKind::BadPath, "eval 0003".to_owned())]);
}

#[test]
fn a_hole_in_the_frontier_is_found() {
    let found = changed(|_, manifest| {
        manifest.state.frontier_node_ids.pop();
    });
    assert_eq!(found, [(FaultKind::Frontier, "node 0006".to_owned())]);
    let found = changed(|_, manifest| {
        let expanded = manifest.state.expanded_node_ids_by_depth.get_mut(&1).expect("there");
        expanded.push(NodeId(6));
    });
    assert_eq!(found, [(FaultKind::Frontier, "node 0006".to_owned())], "twice");
    let found = changed(|_, manifest| node(manifest, 6).status = NodeStatus::Expanded);
    assert_eq!(found, [(FaultKind::Frontier, "node 0006".to_owned())]);
}

#[test]
fn nodes_and_counters_that_contradict_each_other_are_found() {
    let structure = |found: Vec<(FaultKind, String)>, subject: &str| {
        let wanted = (FaultKind::Structure, subject.to_owned());
        assert!(found.contains(&wanted), "{subject}: {found:?}");
    };
    structure(changed(|_, manifest| manifest.state.next_eval_id = 3), "search");
    structure(changed(|_, manifest| manifest.state.next_node_id = 3), "search");
    structure(changed(|_, manifest| node(manifest, 2).commit = "other".into()), "node 0002");
    structure(
        changed(|_, manifest| node(manifest, 2).parent_node_id = Some(NodeId(2))),
        "node 0002",
    );
    structure(changed(|_, manifest| node(manifest, 2).idea_chain.clear()), "node 0002");
    structure(changed(|_, manifest| eval(manifest, 5).parent_node_id = NodeId(99)), "eval 0005");
    structure(changed(|_, m| m.run_config.scoring_profile.clamp = 9.0), "search");
    structure(
        changed(|_, manifest| {
            let name = node(manifest, 1).ref_name.clone();
            node(manifest, 2).ref_name = name;
        }),
        "node 0002",
    );
}

#[test]
fn decisions_that_do_not_follow_are_found() {
    let decision = |change: fn(&mut Manifest)| changed(|_, manifest| change(manifest));
    let wanted = |id: &str| [(FaultKind::Decision, format!("eval {id}"))];
    let found = decision(|manifest| {
        let decision = eval(manifest, 2).decision.as_mut().expect("decided");
        decision.promotion_reason = Some(Reason::BeyondBeam);
    });
    assert_eq!(found, wanted("0002"));
    let found = decision(|manifest| {
        let view = eval(manifest, 1).parent_relative.as_mut().expect("there");
        view.primary_delta = Some(-1.0);
    });
    assert!(found.contains(&wanted("0001")[0]), "{found:?}");
    let found = decision(|manifest| eval(manifest, 7).decision = None);
    assert_eq!(found, wanted("0007"));
}
