//! Artifacts, and the hooks before their collection.

use rollout_base::secrets::TrialVariables;
use rollout_environment::FailureKind;
use rollout_environment::fake::{FakeCall, FaultEffect, FaultTrigger};
use rollout_protocol::record::{ArtifactKind, ArtifactRecord, ArtifactStatus, TrialRecord};
use rollout_protocol::spec::task::{Artifact, CollectHook};

use super::super::testing::TrialFixture;
use super::{archive, error, error_summary, run, secondary_codes};
use crate::executor::{FileRole, Finished};

pub(super) fn artifact(source: &str) -> Artifact {
    Artifact {
        source: source.into(),
        destination: None,
        exclude: Vec::new(),
        service: None,
        changes: false,
        artifact_type: rollout_protocol::artifact::ArtifactType::default(),
    }
}

fn hook(command: &str, service: Option<&str>) -> CollectHook {
    let service = service.map(str::to_owned);
    CollectHook { command: command.into(), service, timeout_sec: 10.0, user: None }
}

/// Names and contents of a kept artifact.
pub(super) fn kept(finished: &Finished<TrialRecord>, source: &str) -> Vec<(String, String)> {
    let index = finished.record.artifacts.iter().position(|record| record.source == source);
    let index = index.unwrap_or_else(|| panic!("no {source} in {:?}", finished.record.artifacts));
    let wanted = |role: &FileRole| *role == FileRole::Artifact { index };
    let members = archive(finished, wanted).unwrap_or_default();
    let text = |bytes| String::from_utf8(bytes).expect("text");
    members.into_iter().map(|(name, content)| (name, text(content))).collect()
}

fn summary(record: &ArtifactRecord) -> (&str, ArtifactStatus, Option<ArtifactKind>) {
    (&record.path, record.status, record.kind)
}

