//! Tests of plans: ordinals against a plain enumeration, digests, documents, differences.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rollout_protocol::spec::agent::{AgentKind, AgentLimits, AgentTaskOptions};
use rollout_protocol::spec::environment::{
    DockerSettings, EnvironmentRates, EnvironmentSpec, PreservePolicy, ProcessSettings,
    ProviderSpec,
};
use rollout_protocol::spec::guardrail::Guardrail;
use rollout_protocol::spec::settings::VerifierSettings;
use rollout_protocol::template::Template;
use rollout_protocol::wire::offer::SizeClass;

use super::*;
use crate::sources::datasets::formats;

fn settings() -> TrialSettings {
    TrialSettings {
        instruction_path: "/tmp/instruction.md".to_owned(),
        environment: EnvironmentSpec {
            provider: ProviderSpec::Docker(DockerSettings::default()),
            force_build: false,
            preserve_env: PreservePolicy::Never,
            rates: EnvironmentRates::default(),
        },
        verifier: VerifierSettings::default(),
        artifacts: Vec::new(),
        extra_instructions: Vec::new(),
        compose_overlays: Vec::new(),
        install_only: false,
        gateway: None,
        budget: None,
        secrets: BTreeSet::new(),
    }
}

fn agent(name: &str) -> AgentSpec {
    AgentSpec {
        name: name.to_owned(),
        kind: AgentKind::Nop,
        env: BTreeMap::new(),
        limits: AgentLimits::default(),
        install_once: false,
        model: None,
        task_options: AgentTaskOptions::default(),
        session_calls: None,
    }
}

fn task(dataset: &str, name: &str, content: &str) -> PlannedTask {
    PlannedTask {
        dataset: dataset.to_owned(),
        name: name.to_owned(),
        spec: Digest::sha256(content.as_bytes()),
        git_commit_id: None,
        files: Digest::sha256(content.as_bytes()),
        rules: Digest::sha256(b"rules"),
        class: SizeClass::default(),
        resources: Resources::default(),
        variables: BTreeSet::new(),
        format: None,
        format_guessed: false,
        about: TaskMetadata::default(),
    }
}

/// `agents` agents over tasks `a0`, `a1`, … of `a` and `b0`, … of `b`.
pub(super) fn plan(agents: usize, a: usize, b: usize, n_attempts: u32) -> JobPlan {
    let agents = (0..agents).map(|n| agent(&format!("agent{n}"))).collect();
    let tasks = |dataset: &'static str, count: usize| {
        (0..count).map(move |n| task(dataset, &format!("{dataset}{n}"), "x"))
    };
    let tasks = tasks("a", a).chain(tasks("b", b)).collect();
    JobPlan::new(settings(), agents, tasks, n_attempts).expect("a plan")
}

fn document_of(plan: &JobPlan) -> PlanDocument {
    let text = serde_json::to_string(&PlanDocument::from(plan)).expect("serializable");
    serde_json::from_str(&text).expect("valid")
}

proptest! {
    #[test]
    fn plan_ordinals_and_items_are_unique_and_ordered_by_task(agents in 1usize..4, a in 0usize..4, b in 0usize..4, n in 1u32..4) {
        let plan = plan(agents, a, b, n);
        let mut expected = Vec::new();
        for agent in plan.agents() {
            for task in plan.tasks() {
                for attempt in 1..=n {
                    expected.push(TrialName {
                        agent: agent.spec.name.clone(),
                        dataset: task.dataset.clone(),
                        task: task.name.clone(),
                        attempt,
                    });
                }
            }
        }
        prop_assert_eq!(plan.len(), expected.len() as u64);
        prop_assert_eq!(plan.trial(plan.len()), None);
        let trials: Vec<PlannedTrial> = plan.trials().collect();
        let names: Vec<TrialName> = trials.iter().map(|t| t.name.clone()).collect();
        prop_assert_eq!(&names, &expected);
        let items: BTreeSet<ItemId> = trials.iter().map(|t| t.item).collect();
        prop_assert_eq!(items.len(), trials.len());
        for trial in &trials {
            prop_assert_eq!(plan.ordinal(&trial.name), Some(trial.ordinal));
            prop_assert_eq!(trial.item, trial.name.item());
            prop_assert_eq!(&plan.tasks()[trial.task].name, &trial.name.task);
        }
        let order: Vec<u64> = plan.dispatch_order().collect();
        let distinct: BTreeSet<u64> = order.iter().copied().collect();
        prop_assert_eq!(distinct, (0..plan.len()).collect::<BTreeSet<_>>());
        let tasks: Vec<usize> = order.iter().map(|o| trials[*o as usize].task).collect();
        prop_assert!(tasks.is_sorted(), "task by task");
    }

    #[test]
    fn plan_document_reads_back_as_same_plan(agents in 1usize..4, a in 0usize..4, n in 1u32..4) {
        let plan = plan(agents, a, 1, n);
        let again = JobPlan::try_from(document_of(&plan)).expect("valid");
        prop_assert_eq!(again.digest(), plan.digest());
        prop_assert!(again.trials().eq(plan.trials()));
        prop_assert!(compare(&plan, &again).is_empty());
    }
}

