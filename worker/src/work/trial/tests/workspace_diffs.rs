//! Artifacts that are the changes of a directory.

use std::collections::BTreeMap;
use std::io::Read as _;

use rollout_environment::FailureKind;
use rollout_environment::fake::{FakeCall, FaultEffect, FaultTrigger};
use rollout_protocol::artifact::ArtifactType;
use rollout_protocol::record::{ArtifactKind, ArtifactStatus, TrialRecord};
use rollout_protocol::spec::task::{Artifact, CollectHook};
use rollout_protocol::workspace_diff::{
    CHANGES_FILE, ChangeKind, FILES_ARCHIVE, PATCH_FILE, WorkspaceDiff,
};

use super::super::testing::TrialFixture;
use super::artifacts::{artifact, kept};
use super::{archive, run, secondary_codes};
use crate::executor::{FileRole, Finished};

const PASSES: &str = "echo 1 > /logs/verifier/reward.txt";

fn changes_of(directory: &str) -> Artifact {
    let artifact_type = ArtifactType::WorkspaceDiff;
    Artifact { changes: true, artifact_type, ..artifact(directory) }
}

/// The files of the artifact with this path.
fn parts(finished: &Finished<TrialRecord>, path: &str) -> BTreeMap<String, Vec<u8>> {
    let index = finished.record.artifacts.iter().position(|record| record.path == path);
    let index = index.unwrap_or_else(|| panic!("no {path} in {:?}", finished.record.artifacts));
    let wanted = |role: &FileRole| *role == FileRole::Artifact { index };
    archive(finished, wanted).expect("an archive").into_iter().collect()
}

fn document(finished: &Finished<TrialRecord>, path: &str) -> WorkspaceDiff {
    serde_json::from_slice(&parts(finished, path)[CHANGES_FILE]).expect("a document")
}

fn kinds(diff: &WorkspaceDiff) -> Vec<(&str, ChangeKind)> {
    diff.changes.iter().map(|change| (change.path.as_str(), change.change)).collect()
}

#[tokio::test]
async fn changes_are_those_of_the_agent_alone() {
    let mut rig = TrialFixture::new().await;
    rig.set_scripts(
        Some("mkdir -p /app/src; echo one > /app/src/a; echo gone > /app/gone; echo k > /app/k"),
        Some("echo two > /app/src/a; rm /app/gone; echo new > /app/new; echo x > /elsewhere"),
    );
    let hook = "echo h > /app/hook".to_owned();
    let hook = CollectHook { command: hook, service: None, timeout_sec: 10.0, user: None };
    rig.task.steps[0].verifier.collect = vec![hook];
    rig.set_tests(&format!("cat /app/new; echo t > /app/test; {PASSES}")).await;
    rig.settings.artifacts = vec![changes_of("/app"), artifact("/app/new")];
    let finished = run(&rig).await;
    assert!(finished.record.verdict.passed(), "{:?}", finished.record.verdict);
    let record = &finished.record.artifacts[0];
    assert_eq!(record.path, "artifacts/workspace-diff/app");
    assert_eq!((record.status, record.kind), (ArtifactStatus::Ok, Some(ArtifactKind::Directory)));
    assert_eq!((record.artifact_type, &record.error), (ArtifactType::WorkspaceDiff, &None));
    let parts = parts(&finished, &record.path);
    let diff = document(&finished, &record.path);
    use ChangeKind::{Added, Deleted, Modified};
    assert_eq!(kinds(&diff), [("gone", Deleted), ("new", Added), ("src/a", Modified)]);
    assert_eq!((diff.directory.as_str(), diff.truncated), ("/app", false));
    let patch = String::from_utf8_lossy(&parts[PATCH_FILE]);
    assert!(patch.contains("\n-one\n+two\n"), "{patch}");
    let mut files = tar::Archive::new(parts[FILES_ARCHIVE].as_slice());
    let mut contents = Vec::new();
    for file in files.entries().expect("an archive") {
        file.expect("a file").read_to_end(&mut contents).expect("read");
    }
    assert_eq!(contents, b"new\ntwo\n");
    let plain = kept(&finished, "/app/new");
    assert_eq!(plain, [("new".to_owned(), "new\n".to_owned())], "others are still collected");
}

