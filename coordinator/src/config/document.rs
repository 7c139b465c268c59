//! `config.json`: the resolved job as one JSON document.

use rollout_environment::descriptor;
use rollout_protocol::spec::agent::{AgentKind, AgentTaskOptions, ShellSpec};
use rollout_protocol::spec::budget::{RunBudget, TryBudget};
use rollout_protocol::spec::gateway::{GatewaySpec, UpstreamSpec};
use rollout_protocol::spec::harness::HarnessSpec;
use rollout_protocol::spec::task::Artifact;
use serde_json::{Map, Value, json};

use super::address::without_secrets;
use super::elements::agents::Agent;
use super::elements::datasets::{
    DatasetRef, DatasetSource, RegistryRef, TaskRef, TaskSelection, TaskSource,
};
use super::elements::environment::PRESERVE_POLICIES;
use super::elements::variables;
use super::elements::verifier::{AFTER_AGENT_ERROR_RULES, TEST_EXIT_CODE_RULES};
use super::resolve::Job;

/// The job in the form of a job file, with defaults filled in. Environment values stay unexpanded,
/// so the document has no value of a host variable and no password of an address.
pub fn job_document(job: &Job) -> Value {
    let timeouts = &job.timeout_rules;
    let mut document = json!({
        "name": job.name,
        "jobs_dir": job.jobs_dir,
        "n_attempts": job.n_attempts,
        "n_concurrent_trials": job.n_concurrent_trials,
        "n_concurrent_agents": job.worker_rate_limits.agents_at_once,
        "timeout_multiplier": timeouts.multiplier,
        "environment_build_timeout_multiplier": timeouts.build_multiplier,
        "agent_setup_timeout_multiplier": timeouts.setup_multiplier,
        "agent_timeout_multiplier": timeouts.agent_multiplier,
        "verifier_timeout_multiplier": timeouts.verifier_multiplier,
        "retry": job.retry,
        "log_level": job.log_level.as_str(),
        "instruction_path": job.settings.instruction_path,
        "environment": environment(job),
        "verifier": verifier(job),
        "artifacts": job.settings.artifacts.iter().map(artifact).collect::<Vec<_>>(),
        "metrics": job.metrics.iter().map(|kind| json!({ "type": kind })).collect::<Vec<_>>(),
        "agents": job.agents.iter().map(agent).collect::<Vec<_>>(),
        "datasets": job.datasets.iter().map(dataset).collect::<Vec<_>>(),
        "task_env": job.task_env,
    });
    // An empty `tasks` would make `datasets` optional.
    if let (Value::Object(fields), false) = (&mut document, job.tasks.is_empty()) {
        let tasks = job.tasks.iter().map(task).collect();
        fields.insert("tasks".to_owned(), Value::Array(tasks));
    }
    let extra = &job.settings.extra_instructions;
    if let (Value::Object(fields), false) = (&mut document, extra.is_empty()) {
        fields.insert("extra_instructions".to_owned(), json!(extra));
    }
    if let (Value::Object(fields), false) = (&mut document, job.guardrails.is_empty()) {
        fields.insert("guardrails".to_owned(), json!(job.guardrails));
    }
    if let (Value::Object(fields), Some(spec)) = (&mut document, &job.settings.gateway) {
        fields.insert("gateway".to_owned(), gateway(spec));
    }
    if let (Value::Object(fields), Some(budget)) = (&mut document, &job.settings.budget) {
        fields.insert("budget".to_owned(), self::budget(budget, &job.budget));
    }
    if let (Value::Object(fields), false) = (&mut document, job.settings.secrets.is_empty()) {
        fields.insert("secrets".to_owned(), json!(job.settings.secrets));
    }
    if let (Value::Object(fields), true) = (&mut document, job.settings.install_only) {
        fields.insert("install_only".to_owned(), json!(true));
    }
    document = optional(document, [("pool", &job.pool)]);
    document
}

fn budget(each_try: &TryBudget, run: &RunBudget) -> Value {
    json!({
        "try": each_try.limits,
        "agent": run.agent,
        "run": run.run,
        "output_reserve": each_try.output_reserve,
    })
}