#[test]
fn plan_ordinal_of_unknown_trial_is_none() {
    let plan = plan(1, 1, 0, 2);
    let name = |agent: &str, task: &str, attempt| TrialName {
        agent: agent.to_owned(),
        dataset: "a".to_owned(),
        task: task.to_owned(),
        attempt,
    };
    assert_eq!(plan.ordinal(&name("agent0", "a0", 2)), Some(1));
    for missing in [
        name("other", "a0", 1),
        name("agent0", "a1", 1),
        name("agent0", "a0", 0),
        name("agent0", "a0", 3),
    ] {
        assert_eq!(plan.ordinal(&missing), None, "{missing}");
    }
}

#[test]
fn plan_digest_depends_on_content_not_order() {
    let agents = || vec![agent("x"), agent("y")];
    let tasks = || vec![task("d", "1", "p"), task("d", "2", "q")];
    let new = |agents, tasks, n| JobPlan::new(settings(), agents, tasks, n).expect("a plan");
    let digest = |agents, tasks, n| new(agents, tasks, n).digest();
    let base = digest(agents(), tasks(), 1);
    let reversed = (agents().into_iter().rev().collect(), tasks().into_iter().rev().collect());
    assert_eq!(digest(reversed.0, reversed.1, 1), base);
    assert_ne!(digest(agents(), tasks(), 2), base);
    assert_ne!(digest(vec![agent("x")], tasks(), 1), base);
    assert_ne!(digest(agents(), vec![task("d", "1", "p"), task("d", "2", "r")], 1), base);
    let mut other = settings();
    other.verifier.disable = true;
    assert_ne!(JobPlan::new(other, agents(), tasks(), 1).expect("a plan").digest(), base);
}

#[test]
fn plan_with_duplicates_or_too_many_trials_is_refused() {
    let twice = vec![task("d", "1", "p"), task("d", "1", "q")];
    let error = JobPlan::new(settings(), vec![agent("x")], twice, 1).expect_err("a duplicate");
    assert_eq!(error, JobPlanError::Duplicate { what: "the task `d/1`".to_owned() });
    let agents = vec![agent("x"), agent("x")];
    assert!(JobPlan::new(settings(), agents, vec![], 1).is_err());
    let tasks: Vec<_> = (0..2).map(|n| task("d", &n.to_string(), "p")).collect();
    let error = JobPlan::new(settings(), vec![agent("x")], tasks, 5_000_001);
    assert!(matches!(error, Err(JobPlanError::TooManyTrials { .. })));
}

#[test]
fn guardrails_are_in_document_and_in_no_digest() {
    let plain = plan(1, 1, 0, 1);
    let guardrails = vec![Guardrail { metric_id: "cost_usd".to_owned(), max: Some(2.5) }];
    let bounded = plain.clone().with_guardrails(guardrails.clone());
    assert_eq!(bounded.digest(), plain.digest());
    let read = JobPlan::try_from(document_of(&bounded)).expect("a plan");
    assert_eq!((read.guardrails(), plain.guardrails()), (&guardrails[..], &[][..]));
    let mut damaged = document_of(&bounded);
    damaged.guardrails[0].max = None;
    assert!(matches!(JobPlan::try_from(damaged), Err(JobPlanError::Damaged { .. })));
}

