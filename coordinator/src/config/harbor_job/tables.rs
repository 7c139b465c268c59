//! The keys of Harbor's job files, and what becomes of them.

use super::HarborKey::{self, Named, OnlyDefault, Same, Special, WithoutEffect};

/// Paths that no file of this program has by mistake: each tells a job file of Harbor alone.
pub(super) const DECISIVE: &[&str] = &["schema_version", "job_name", "orchestrator"];

/// Other paths that only job files of Harbor have, except `debug` and `quiet`. A file of this program may have
/// one of them by mistake.
pub(super) const HARBOR_ONLY: &[&str] = &[
    "skip_credential_checks",
    "plugins",
    "override_error_policy",
    "user_agent",
    "source_jobs",
    "retry.max_retries",
    "retry.include_exceptions",
    "retry.exclude_exceptions",
    "environment.delete",
    "environment.kwargs",
    "environment.import_path",
    "agents[].import_path",
    "agents[].model_name",
    "agents[].kwargs",
    "datasets[].registry_url",
    "datasets[].registry_path",
    "datasets[].overwrite",
];

/// Paths that only job files of this program have.
pub(super) const ROLLOUT_ONLY: &[&str] = &[
    "name",
    "log_level",
    "instruction_path",
    "guardrails",
    "gateway",
    "budget",
    "prices",
    "pool",
    "task_env",
    "secrets",
    "agents_dir",
    "n_concurrent_agents",
    "retry.max_attempts",
    "environment.provider_config",
    "environment.preserve_env",
    "agents[].execute",
    "agents[].harness",
];

/// The keys of the file.
pub(super) const TOP: [(&str, HarborKey); 29] = [
    ("schema_version", Special),
    ("job_name", Named("name")),
    ("jobs_dir", Same),
    ("n_attempts", Same),
    ("n_concurrent_trials", Same),
    ("install_only", Same),
    ("skip_credential_checks", WithoutEffect),
    ("timeout_multiplier", Same),
    ("agent_timeout_multiplier", Same),
    ("verifier_timeout_multiplier", Same),
    ("agent_setup_timeout_multiplier", Same),
    ("environment_build_timeout_multiplier", Same),
    ("debug", Special),
    ("quiet", WithoutEffect),
    ("plugins", WithoutEffect),
    ("retry", Special),
    ("override_error_policy", OnlyDefault),
    ("environment", Special),
    ("verifier", Special),
    ("metrics", Special),
    ("agents", Special),
    ("user_agent", OnlyDefault),
    ("datasets", Special),
    ("tasks", Special),
    ("artifacts", Same),
    ("extra_instruction_paths", Same),
    ("extra_instructions", Same),
    ("source_jobs", OnlyDefault),
    ("orchestrator", WithoutEffect),
];

/// The keys of `retry`.
pub(super) const RETRY: [(&str, HarborKey); 6] = [
    ("max_retries", Special),
    ("include_exceptions", Special),
    ("exclude_exceptions", Special),
    ("wait_multiplier", Named("multiplier")),
    ("min_wait_sec", Special),
    ("max_wait_sec", Special),
];

/// The keys of `environment`.
pub(super) const ENVIRONMENT: [(&str, HarborKey); 19] = [
    ("type", Same),
    ("import_path", OnlyDefault),
    ("force_build", Same),
    ("delete", Special),
    ("stream", WithoutEffect),
    ("cpu_enforcement_policy", OnlyDefault),
    ("memory_enforcement_policy", OnlyDefault),
    ("override_cpus", Special),
    ("override_memory_mb", Same),
    ("override_storage_mb", Same),
    ("override_gpus", Same),
    ("override_tpu", OnlyDefault),
    ("suppress_override_warnings", WithoutEffect),
    ("mounts", OnlyDefault),
    ("mounts_json", OnlyDefault),
    ("extra_docker_compose", Same),
    ("env", Special),
    ("kwargs", Named("provider_config")),
    ("extra_allowed_hosts", Same),
];

/// The keys of `verifier`.
pub(super) const VERIFIER: [(&str, HarborKey); 9] = [
    ("override_timeout_sec", Same),
    ("max_timeout_sec", Same),
    ("include_logs", OnlyDefault),
    ("exclude_logs", OnlyDefault),
    ("env", Same),
    ("import_path", OnlyDefault),
    ("kwargs", OnlyDefault),
    ("disable", Same),
    ("extra_allowed_hosts", Same),
];

/// The keys of a metric.
pub(super) const METRIC: [(&str, HarborKey); 2] = [("type", Same), ("kwargs", OnlyDefault)];

/// The keys of an agent.
pub(super) const AGENT: [(&str, HarborKey); 21] = [
    ("name", Same),
    ("import_path", OnlyDefault),
    ("model_name", Special),
    ("base_url", Same),
    ("model_api_key_name", Named("key_env")),
    ("model_api_format", Special),
    ("skip_model_parsing", OnlyDefault),
    ("n_concurrent", OnlyDefault),
    ("concurrency_group", OnlyDefault),
    ("skills", Same),
    ("override_timeout_sec", Same),
    ("override_setup_timeout_sec", Same),
    ("max_timeout_sec", Same),
    ("resume_trajectory", Same),
    ("load_trajectory", Same),
    ("extra_allowed_hosts", Same),
    ("include_logs", OnlyDefault),
    ("exclude_logs", OnlyDefault),
    ("kwargs", Special),
    ("env", Same),
    ("mcp_servers", OnlyDefault),
];

/// The keys of a dataset.
pub(super) const DATASET: [(&str, HarborKey); 12] = [
    ("path", Same),
    ("name", Same),
    ("version", Same),
    ("ref", Same),
    ("registry_url", Special),
    ("registry_path", Special),
    ("repo", Same),
    ("overwrite", WithoutEffect),
    ("download_dir", WithoutEffect),
    ("task_names", Same),
    ("exclude_task_names", Same),
    ("n_tasks", Same),
];

/// The keys of a task.
pub(super) const TASK: [(&str, HarborKey); 8] = [
    ("path", Same),
    ("git_url", Same),
    ("git_commit_id", Same),
    ("name", OnlyDefault),
    ("ref", OnlyDefault),
    ("overwrite", WithoutEffect),
    ("download_dir", WithoutEffect),
    ("source", WithoutEffect),
];