/// The model servers in the form of a file.
pub(super) fn gateway(spec: &GatewaySpec) -> Value {
    json!({ "upstreams": spec.upstreams.iter().map(upstream).collect::<Vec<_>>() })
}

fn upstream(upstream: &UpstreamSpec) -> Value {
    let mut document = json!(upstream);
    if let (Value::Object(fields), Some(key)) = (&mut document, &upstream.key) {
        fields.remove("key");
        let name = key.variables().into_iter().next().map(|(name, _)| name);
        fields.insert("key_env".to_owned(), json!(name));
    }
    document
}

fn artifact(artifact: &Artifact) -> Value {
    let mut document = json!(artifact);
    if let (Value::Object(fields), true) = (&mut document, artifact.changes) {
        fields.remove("changes");
        fields.remove("source");
        fields.insert("changes_of".to_owned(), json!(artifact.source));
    }
    document
}

fn verifier(job: &Job) -> Value {
    let settings = &job.settings.verifier;
    json!({
        "override_timeout_sec": job.timeout_rules.verifier_override_sec,
        "max_timeout_sec": job.timeout_rules.verifier_max_sec,
        "disable": settings.disable,
        "kill_agent_processes": settings.kill_agent_processes,
        "reward_key": settings.reward_key,
        "test_exit_code": keyword(TEST_EXIT_CODE_RULES, job.rule_overrides.test_exit),
        "after_agent_error": keyword(AFTER_AGENT_ERROR_RULES, job.rule_overrides.after_agent_error),
        "env": settings.env,
        "extra_allowed_hosts": job.verifier_hosts,
    })
}

fn dataset(dataset: &DatasetRef) -> Value {
    let source = match &dataset.source {
        DatasetSource::Path(path) => json!({ "path": path }),
        DatasetSource::Registry(RegistryRef::Path(path)) => json!({ "registry": { "path": path } }),
        DatasetSource::Registry(RegistryRef::Url(url)) => {
            json!({ "registry": { "url": without_secrets(url) } })
        }
        DatasetSource::Repository { url, reference, path } => {
            optional(json!({ "repo": without_secrets(url) }), [("ref", reference), ("path", path)])
        }
    };
    let format = dataset.format.map(|format| format.to_string());
    let words = [
        ("name", &dataset.name),
        ("version", &dataset.version),
        ("format", &format),
        ("git_commit_id", &dataset.commit),
    ];
    let mut document = optional(source, words);
    if let (Value::Object(fields), false) = (&mut document, dataset.selection.is_all()) {
        let TaskSelection { names, exclude, max_tasks } = &dataset.selection;
        fields.insert("task_names".to_owned(), json!(names));
        fields.insert("exclude_task_names".to_owned(), json!(exclude));
        fields.insert("n_tasks".to_owned(), json!(max_tasks));
    }
    document
}

fn task(task: &TaskRef) -> Value {
    let source = match &task.source {
        TaskSource::Path(path) => {
            optional(json!({ "path": path }), [("git_commit_id", &task.commit)])
        }
        TaskSource::Git { url, commit, path } => optional(
            json!({ "git_url": without_secrets(url) }),
            [("git_commit_id", commit), ("path", path)],
        ),
    };
    optional(source, [("format", &task.format.map(|format| format.to_string()))])
}

fn environment(job: &Job) -> Value {
    let environment = &job.settings.environment;
    let kind = environment.provider.kind();
    let settings = Value::Object(descriptor::provider_settings(&environment.provider));
    let mut config = settings;
    if let (Value::Object(config), Value::Object(rates)) = (&mut config, json!(environment.rates)) {
        config.extend(rates);
    }
    let mut document = json!({
        "type": kind,
        "force_build": environment.force_build,
        "preserve_env": keyword(PRESERVE_POLICIES, environment.preserve_env),
        "provider_config": config,
        "override_cpus": job.resource_overrides.cpus,
        "override_memory_mb": job.resource_overrides.memory_mb,
        "override_storage_mb": job.resource_overrides.storage_mb,
        "override_gpus": job.resource_overrides.gpus,
        "max_starts_per_minute": job.worker_rate_limits.starts_per_minute,
        "start_grace_sec": job.timeout_rules.start_grace_sec,
        "env": variables::templates(job.environment_changes.env.clone()),
        "extra_allowed_hosts": job.environment_changes.hosts,
        "mcp_servers": job.environment_changes.mcp_servers,
    });
    if let (Value::Object(fields), false) = (&mut document, job.compose_overlays.is_empty()) {
        fields.insert("extra_docker_compose".to_owned(), json!(job.compose_overlays));
    }
    document
}

