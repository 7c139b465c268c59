//! `config.json`: the job as it was resolved, as one JSON document.

use rollout_protocol::spec::agent::AgentKind;
use rollout_protocol::spec::environment::{PreservePolicy, ProviderSpec};
use serde_json::{Map, Value, json};

use super::elements::agents::Agent;
use super::elements::environment::PRESERVE;
use super::resolve::Job;

/// The job in the form of a job file, defaults filled in. Environment values are unexpanded: no
/// value of a variable of the host is in it.
pub fn document(job: &Job) -> Value {
    let mut document = json!({
        "name": job.name,
        "jobs_dir": job.jobs_dir,
        "n_attempts": job.n_attempts,
        "n_concurrent_trials": job.n_concurrent_trials,
        "timeout_multiplier": job.timeouts.multiplier,
        "retry": job.retry,
        "log_level": job.log_level.as_str(),
        "instruction_path": job.settings.instruction_path,
        "environment": environment(job),
        "verifier": {
            "override_timeout_sec": job.timeouts.verifier_override_sec,
            "max_timeout_sec": job.timeouts.verifier_max_sec,
            "disable": job.settings.verifier.disable,
            "kill_agent_processes": job.settings.verifier.kill_agent_processes,
        },
        "metrics": job.metrics.iter().map(|kind| json!({ "type": kind })).collect::<Vec<_>>(),
        "agents": job.agents.iter().map(agent).collect::<Vec<_>>(),
        "datasets": job.datasets.iter().map(|d| {
            optional(json!({ "path": d.path }), [("name", &d.name), ("version", &d.version)])
        }).collect::<Vec<_>>(),
        "task_env": job.task_env,
    });
    document = optional(document, [("pool", &job.pool)]);
    document
}

fn environment(job: &Job) -> Value {
    let environment = &job.settings.environment;
    let (kind, settings) = match &environment.provider {
        ProviderSpec::Docker(settings) => ("docker", json!(settings)),
        ProviderSpec::Process(settings) => ("process", json!(settings)),
    };
    let mut config = settings;
    if let (Value::Object(config), Value::Object(rates)) = (&mut config, json!(environment.rates)) {
        config.extend(rates);
    }
    json!({
        "type": kind,
        "force_build": environment.force_build,
        "preserve_env": preserve(environment.preserve_env),
        "provider_config": config,
        "override_cpus": job.resources.cpus,
        "override_memory_mb": job.resources.memory_mb,
        "override_storage_mb": job.resources.storage_mb,
    })
}

fn preserve(policy: PreservePolicy) -> &'static str {
    let word = PRESERVE.iter().find(|(_, known)| *known == policy);
    word.map(|(word, _)| *word).expect("every policy has its word")
}

fn agent(agent: &Agent) -> Value {
    let (install, execute) = match &agent.spec.kind {
        AgentKind::Script { install, execute } => (install.clone(), execute.clone()),
        AgentKind::Oracle | AgentKind::Nop => (None, None),
    };
    let scripts =
        [("description", &agent.description), ("install", &install), ("execute", &execute)];
    let mut document = optional(json!({ "name": agent.spec.name }), scripts);
    if let (Value::Object(fields), false) = (&mut document, agent.spec.env.is_empty()) {
        fields.insert("env".to_owned(), json!(agent.spec.env));
    }
    document
}

fn optional<const N: usize>(document: Value, fields: [(&str, &Option<String>); N]) -> Value {
    let Value::Object(mut object) = document else { return document };
    let present = fields.into_iter().filter_map(|(key, value)| {
        value.as_ref().map(|value| (key.to_owned(), Value::String(value.clone())))
    });
    object.extend::<Map<String, Value>>(present.collect());
    Value::Object(object)
}
