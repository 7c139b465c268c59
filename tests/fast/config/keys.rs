//! Every key of a job file has a visible effect: in the output of a dry run, in the plan document,
//! or in the results of a run.

use std::collections::BTreeSet;
use std::time::Duration;

use rollout_coordinator::config::{ConfigErrors, JOB_REFERENCE, JobOptions};
use rollout_coordinator::plan::{self, PlanDocument};
use rollout_coordinator::sources::datasets::BundleSink;
use rollout_protocol::exit::ExitCode;
use rollout_tests::project::Project;
use serde_json::{Value, json};

use crate::config::agent_keys::{AGENT_CASES, OWN_AGENT};
use crate::config::dataset_keys::DATASET_CASES;
use crate::config::gateway_keys::GATEWAY_CASES;
use crate::config::mcp_keys::MCP_CASES;

/// A key, lines of a job file that set it, the JSON pointer of its effect, and the expected value.
pub(crate) type KeyCase = (&'static str, &'static str, &'static str, fn() -> Value);

const AGENT: &str = "agents: [{name: a, execute: 'true'}]";
const DATASET: &str = "datasets: [{path: tasks}]";

/// Keys whose effect is in a plan.
const KEY_CASES: &[KeyCase] = &[
    ("secrets", "secrets: [B_PIN, A_PIN]", "/plan/settings/secrets", || json!(["A_PIN", "B_PIN"])),
    ("name", "name: other", "/shown/run_dir", || json!("jobs/other")),
    ("jobs_dir", "jobs_dir: out", "/shown/run_dir", || json!("out/j")),
    ("n_attempts", "n_attempts: 3", "/shown/counts/trials", || json!(6)),
    ("n_concurrent_trials", "n_concurrent_trials: 7", "/shown/config/n_concurrent_trials", || {
        json!(7)
    }),
    ("timeout_multiplier", "timeout_multiplier: 2", "/shown/tasks/0/timeouts/install_sec", || {
        json!(600.0)
    }),
    (
        "environment_build_timeout_multiplier",
        "environment_build_timeout_multiplier: 3",
        "/shown/tasks/0/timeouts/build_sec",
        || json!(1800.0),
    ),
    (
        "agent_setup_timeout_multiplier",
        "agent_setup_timeout_multiplier: 3",
        "/shown/tasks/0/timeouts/install_sec",
        || json!(900.0),
    ),
    (
        "agent_timeout_multiplier",
        "agent_timeout_multiplier: 3",
        "/shown/tasks/0/timeouts/agent_sec",
        || json!(1800.0),
    ),
    (
        "verifier_timeout_multiplier",
        "verifier_timeout_multiplier: 3",
        "/shown/tasks/0/timeouts/verifier_sec",
        || json!(1800.0),
    ),
    ("retry.max_attempts", "retry: {max_attempts: 5}", "/shown/config/retry/max_attempts", || {
        json!(5)
    }),
    (
        "retry.initial_delay_ms",
        "retry: {initial_delay_ms: 5}",
        "/shown/config/retry/initial_delay_ms",
        || json!(5),
    ),
    (
        "retry.max_delay_ms",
        "retry: {max_delay_ms: 5000}",
        "/shown/config/retry/max_delay_ms",
        || json!(5000),
    ),
    ("retry.multiplier", "retry: {multiplier: 5}", "/shown/config/retry/multiplier", || json!(5.0)),
    ("retry.max_park_sec", "retry: {max_park_sec: 60}", "/shown/config/retry/max_park_sec", || {
        json!(60)
    }),
    ("log_level", "log_level: debug", "/shown/config/log_level", || json!("debug")),
    ("instruction_path", "instruction_path: /tmp/i", "/plan/settings/instruction_path", || {
        json!("/tmp/i")
    }),
    ("environment.type", "environment: {type: docker}", "/shown/tasks/0/image/source", || {
        json!("build")
    }),
    (
        "environment.force_build",
        "environment: {force_build: true}",
        "/shown/tasks/1/image/source",
        || json!("build"),
    ),
    (
        "environment.preserve_env",
        "environment: {preserve_env: on_failure}",
        "/plan/settings/environment/preserve_env",
        || json!("on_failure"),
    ),
    (
        "environment.preserveEnv",
        "environment: {preserveEnv: true}",
        "/plan/settings/environment/preserve_env",
        || json!("always"),
    ),
    (
        "environment.provider_config.network",
        "environment: {provider_config: {network: none}}",
        "/plan/settings/environment/provider/network",
        || json!("none"),
    ),
    (
        "environment.provider_config.platform",
        "environment: {provider_config: {platform: linux/arm64}}",
        "/plan/settings/environment/provider/platform",
        || json!("linux/arm64"),
    ),
    (
        "environment.provider_config.runtime",
        "environment: {provider_config: {runtime: runsc}}",
        "/plan/settings/environment/provider/runtime",
        || json!("runsc"),
    ),
    (
        "environment.provider_config.ignore_dockerfile",
        "environment: {type: process, provider_config: {ignore_dockerfile: true}}",
        "/shown/tasks/0/image/source",
        || json!("host"),
    ),
    (
        "environment.provider_config.namespace",
        "environment: {type: kubernetes, provider_config: {namespace: trials}}",
        "/plan/settings/environment/provider/namespace",
        || json!("trials"),
    ),
    (
        "environment.provider_config.service_account",
        "environment: {type: kubernetes, provider_config: {service_account: trial}}",
        "/plan/settings/environment/provider/service_account",
        || json!("trial"),
    ),
    (
        "environment.provider_config.runtime_class",
        "environment: {type: kubernetes, provider_config: {runtime_class: gvisor}}",
        "/plan/settings/environment/provider/runtime_class",
        || json!("gvisor"),
    ),
    (
        "environment.provider_config.priority_class",
        "environment: {type: kubernetes, provider_config: {priority_class: low}}",
        "/plan/settings/environment/provider/priority_class",
        || json!("low"),
    ),
    (
        "environment.provider_config.node_selector",
        "environment: {type: kubernetes, provider_config: {node_selector: {pool: trials}}}",
        "/plan/settings/environment/provider/node_selector",
        || json!({"pool": "trials"}),
    ),
    (
        "environment.provider_config.tolerations",
        "environment: {type: kubernetes, provider_config: {tolerations: [{key: trials, operator: Exists}]}}",
        "/plan/settings/environment/provider/tolerations",
        || json!([{"key": "trials", "operator": "Exists"}]),
    ),
    (
        "environment.provider_config.affinity",
        "environment: {type: kubernetes, provider_config: {affinity: {nodeAffinity: {}}}}",
        "/plan/settings/environment/provider/affinity",
        || json!({"nodeAffinity": {}}),
    ),
    (
        "environment.provider_config.image_pull_secrets",
        "environment: {type: kubernetes, provider_config: {image_pull_secrets: [registry]}}",
        "/plan/settings/environment/provider/image_pull_secrets",
        || json!(["registry"]),
    ),
    (
        "environment.provider_config.cpu_request",
        "environment: {type: kubernetes, provider_config: {cpu_request: 500m}}",
        "/plan/settings/environment/provider/cpu_request",
        || json!("500m"),
    ),
    (
        "environment.provider_config.memory_request",
        "environment: {type: kubernetes, provider_config: {memory_request: 512Mi}}",
        "/plan/settings/environment/provider/memory_request",
        || json!("512Mi"),
    ),
    (
        "environment.provider_config.run_as_non_root",
        "environment: {type: kubernetes, provider_config: {run_as_non_root: true}}",
        "/plan/settings/environment/provider/run_as_non_root",
        || json!(true),
    ),
    (
        "environment.provider_config.run_as_user",
        "environment: {type: kubernetes, provider_config: {run_as_user: 1000}}",
        "/plan/settings/environment/provider/run_as_user",
        || json!(1000),
    ),
    (
        "environment.provider_config.active_deadline_sec",
        "environment: {type: kubernetes, provider_config: {active_deadline_sec: 7200}}",
        "/plan/settings/environment/provider/active_deadline_sec",
        || json!(7200),
    ),
    (
        "environment.provider_config.cpu_hour",
        "environment: {provider_config: {cpu_hour: 2}}",
        "/plan/settings/environment/rates/cpu_hour",
        || json!(2.0),
    ),
    (
        "environment.provider_config.gib_hour",
        "environment: {provider_config: {gib_hour: 2}}",
        "/plan/settings/environment/rates/gib_hour",
        || json!(2.0),
    ),
    (
        "environment.override_cpus",
        "environment: {override_cpus: 3}",
        "/shown/tasks/0/resources/cpus",
        || json!(3),
    ),
    (
        "environment.override_memory_mb",
        "environment: {override_memory_mb: 3}",
        "/shown/tasks/0/resources/memory_mb",
        || json!(3),
    ),
    (
        "environment.override_memory",
        "environment: {override_memory: 3G}",
        "/shown/tasks/0/resources/memory_mb",
        || json!(3072),
    ),
    (
        "environment.override_storage_mb",
        "environment: {override_storage_mb: 3}",
        "/shown/tasks/0/resources/storage_mb",
        || json!(3),
    ),
    (
        "environment.override_storage",
        "environment: {override_storage: 3G}",
        "/shown/tasks/0/resources/storage_mb",
        || json!(3072),
    ),
    (
        "environment.override_gpus",
        "environment: {override_gpus: 1}",
        "/shown/tasks/0/resources/gpus",
        || json!(1),
    ),
    ("environment.env", "environment: {env: {A: b}}", "/shown/config/environment/env/A", || {
        json!("b")
    }),
    (
        "environment.proxy.http",
        "environment: {proxy: {http: 'http://p:3128'}}",
        "/shown/config/environment/env/HTTP_PROXY",
        || json!("http://p:3128"),
    ),
    (
        "environment.proxy.https",
        "environment: {proxy: {https: 'http://p:3128'}}",
        "/shown/config/environment/env/https_proxy",
        || json!("http://p:3128"),
    ),
    (
        "environment.proxy.no_proxy",
        "environment: {proxy: {no_proxy: a.example}}",
        "/shown/config/environment/env/NO_PROXY",
        || json!("a.example"),
    ),
    (
        "environment.extra_allowed_hosts",
        "environment: {extra_allowed_hosts: [a.example]}",
        "/shown/config/environment/extra_allowed_hosts/0",
        || json!("a.example"),
    ),
    (
        "verifier.extra_allowed_hosts",
        "verifier: {extra_allowed_hosts: [a.example]}",
        "/shown/config/verifier/extra_allowed_hosts/0",
        || json!("a.example"),
    ),
    (
        "environment.extra_docker_compose",
        "environment: {extra_docker_compose: [more.yaml]}",
        "/plan/settings/compose_overlays/0",
        || json!("services: {db: {image: db}}\n"),
    ),
    ("install_only", "install_only: true", "/plan/settings/install_only", || json!(true)),
    (
        "environment.start_grace_sec",
        "environment: {start_grace_sec: 2.5}",
        "/shown/config/environment/start_grace_sec",
        || json!(2.5),
    ),
    (
        "verifier.override_timeout_sec",
        "verifier: {override_timeout_sec: 7}",
        "/shown/tasks/0/timeouts/verifier_sec",
        || json!(7.0),
    ),
    (
        "verifier.max_timeout_sec",
        "verifier: {max_timeout_sec: 7}",
        "/shown/tasks/0/timeouts/verifier_sec",
        || json!(7.0),
    ),
    ("verifier.disable", "verifier: {disable: true}", "/plan/settings/verifier/disable", || {
        json!(true)
    }),
    (
        "verifier.kill_agent_processes",
        "verifier: {kill_agent_processes: true}",
        "/plan/settings/verifier/kill_agent_processes",
        || json!(true),
    ),
    (
        "verifier.reward_key",
        "verifier: {reward_key: acc}",
        "/plan/settings/verifier/reward_key",
        || json!("acc"),
    ),
    (
        "artifacts[].changes_of",
        "artifacts: [{changes_of: /a}]",
        "/plan/settings/artifacts/0/changes",
        || json!(true),
    ),
    (
        "artifacts[].destination",
        "artifacts: [{source: /a, destination: b}]",
        "/plan/settings/artifacts/0/destination",
        || json!("b"),
    ),
    (
        "artifacts[].exclude",
        "artifacts: [{source: /a, exclude: [b]}]",
        "/plan/settings/artifacts/0/exclude/0",
        || json!("b"),
    ),
    (
        "artifacts[].service",
        "artifacts: [{source: /a, service: b}]",
        "/plan/settings/artifacts/0/service",
        || json!("b"),
    ),
    (
        "artifacts[].type",
        "artifacts: [{source: /a, type: trace}]",
        "/plan/settings/artifacts/0/type",
        || json!("trace"),
    ),
    (
        "agents[].description",
        "agents: [{name: nop, description: d}]",
        "/shown/config/agents/0/description",
        || json!("d"),
    ),
    (
        "agents[].max_timeout_sec",
        "agents: [{name: nop, max_timeout_sec: 9}]",
        "/plan/agents/0/limits/execute_max_sec",
        || json!(9.0),
    ),
    (
        "agents[].override_setup_timeout_sec",
        "agents: [{name: nop, override_setup_timeout_sec: 9}]\ntimeout_multiplier: 2",
        "/plan/agents/0/limits/install_sec",
        || json!(18.0),
    ),
    (
        "agents[].harness.command",
        "agents: [{name: h, harness: {command: run}}]",
        "/shown/config/agents/0/harness/command",
        || json!("run"),
    ),
    (
        "agents[].harness.integration_level",
        "agents: [{name: h, harness: {command: run, integration_level: otel}}]",
        "/shown/config/agents/0/harness/integration_level",
        || json!("otel"),
    ),
    (
        "agents[].harness.events_path",
        "agents: [{name: h, harness: {command: run, events_path: /e/x}}]",
        "/shown/config/agents/0/harness/events_path",
        || json!("/e/x"),
    ),
    (
        "agents[].harness.control_path",
        "agents: [{name: h, harness: {command: run, control_path: /e/x}}]",
        "/shown/config/agents/0/harness/control_path",
        || json!("/e/x"),
    ),
    (
        "agents[].harness.input_path",
        "agents: [{name: h, harness: {command: run, input_path: /e/x}}]",
        "/shown/config/agents/0/harness/input_path",
        || json!("/e/x"),
    ),
    (
        "agents[].harness.output_path",
        "agents: [{name: h, harness: {command: run, output_path: /e/x}}]",
        "/shown/config/agents/0/harness/output_path",
        || json!("/e/x"),
    ),
    (
        "agents[].harness.bindings",
        "agents: [{name: h, harness: {command: run, bindings: {a: [1]}}}]",
        "/shown/config/agents/0/harness/bindings/a/0",
        || json!(1),
    ),
    (
        "guardrails[].metric_id",
        "guardrails: [{metric_id: turn_count}]",
        "/plan/guardrails/0/metric_id",
        || json!("turn_count"),
    ),
    (
        "guardrails[].max",
        "guardrails: [{metric_id: cost_usd, max: 2.5}]",
        "/plan/guardrails/0/max",
        || json!(2.5),
    ),
    ("pool", "pool: gpu", "/shown/config/pool", || json!("gpu")),
];

/// Keys whose effect is in the results of `JOB_OF_RUN`.
const KEYS_OF_RUN: &[&str] = &[
    "n_concurrent_agents",
    "environment.max_starts_per_minute",
    "environment.provider_config.start",
    "verifier.env",
    "verifier.test_exit_code",
    "verifier.after_agent_error",
    "artifacts[].source",
    "metrics[].type",
    "agents[].name",
    "agents[].install",
    "agents[].execute",
    "agents[].env",
    "agents[].override_timeout_sec",
    "datasets[].path",
    "datasets[].task_names",
    "task_env",
];

/// Keys that `tests/fast/registry` covers, with a git that records its calls.
const KEYS_OF_FETCHED_TASKS: &[&str] =
    &["datasets[].repo", "datasets[].ref", "tasks[].git_url", "tasks[].git_commit_id"];

const JOB_OF_RUN: &str = r#"
name: j
n_concurrent_trials: 2
n_concurrent_agents: 1
task_env: [WANTED]
environment:
  type: process
  max_starts_per_minute: 600
  provider_config: {ignore_dockerfile: true, start: 0.25}
verifier:
  env: {MARK: "${WANTED}!"}
  test_exit_code: ignored
  after_agent_error: verify
artifacts: [/tmp/kept]
metrics: [{type: max}, {type: min}]
agents:
  - name: works
    install: mkdir /tmp/kept
    execute: cp "$ROLLOUT_TASK_INSTRUCTION" "/tmp/kept/$NAME"
    env: {NAME: asked}
  - name: hangs
    execute: sleep 86400
    override_timeout_sec: 1
datasets: [{path: tasks, task_names: ["b?ilt"]}]
"#;

fn project() -> Project {
    let project = Project::new(env!("CARGO_BIN_EXE_rollout-under-test"));
    let prices = "[models.openai]\nm = { input = 3, output = 9 }\n";
    let mut project = project.write("agents/mine.toml", OWN_AGENT).write("prices.toml", prices);
    for (task, image) in [("built", ""), ("named", "docker_image = 'debian:bookworm-slim'\n")] {
        let file = |name: &str| format!("tasks/{task}/{name}");
        project = project
            .write(&file("task.toml"), &format!("version = '1.0'\n[environment]\n{image}env = {{OF_TASK = '${{WANTED:-no}}'}}\n"))
            .write(&file("instruction.md"), "Do it.\n")
            .write(&file("environment/Dockerfile"), "FROM debian:bookworm-slim\n")
            .write(&file("solution/solve.sh"), "true\n")
            .write(
                &file("tests/test.sh"),
                "test \"$MARK$OF_TASK\" = 'yes!yes' && echo 0.5 >/logs/verifier/reward.txt\nexit 3\n",
            );
    }
    let project = project.write("more.md", "Be kind.\n");
    let project = project.write("skills/zebra/SKILL.md", "Count stripes.\n");
    let project = project.write("more.yaml", "services: {db: {image: db}}\n");
    let earlier = r#"{"steps": [{"source": "user", "message": "hello"}]} "#;
    assert_eq!(earlier.len(), 52);
    let project = project.write("earlier.json", earlier);
    let tasks = json!([{"path": "tasks/built"}]);
    project.write("registry.json", &json!([{"name": "r", "tasks": tasks}]).to_string())
}

/// The output of a dry run, and the plan document.
fn plan_value(project: &Project, fragment: &str) -> Result<Value, ConfigErrors> {
    let mut text = fragment.replace("@HERE@", &project.path().display().to_string());
    for (key, line) in [
        ("name:", "name: j"),
        ("agents:", AGENT),
        ("datasets:", DATASET),
        ("task_env:", "task_env: [WANTED]"),
    ] {
        if !text.lines().any(|own| own.starts_with(key)) {
            text.push_str(&format!("\n{line}"));
        }
    }
    let file = project.path().join("job.yaml");
    std::fs::write(&file, text).expect("written");
    let prepared = plan::read(Some(&file), &JobOptions::for_command_line(&|_| true))?;
    let scratch = tempfile::tempdir().expect("a directory");
    let (scratch, holder) = (scratch.path().to_owned(), None);
    let sink = BundleSink { store: None, scratch, holder, pack_cache: None };
    let formats = rollout_coordinator::sources::datasets::formats(&prepared.datasets);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let built = plan::build(&prepared.job, prepared.datasets, &sink);
    let (plan, tasks) = runtime.expect("a runtime").block_on(built).expect("a plan");
    let shown = plan::dry_run(&prepared.job, &plan, &tasks, &formats, Vec::new());
    Ok(json!({ "shown": shown, "plan": PlanDocument::from(&plan) }))
}

fn key_cases() -> impl Iterator<Item = &'static KeyCase> {
    KEY_CASES.iter().chain(DATASET_CASES).chain(AGENT_CASES).chain(GATEWAY_CASES).chain(MCP_CASES)
}