fn pairs(files: &[(&str, &str)]) -> Vec<(String, String)> {
    files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

#[tokio::test]
async fn artifacts_are_collected_between_agent_and_verifier() {
    use ArtifactKind::{Directory, File};
    use ArtifactStatus::{Empty, Failed, Ok, Skipped};
    let mut rig = TrialFixture::new().await;
    rig.use_harbor_format();
    rig.variables = TrialVariables::new([("KEY".to_owned(), "hunter2hunter2".to_owned())]);
    rig.agent.env.insert("KEY".into(), rollout_protocol::template::Template::new("${KEY}"));
    rig.set_scripts(
        None,
        Some(
            "echo $KEY > /app/one.txt; mkdir -p /app/tree/cache; echo k > /app/tree/k.txt
            echo d > /app/tree/cache/d; mkdir /app/empty; ln -s /etc/passwd /app/link
            ln -s /etc/passwd /app/tree/out; echo x > /logs/artifacts/extra.txt",
        ),
    );
    rig.set_tests("echo late > /app/one.txt; echo 1 > /logs/verifier/reward.txt").await;
    let tree = Artifact {
        exclude: vec!["cache".into()],
        destination: Some("deep/tree".into()),
        ..artifact("/app/tree")
    };
    rig.task.steps[0].artifacts = vec![artifact("/app/one.txt"), tree, artifact("/app/empty")];
    rig.settings.artifacts = vec![
        artifact("/app/absent"),
        artifact("/app/link"),
        Artifact { service: Some("db".into()), ..artifact("/var/x") },
    ];
    let finished = run(&rig).await;
    assert!(finished.record.verdict.passed());
    let found: Vec<_> = finished.record.artifacts.iter().map(summary).collect();
    let expected = [
        ("artifacts/logs/artifacts", Ok, Some(Directory)),
        ("artifacts/app/one.txt", Ok, Some(File)),
        ("artifacts/deep/tree", Ok, Some(Directory)),
        ("artifacts/app/empty", Empty, Some(Directory)),
        ("artifacts/app/absent", Skipped, None),
        ("artifacts/app/link", Failed, None),
        ("artifacts/var/x", Failed, None),
    ];
    assert_eq!(found, expected);
    assert_eq!(kept(&finished, "/logs/artifacts"), pairs(&[("extra.txt", "x\n")]));
    assert_eq!(kept(&finished, "/app/one.txt"), pairs(&[("one.txt", "hunter2hunter2\n")]));
    assert_eq!(finished.record.artifacts[1].possible_secrets, ["KEY"]);
    assert_eq!(kept(&finished, "/app/tree"), pairs(&[("k.txt", "k\n")]));
    assert!(finished.record.artifacts[6].error.as_deref().is_some_and(|e| e.contains("`db`")));
    assert_eq!(secondary_codes(&finished.record), Vec::<&str>::new());
}

#[tokio::test]
async fn artifacts_not_configured_cause_no_copy_call() {
    let rig = TrialFixture::new().await;
    let reads = |rig: &TrialFixture| {
        rig.provider.calls().iter().filter(|c| **c == FakeCall::CopyFrom).count()
    };
    assert!(run(&rig).await.record.artifacts.is_empty());
    assert_eq!(reads(&rig), 1);
    let mut rig = TrialFixture::new().await;
    rig.use_harbor_format();
    assert!(run(&rig).await.record.artifacts.is_empty(), "an empty directory is none");
    assert_eq!(reads(&rig), 2);
}

#[tokio::test]
async fn artifacts_of_failed_agent_are_kept() {
    let mut rig = TrialFixture::new().await;
    rig.settings.artifacts = vec![artifact("/app/x")];
    rig.set_scripts(None, Some("echo x > /app/x; exit 1"));
    let finished = run(&rig).await;
    assert_eq!(finished.record.verdict.reward, None);
    assert_eq!(kept(&finished, "/app/x"), pairs(&[("x", "x\n")]));
}

#[tokio::test(start_paused = true)]
async fn collect_hook_failure_is_error_beside_the_reward() {
    let mut rig = TrialFixture::new().await;
    rig.provider.add_service("db");
    rig.set_scripts(None, Some("background server"));
    rig.task.steps[0].verifier.collect = vec![
        hook("alive server; echo a > /app/a", None),
        hook("echo b > /b; test -e /app/a", Some("db")),
        hook("exit 4", None),
        hook("true", Some("none")),
    ];
    rig.task.steps[0].artifacts =
        vec![artifact("/app/a"), Artifact { service: Some("db".into()), ..artifact("/b") }];
    let finished = run(&rig).await;
    assert!(finished.record.verdict.passed());
    assert_eq!(kept(&finished, "/app/a"), pairs(&[("a", "a\n")]));
    assert_eq!(kept(&finished, "/b"), pairs(&[("b", "b\n")]));
    let expected = "verifier_failed collection_failed task permanent";
    assert_eq!(error_summary(error(&finished)), expected);
    let failed: Vec<_> =
        finished.record.secondary_errors.iter().map(|e| e.message.as_str()).collect();
    assert_eq!(secondary_codes(&finished.record), ["collection_failed"; 2], "{failed:?}");
    assert!(
        failed[0].ends_with("ended with code 4") && failed[1].contains("no such service"),
        "{failed:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn collect_hook_timeout_gives_error_and_no_reward() {
    let mut rig = TrialFixture::new().await;
    rig.set_scripts(None, Some("background server"));
    rig.task.steps[0].verifier.collect = vec![hook("sleep 100", None)];
    let finished = run(&rig).await;
    assert_eq!(finished.record.verdict.reward, None);
    let error = finished.record.verdict.error.as_ref().expect("an error");
    assert!(error.message.contains("10s"), "{error}");
}

/// A fixture whose agent has these variables, of which `secrets` are declared.
async fn with_variables(variables: &[(&str, &str)], secrets: &[&str]) -> TrialFixture {
    let mut rig = TrialFixture::new().await;
    let owned = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    rig.variables = TrialVariables::new(owned);
    for (name, _) in variables {
        let template = rollout_protocol::template::Template::new(format!("${{{name}}}"));
        rig.agent.env.insert((*name).to_owned(), template);
    }
    rig.settings.secrets = secrets.iter().map(|name| (*name).to_owned()).collect();
    rig
}

#[tokio::test]
async fn artifact_with_declared_secret_is_left_out_with_reason() {
    let mut rig = with_variables(&[("PIN", "s3cret-value")], &["PIN"]).await;
    rig.settings.artifacts = vec![artifact("/app/x"), artifact("/app/tree")];
    rig.set_scripts(
        None,
        Some(
            "echo s3cret-value > /app/x; mkdir /app/tree; echo a > /app/tree/a
            echo 1 $PIN > /app/tree/b; ln -s s3cret-value /app/tree/c; echo d > /app/tree/$PIN",
        ),
    );
    let finished = run(&rig).await;
    let [alone, tree] = &finished.record.artifacts[..] else { panic!("{finished:?}") };
    assert_eq!((alone.status, &alone.archive), (ArtifactStatus::Failed, &None));
    let reason = "1 entries were left out: they hold the value of PIN";
    assert_eq!(alone.error.as_deref(), Some(reason));
    assert_eq!(tree.status, ArtifactStatus::Ok);
    assert!(tree.error.as_deref().is_some_and(|e| e.starts_with("3 entries")), "{tree:?}");
    assert_eq!(kept(&finished, "/app/tree"), pairs(&[("a", "a\n")]));
    // No separate verifier needs the original archives.
    for made in ["scratch/artifacts/0.made.tar", "scratch/artifacts/1.made.tar"] {
        assert!(!rig.dir.path().join(made).exists(), "{made} is left");
    }
}

#[tokio::test]
async fn artifact_with_value_that_looks_secret_is_kept_and_flagged() {
    let values = [("SEED", "1234"), ("ON", "true"), ("HF_TOKEN", "hunter2hunter2")];
    let mut rig = with_variables(&values, &[]).await;
    rig.settings.artifacts = vec![artifact("/app/x"), artifact("/app/m.json")];
    let metrics = r#"{"loss": 0.1234, "ok": true}"#;
    rig.set_scripts(
        None,
        Some(&format!(
            "echo $HF_TOKEN > /app/x; echo '{metrics}' > /app/m.json; cat /app/m.json; cat /app/x"
        )),
    );
    let finished = run(&rig).await;
    assert_eq!(kept(&finished, "/app/x"), pairs(&[("x", "hunter2hunter2\n")]));
    assert_eq!(kept(&finished, "/app/m.json"), pairs(&[("m.json", &format!("{metrics}\n"))]));
    let flags: Vec<_> = finished.record.artifacts.iter().map(|a| &a.possible_secrets[..]).collect();
    assert_eq!(flags, [&["HF_TOKEN".to_owned()][..], &[]]);
    let shown = super::output(&finished, "command/stdout.txt");
    assert_eq!(shown, format!("{metrics}\n[redacted:HF_TOKEN]\n"));
}

#[tokio::test]
async fn artifact_copy_failure_does_not_fail_trial() {
    let mut rig = TrialFixture::new().await;
    rig.settings.artifacts = vec![artifact("/app/x"), artifact("/app/y")];
    rig.set_scripts(None, Some("echo x > /app/x; echo y > /app/y"));
    rig.provider
        .fault(FaultTrigger::Nth(FakeCall::CopyFrom, 0), FaultEffect::Fail(FailureKind::Service));
    let finished = run(&rig).await;
    assert!(finished.record.verdict.passed());
    let statuses = finished.record.artifacts.iter().map(|record| record.status);
    assert!(statuses.eq([ArtifactStatus::Failed, ArtifactStatus::Ok]));
}
