//! A search as one JSON document, and the differences between two of them.

use rollout_environment::descriptor;
use rollout_protocol::spec::resources::Resources;
use serde_json::{Map, Value, json};

use super::super::document::{gateway, keyword};
use super::search::{ARTIFACT_POLICIES, CONTEXT_STRATEGIES, DEDUPE_SCOPES};
use super::{CommandEnvironment, SearchCommand, TreeFile};

/// Keys that may change when a search is resumed: they do not affect the result of an idea.
const MUTABLE_KEYS: &[&str] = &[
    "repository",
    "max_parallel_evals",
    "eval_timeout_seconds",
    "eval_retries",
    "keep_rejected_worktrees",
    "keep_failed_artifacts",
    "limits",
    "retry",
    "gateway",
];

/// The keys of every environment that may change, too.
const MUTABLE_ENVIRONMENT_KEYS: [&str; 2] = ["environment.proxy", "environment.start_grace_sec"];

/// The search in the form of its file, with defaults filled in, without the path of its directory.
/// Values of variables are unexpanded.
pub fn document(tree: &TreeFile) -> Value {
    let search = &tree.search;
    let commands = tree.commands.named().map(|(name, c)| (name.to_owned(), command(c)));
    let mut document = json!({
        "tree_run_id": tree.name,
        "repository": tree.repository,
        "root_commit": tree.root_commit,
        "root_baseline_csv": tree.root_baseline_csv,
        "context_ideas_dirs": tree.context_ideas_dirs,
        "ideas_per_node": search.ideas_per_node,
        "max_depth": search.max_depth,
        "beam_width": search.beam_width,
        "sweep_config_limit": search.sweep_config_limit,
        "max_parallel_evals": search.max_parallel_evals,
        "eval_timeout_seconds": search.eval_timeout_seconds,
        "eval_retries": search.eval_retries,
        "min_candidate_rows": search.min_candidate_rows,
        "min_ok_rate": search.min_ok_rate,
        "primary_tolerance": search.primary_tolerance,
        "stop_on_empty_frontier": search.stop_on_empty_frontier,
        "artifact_policy": keyword(ARTIFACT_POLICIES, search.artifact_policy),
        "dedupe_scope": keyword(DEDUPE_SCOPES, search.dedupe_scope),
        "ideas_context_strategy": keyword(CONTEXT_STRATEGIES, search.ideas_context_strategy),
        "profile": tree.profile,
        "results_file": tree.results_file,
        "commands": commands.collect::<Map<_, _>>(),
        "environment": command_environment(&tree.environment),
        "limits": {
            "sweep_max_parallel": tree.limits.sweeps,
            "llm_max_inflight": tree.limits.inflight,
            "llm_rate_limit": tree.limits.starts_per_minute,
        },
        "retry": { "max_park_sec": tree.max_park_sec },
        "budgets": {
            "evals": tree.budgets.evals,
            "seconds": tree.budgets.seconds,
            "cost": tree.budgets.cost,
        },
        "keep_rejected_worktrees": tree.keep_rejected_worktrees,
        "keep_failed_artifacts": tree.keep_failed_artifacts,
    });
    // Absent without a limit, as in documents of versions that did not know it.
    if let Some(most) = tree.budgets.depth_cost {
        document["budgets"]["depth_cost"] = json!(most);
    }
    if let Some(step) = tree.budgets.step {
        document["budgets"]["step"] = json!(step.limits);
        document["budgets"]["step"]["output_reserve"] = json!(step.output_reserve);
    }
    if let (Value::Object(fields), Some(config)) = (&mut document, &tree.gateway) {
        fields.insert("gateway".to_owned(), gateway(&config.spec));
    }
    if let (Value::Object(fields), false) = (&mut document, tree.secrets.is_empty()) {
        fields.insert("secrets".to_owned(), json!(tree.secrets));
    }
    document
}

/// Differences between two documents in keys that affect the results of a search, one line each.
pub fn differences(before: &Value, now: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    let (Value::Object(before), Value::Object(now)) = (before, now) else { return lines };
    let keys: std::collections::BTreeSet<_> = before.keys().chain(now.keys()).collect();
    for key in keys.into_iter().filter(|key| !MUTABLE_KEYS.contains(&key.as_str())) {
        compare(key, before.get(key), now.get(key), &mut lines);
    }
    // A key that may change can give the sweep an environment of its own, without the files and the
    // programs that `implement` left in the shared one.
    if lines.is_empty() && shares_environment(before) != shares_environment(now) {
        let key = "commands.sweep.environment";
        lines.push(format!("{key}: whether it is that of `implement` has changed"));
    }
    lines
}

/// Whether the sweep of the search in this document runs in the environment of `implement`.
fn shares_environment(document: &Map<String, Value>) -> bool {
    let environment = |command: &str| document.get("commands")?.get(command)?.get("environment");
    environment("sweep") == environment("implement")
}

fn compare(key: &str, before: Option<&Value>, now: Option<&Value>, lines: &mut Vec<String>) {
    if MUTABLE_ENVIRONMENT_KEYS.iter().any(|mutable| key.ends_with(mutable)) {
        return;
    }
    match (before, now) {
        (Some(Value::Object(before)), Some(Value::Object(now))) => {
            let keys: std::collections::BTreeSet<_> = before.keys().chain(now.keys()).collect();
            for inner in keys {
                compare(&format!("{key}.{inner}"), before.get(inner), now.get(inner), lines);
            }
        }
        (before, now) if before != now => {
            let text = |value: Option<&Value>| {
                let text = value.map_or_else(|| "nothing".to_owned(), Value::to_string);
                text.chars().take(80).collect::<String>()
            };
            lines.push(format!("{key}: {} is now {}", text(before), text(now)));
        }
        _ => {}
    }
}

fn command(command: &SearchCommand) -> Value {
    let env = command.env.iter();
    let env = env.map(|(name, value)| (name.clone(), json!(value.template)));
    let mut document = json!({
        "timeout_sec": command.timeout_sec,
        "env": env.collect::<Map<_, _>>(),
        "environment": command_environment(&command.environment),
    });
    if let Value::Object(fields) = &mut document {
        match &command.agent {
            Some(agent) => fields.extend(agent.document()),
            None => drop(fields.insert("run".to_owned(), json!(command.run))),
        }
    }
    document
}

fn command_environment(environment: &CommandEnvironment) -> Value {
    let kind = environment.provider.kind();
    let settings = Value::Object(descriptor::provider_settings(&environment.provider));
    let (resources, default) = (&environment.resources, Resources::default());
    // Defaults are not written, so that searches begun before these keys existed can be resumed.
    let other = |figure: u64, usual: u64| json!((figure != usual).then_some(figure));
    let optional = [
        ("docker_image", json!(environment.docker_image)),
        ("context", json!(environment.context)),
        ("cpus", other(resources.cpus.into(), default.cpus.into())),
        ("memory_mb", other(resources.memory_mb, default.memory_mb)),
        ("storage_mb", other(resources.storage_mb, default.storage_mb)),
        ("proxy", environment.proxies.document()),
        ("start_grace_sec", json!(environment.start_grace_sec)),
    ];
    let mut document = json!({ "type": kind, "provider_config": settings });
    if let Value::Object(fields) = &mut document {
        let given = optional.into_iter().filter(|(_, value)| !value.is_null());
        fields.extend(given.map(|(key, value)| (key.to_owned(), value)));
    }
    document
}