#[test]
fn plan_document_damaged_or_newer_is_refused() {
    let plan = plan(1, 2, 0, 1);
    let mut damaged = document_of(&plan);
    damaged.tasks[0].files = Digest::sha256(b"other");
    assert!(matches!(JobPlan::try_from(damaged), Err(JobPlanError::Damaged { .. })));
    // The plan's own digest omits it.
    let mut damaged = document_of(&plan);
    damaged.tasks[0].spec = Digest::sha256(b"other");
    let former = PlanDocument { content: None, ..damaged.clone() };
    assert_eq!(JobPlan::try_from(former).expect("of a former version").digest(), plan.digest());
    assert!(matches!(JobPlan::try_from(damaged), Err(JobPlanError::Damaged { .. })));
    let newer = PlanDocument { version: 2, ..document_of(&plan) };
    assert!(matches!(JobPlan::try_from(newer), Err(JobPlanError::Newer { found: 2, known: 1 })));
}

#[test]
fn plan_diff_ignores_the_check_of_builds_that_a_server_adds() {
    let written = serde_json::to_string(&settings()).expect("plain data");
    assert!(!written.contains("guards_builds"), "{written}");
    assert!(!written.contains("allowed_registries"), "{written}");
    let mut guarded = settings();
    let listed = ["h:5000".parse().expect("a rule")];
    guarded.environment.provider.set_build_guard(Some(&listed));
    let of = |settings| {
        JobPlan::new(settings, vec![agent("one")], vec![task("a", "a0", "p")], 1).expect("a plan")
    };
    let (before, after) = (of(settings()), of(guarded.clone()));
    assert_ne!(before.digest(), after.digest());
    assert!(compare(&before, &after).is_empty() && compare(&after, &before).is_empty());
    guarded.environment.force_build = true;
    assert!(!compare(&before, &of(guarded)).is_compatible());
}

#[test]
fn plan_diff_accepts_more_work_and_names_changed_specs() {
    let before = plan(1, 2, 0, 1);
    let more = plan(2, 3, 1, 3);
    let change = compare(&before, &more);
    assert!(change.is_compatible() && !change.is_empty());
    assert_eq!(change.added, ["agent agent1", "task a/a2", "task b/b0", "attempts 2 to 3"]);
    assert_eq!(change.lines(), [""; 0], "more work is not refused");
    let less = compare(&more, &before);
    assert!(less.is_compatible());
    assert_eq!(less.removed.len(), 4);

    let mut settings = settings();
    settings.environment.force_build = true;
    settings.environment.provider = ProviderSpec::Process(ProcessSettings::default());
    settings.verifier.env.insert("JUDGE".to_owned(), Template::new("s3cret"));
    settings.verifier.reward_key = Some("accuracy".to_owned());
    let script = |text: &str, secret: &str| AgentSpec {
        name: "agent0".to_owned(),
        kind: AgentKind::Script { install: None, execute: Some(text.to_owned()) },
        env: [("KEY".to_owned(), Template::new(secret))].into(),
        limits: AgentLimits::default(),
        install_once: false,
        model: None,
        task_options: AgentTaskOptions::default(),
        session_calls: None,
    };
    let old = JobPlan::new(
        super::tests::settings(),
        vec![script("one", "s3cret")],
        vec![task("a", "a0", "p"), task("a", "a1", "p")],
        1,
    );
    let mut rules = task("a", "a1", "p");
    rules.rules = Digest::sha256(b"other rules");
    let mut later = script("two", "hidden");
    later.limits.execute_sec = Some(5.0);
    let new = JobPlan::new(settings, vec![later], vec![task("a", "a0", "q"), rules], 1);
    let change = compare(&old.expect("a plan"), &new.expect("a plan"));
    assert_eq!(
        change.lines(),
        [
            "environment.force_build was false, is true",
            "environment.provider_config.network was bridge, is host",
            "environment.type was docker, is process",
            "environment.provider_config.ignore_dockerfile was not set, is false",
            "verifier.env.JUDGE changed",
            "verifier.reward_key was not set, is accuracy",
            "agent agent0: env.KEY changed",
            "agent agent0: execute changed",
            "agent agent0: limits.execute_sec was not set, is 5.0",
            "task a/a0: its files changed",
            "task a/a1: its image, resources, time limits, variables, steps, users, network or rules changed \
             (task.toml, or the job's overrides)",
        ]
    );
}

#[test]
fn plan_diff_of_commit_only_change_is_empty() {
    let before = plan(1, 2, 0, 1);
    let mut tasks = before.tasks().to_vec();
    tasks[0].spec = Digest::sha256(b"the same with another commit");
    let mut after = JobPlan::new(settings(), vec![agent("agent0")], tasks, 1).expect("a plan");
    assert_eq!(after.digest(), before.digest());
    assert!(compare(&before, &after).is_empty());
    after.reuse_documents(&before);
    assert!(after.trials().eq(before.trials()));
}