/// The word of the format for a value.
pub(super) fn keyword<T: Copy + PartialEq>(words: &[(&'static str, T)], value: T) -> &'static str {
    let word = words.iter().find(|(_, known)| *known == value);
    word.map(|(word, _)| *word).expect("every value has its word")
}

fn agent(agent: &Agent) -> Value {
    let (install, execute, harness) = match &agent.spec.kind {
        AgentKind::Script { install, execute } => (install.clone(), execute.clone(), None),
        AgentKind::Harness(spec) => (spec.install.clone(), None, Some(harness(spec))),
        AgentKind::Oracle | AgentKind::Nop | AgentKind::Shell(_) => (None, None, None),
    };
    let scripts =
        [("description", &agent.description), ("install", &install), ("execute", &execute)];
    let mut document = optional(json!({ "name": agent.spec.name }), scripts);
    if let (Value::Object(fields), Some(harness)) = (&mut document, harness) {
        fields.insert("harness".to_owned(), harness);
    }
    if let (Value::Object(fields), AgentKind::Shell(shell)) = (&mut document, &agent.spec.kind) {
        fields.insert("agent".to_owned(), json!("shell"));
        fields.insert("max_turns".to_owned(), json!(shell.max_turns));
        let limit = agent.unscaled_command_sec.unwrap_or(shell.command_sec);
        fields.insert("command_timeout_sec".to_owned(), json!(limit));
    }
    if let AgentKind::Shell(ShellSpec { system_prompt, .. }) = &agent.spec.kind {
        document = optional(document, [("system_prompt", system_prompt)]);
    }
    if let Value::Object(fields) = &mut document {
        task_options(&agent.spec.task_options, fields);
    }
    if let (Value::Object(fields), Some(session)) = (&mut document, &agent.spec.session_calls) {
        fields.insert("session_calls".to_owned(), json!(session));
    }
    if let (Value::Object(fields), true) = (&mut document, agent.spec.install_once) {
        fields.insert("install_once".to_owned(), json!(true));
    }
    if let (Value::Object(fields), Some(model)) = (&mut document, &agent.spec.model) {
        fields.insert("model".to_owned(), json!(format!("{}/{}", model.provider, model.name)));
    }
    if let (Value::Object(fields), false) = (&mut document, agent.spec.env.is_empty()) {
        fields.insert("env".to_owned(), json!(agent.spec.env));
    }
    let limits = [
        ("override_setup_timeout_sec", agent.unscaled_limits.install_sec),
        ("override_timeout_sec", agent.unscaled_limits.execute_sec),
        ("max_timeout_sec", agent.unscaled_limits.execute_max_sec),
    ];
    if let Value::Object(fields) = &mut document {
        let given = limits.into_iter().filter(|(_, limit)| limit.is_some());
        fields.extend(given.map(|(key, limit)| (key.to_owned(), json!(limit))));
    }
    document
}

fn task_options(options: &AgentTaskOptions, fields: &mut Map<String, Value>) {
    let Value::Object(given) = json!(options) else { unreachable!("it is an object") };
    fields.extend(given);
}

fn harness(spec: &HarnessSpec) -> Value {
    let document = json!({
        "command": spec.command,
        "integration_level": spec.integration_level,
        "input_path": spec.input_path,
        "output_path": spec.output_path,
        "control_path": spec.control_path,
        "bindings": spec.bindings,
    });
    optional(document, [("events_path", &spec.events_path)])
}

fn optional<const N: usize>(document: Value, fields: [(&str, &Option<String>); N]) -> Value {
    let Value::Object(mut object) = document else { return document };
    let present = fields.into_iter().filter_map(|(key, value)| {
        value.as_ref().map(|value| (key.to_owned(), Value::String(value.clone())))
    });
    object.extend::<Map<String, Value>>(present.collect());
    Value::Object(object)
}