#[tokio::test]
async fn changes_of_each_step_begin_after_its_setup() {
    let mut rig = TrialFixture::new().await;
    let tests = format!("echo t > /app/tested; {PASSES}");
    rig.set_steps(&[
        ("one", "echo 1 > /app/first", &tests),
        ("two", "echo 2 > /app/second; rm /app/first", &tests),
    ])
    .await;
    rig.settings.artifacts = vec![changes_of("/app")];
    let finished = run(&rig).await;
    assert!(finished.record.verdict.passed(), "{:?}", finished.record.verdict);
    let diff =
        |step: &str| document(&finished, &format!("steps/{step}/artifacts/workspace-diff/app"));
    use ChangeKind::{Added, Deleted};
    assert_eq!(kinds(&diff("one")), [("first", Added)]);
    assert_eq!(kinds(&diff("two")), [("first", Deleted), ("second", Added)]);
}

#[tokio::test]
async fn changes_of_failed_agent_are_kept() {
    let mut rig = TrialFixture::new().await;
    rig.settings.artifacts = vec![changes_of("/app")];
    rig.set_scripts(None, Some("echo x > /app/x; exit 1"));
    let finished = run(&rig).await;
    assert_eq!(finished.record.verdict.reward, None);
    let diff = document(&finished, "artifacts/workspace-diff/app");
    assert_eq!(kinds(&diff), [("x", ChangeKind::Added)]);
}

#[tokio::test]
async fn changes_that_cannot_be_read_do_not_fail_trial() {
    for call in [0, 1] {
        let mut rig = TrialFixture::new().await;
        rig.settings.artifacts = vec![changes_of("/app")];
        rig.set_scripts(None, Some("echo x > /app/x"));
        let fault = FaultTrigger::Nth(FakeCall::CopyFrom, call);
        rig.provider.fault(fault, FaultEffect::Fail(FailureKind::Service));
        let finished = run(&rig).await;
        assert!(finished.record.verdict.passed(), "{call}: {:?}", finished.record.verdict);
        assert_eq!(secondary_codes(&finished.record), Vec::<&str>::new());
        let [record] = &finished.record.artifacts[..] else { panic!("{:?}", finished.record) };
        let stage = ["before the agent", "after the agent"][call];
        assert_eq!(record.status, ArtifactStatus::Failed);
        assert!(record.error.as_deref().is_some_and(|e| e.starts_with(stage)), "{record:?}");
    }
}

#[tokio::test]
async fn changes_of_missing_directory_or_file_have_no_archive() {
    let mut rig = TrialFixture::new().await;
    rig.settings.artifacts =
        vec![changes_of("/absent"), changes_of("/app/file"), changes_of("/new")];
    rig.set_scripts(Some("echo x > /app/file"), Some("mkdir /new; echo x > /new/x"));
    let finished = run(&rig).await;
    assert!(finished.record.verdict.passed());
    let statuses = finished.record.artifacts.iter().map(|record| record.status);
    use ArtifactStatus::{Failed, Ok, Skipped};
    assert_eq!(statuses.collect::<Vec<_>>(), [Skipped, Failed, Ok]);
    let why = finished.record.artifacts[1].error.as_deref();
    assert_eq!(why, Some("before the agent: it is not a directory"));
    let diff = document(&finished, "artifacts/workspace-diff/new");
    assert_eq!(kinds(&diff), [("x", ChangeKind::Added)]);
}

#[tokio::test]
async fn separate_verifier_gets_no_changes() {
    let mut rig = TrialFixture::new().await;
    rig.use_harbor_format();
    rig.verify_separately();
    rig.set_scripts(None, Some("echo x > /app/x; echo 42 > /app/answer.txt"));
    let diff = Artifact { destination: Some("diff".into()), ..changes_of("/app") };
    rig.task.steps[0].artifacts = vec![diff, artifact("/app/answer.txt")];
    rig.set_tests(&format!("cat /app/answer.txt; {PASSES}")).await;
    let finished = run(&rig).await;
    assert!(finished.record.verdict.passed(), "{:?}", finished.record.verdict);
    assert_eq!(document(&finished, "artifacts/diff").counts.added, 2);
    rig.set_tests(&format!("cat /app/x; {PASSES}")).await;
    let finished = run(&rig).await;
    assert!(!finished.record.verdict.passed(), "only artifacts are there");
}

#[tokio::test]
async fn changes_asked_for_twice_are_computed_once() {
    let mut rig = TrialFixture::new().await;
    rig.task.steps[0].artifacts = vec![changes_of("/app")];
    rig.settings.artifacts = vec![changes_of("/app")];
    assert_eq!(run(&rig).await.record.artifacts.len(), 1);
}