/// A job over three tasks: one built, one with a named image, one without tests.
fn project() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let write = |path: &str, text: &str| {
        let file = dir.path().join(path);
        std::fs::create_dir_all(file.parent().expect("a parent")).expect("made");
        std::fs::write(file, text).expect("written");
    };
    let job = "name: demo\nn_attempts: 2\nn_concurrent_trials: 4\ndatasets: [{path: ./set}]\n\
               agents: [{name: oracle}, {name: s, execute: x, env: {KEY: '${KEY}'}}]\n";
    write("job.yaml", job);
    for task in ["built", "faulty", "named"] {
        write(&format!("set/{task}/task.toml"), "version = \"1.0\"\n");
        write(&format!("set/{task}/instruction.md"), "Do it.\n");
        write(&format!("set/{task}/environment/Dockerfile"), "FROM scratch\n");
        write(&format!("set/{task}/solution/solve.sh"), "true\n");
        if task != "faulty" {
            write(&format!("set/{task}/tests/test.sh"), "true\n");
        }
    }
    write("set/named/task.toml", "[environment]\ndocker_image = \"some/image:1\"\n");
    dir
}

fn prepared(dir: &std::path::Path) -> PreparedJob {
    let is_set = |name: &str| name == "KEY";
    read(Some(&dir.join("job.yaml")), &crate::config::JobOptions::for_command_line(&is_set))
        .expect("no faults")
}

#[tokio::test]
async fn plan_build_stores_documents_and_dry_run_shows_them() {
    use rollout_store::{StoreUrl, open};

    let dir = project();
    let store = open(&StoreUrl::Memory).await.expect("a store");
    let scratch = dir.path().join("scratch");
    std::fs::create_dir(&scratch).expect("made");
    let sink = crate::sources::datasets::BundleSink {
        store: Some(std::sync::Arc::clone(&store)),
        scratch,
        holder: None,
        pack_cache: None,
    };
    let PreparedJob { job, datasets, warnings } = prepared(dir.path());
    let formats = formats(&datasets);
    let (plan, specs) = build(&job, datasets, &sink).await.expect("a plan");
    assert_eq!(plan.len(), 12);
    for trial in plan.trials() {
        for digest in [trial.trial_ref.settings, trial.trial_ref.agent, trial.trial_ref.task] {
            assert!(store.contains(&digest).await.expect("reachable"), "{}", trial.name);
        }
    }

    let shown = dry_run(&job, &plan, &specs, &formats, warnings);
    let json = serde_json::to_value(&shown).expect("serializable");
    assert_eq!(json["plan_digest"], plan.digest().to_string());
    let counts = serde_json::json!({
        "agents": 2, "datasets": 1, "tasks": 3, "attempts": 2, "trials": 12, "faulty_tasks": 1,
    });
    assert_eq!(json["counts"], counts);
    assert_eq!(json["tasks"][0]["image"]["source"], "build");
    assert_eq!(json["tasks"][2]["image"]["reference"], "some/image:1");
    let fault = json["tasks"][1]["fault"].as_str().expect("a fault");
    assert!(fault.contains("tests/test.sh"), "{fault}");
    assert_eq!(json["config"]["agents"][1]["env"]["KEY"], "${KEY}");

    let mut again = prepared(dir.path());
    again.job.n_concurrent_trials = 1;
    again.job.retry.max_attempts = 1;
    again.job.name = "other".to_owned();
    let sink = crate::sources::datasets::BundleSink { store: None, ..sink };
    let (same, _) = build(&again.job, again.datasets, &sink).await.expect("a plan");
    assert_eq!(same.digest(), plan.digest(), "neither concurrency nor retry nor name count");
}

#[tokio::test]
async fn job_with_too_many_trials_is_config_error() {
    let dir = project();
    let PreparedJob { mut job, datasets, .. } = prepared(dir.path());
    job.n_attempts = 5_000_000;
    let sink = crate::sources::datasets::BundleSink {
        store: None,
        scratch: dir.path().to_owned(),
        holder: None,
        pack_cache: None,
    };
    let Err(BuildError::Config(errors)) = build(&job, datasets, &sink).await else {
        panic!("a fault")
    };
    let found: Vec<_> = errors.errors.iter().map(|e| (e.key.as_str(), e.kind)).collect();
    assert_eq!(found, [("n_attempts", crate::config::ErrorKind::TooManyTrials)]);
}