#[test]
fn config_key_set_shows_in_plan() {
    let project = project();
    let mut wrong = Vec::new();
    for (key, fragment, pointer, expected) in key_cases() {
        match plan_value(&project, fragment) {
            Ok(seen) if seen.pointer(pointer) == Some(&expected()) => {}
            Ok(seen) => wrong.push(format!("{key}: {pointer} is {:?}", seen.pointer(pointer))),
            Err(errors) => wrong.push(format!("{key}: {errors}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let default = plan_value(&project, "").expect("a plan");
    for (key, _, pointer, expected) in key_cases() {
        // An effect that is there without the key proves nothing.
        let same = default.pointer(pointer) == Some(&expected());
        let docker_is_the_default = *key == "environment.type";
        assert!(!same || docker_is_the_default || key.ends_with("path"), "{key}");
    }
}

#[test]
fn config_keys_are_all_covered() {
    let covered: BTreeSet<&str> = key_cases()
        .map(|(key, ..)| *key)
        .chain(KEYS_OF_RUN.iter().chain(KEYS_OF_FETCHED_TASKS).copied())
        .collect();
    let keys: Vec<&str> = JOB_REFERENCE.keys.iter().map(|entry| entry.key.as_str()).collect();
    let is_table = |key: &str| {
        let below = |suffix: &str| format!("{key}{suffix}");
        keys.iter().any(|k| k.starts_with(&below(".")) || k.starts_with(&below("[]")))
    };
    let missing: Vec<_> =
        keys.iter().filter(|key| !is_table(key) && !covered.contains(**key)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    let unknown: Vec<_> = covered.iter().filter(|key| !keys.contains(key)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn config_key_set_shows_in_results() {
    let project = project().write("job.yaml", JOB_OF_RUN);
    let mut command = project.command(&["run", "job.yaml", "--json"]);
    command.env("WANTED", "yes");
    let _ended =
        project.start(command).wait(Duration::from_secs(120)).expect_code(ExitCode::Success);
    let results = project.results("j");
    assert_eq!(results.trials().len(), 2, "one task of two is selected");
    let works = results.trial("works", "built");
    assert_eq!((works.reward(), works.error()), (Some(0.5), None), "{:#}", works.result);
    assert_eq!(works.result["cost"], 0.25);
    let artifact = &works.result["artifacts"][0];
    assert_eq!(artifact["source"], "/tmp/kept", "{:#}", works.result);
    let kept = works.directory.join("artifacts/tmp/kept/asked");
    assert_eq!(std::fs::read_to_string(kept).expect("kept"), "Do it.\n");
    let hangs = results.trial("hangs", "built");
    assert_eq!(hangs.reward(), Some(0.5), "it was verified anyway: {:#}", hangs.result);
    assert_eq!(hangs.error(), Some("agent_execution_timeout"), "{:#}", hangs.result);
    let job = results.job().to_string();
    assert!(job.contains("\"max\"") && job.contains("\"min\""), "{job}");
}
