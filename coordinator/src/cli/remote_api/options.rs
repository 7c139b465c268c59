//! Options of `rollout run` with a server of `rollout serve`: each one is part of the document that
//! is sent, has its effect in this command, or is refused before anything is sent.

use std::ffi::OsString;
use std::path::{Component, Path};

use clap::CommandFactory as _;
use clap::parser::ValueSource;

use crate::cli::args::Cli;
use crate::cli::error::CliError;

/// Effect of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OptionUse {
    /// Sets keys of the document, or selects the tasks that are sent.
    Document,
    /// Has its effect in this command.
    Here,
    /// Has none; the hint says what to do instead.
    Refused(&'static str),
}

const FILES_HINT: &str = "the server keeps the files of its runs: `rollout export URL --format harbor \
                          --out DIR` gets them";
const FILES: OptionUse = OptionUse::Refused(FILES_HINT);
const OWN: OptionUse =
    OptionUse::Refused("the operator of the server chooses it with `rollout serve`");
const ANOTHER: OptionUse = OptionUse::Refused(
    "every command submits a run of its own, which the server resumes by itself",
);

/// Options that set keys of the document, or select the tasks that are sent.
const DOCUMENT: &[&str] = &[
    "job",
    "config",
    "path",
    "dataset",
    "registry",
    "repo",
    "task_name",
    "exclude_task_name",
    "n_tasks",
    "format",
    "agent",
    "model",
    "base_url",
    "key_env",
    "dialect",
    "agents",
    "agent_key",
    "allow_agent_host",
    "resume_trajectory",
    "extra_instruction",
    "extra_instruction_path",
    "agent_env",
    "verifier_env",
    "task_env",
    "n_attempts",
    "max_retries",
    "n_concurrent_trials",
    "n_concurrent_agents",
    "environment",
    "force_build",
    "preserve_env",
    "no_delete",
    "override_cpus",
    "override_memory",
    "override_storage",
    "override_gpus",
    "override_memory_mb",
    "override_storage_mb",
    "delete",
    "no_force_build",
    "enable_verification",
    "effort",
    "environment_key",
    "allow_environment_host",
    "allow_verifier_host",
    "mcp_config",
    "install_only",
    "retry_include",
    "retry_exclude",
    "timeout_multiplier",
    "agent_timeout_multiplier",
    "verifier_timeout_multiplier",
    "agent_setup_timeout_multiplier",
    "environment_build_timeout_multiplier",
    "disable_verification",
    "reward_key",
    "artifact",
    "name",
    "set",
    "yes",
];

/// Options with an effect in this command.
const HERE: &[&str] = &[
    "dry_run",
    "print_config",
    "json",
    "fail_under",
    "strict",
    "quiet",
    "verbose",
    "log_level",
    "log_format",
    "executor",
    "remote_endpoint",
    "remote_token_env",
    "detach",
];

/// The effect of an option; `None` for an unknown one.
fn use_of(id: &str) -> Option<OptionUse> {
    Some(match id {
        id if DOCUMENT.contains(&id) => OptionUse::Document,
        id if HERE.contains(&id) => OptionUse::Here,
        "jobs_dir" | "materialize" | "sink" => FILES,
        "store"
        | "store_cache"
        | "kubernetes_config"
        | "ca_bundle"
        | "unplaceable_timeout"
        | "listen"
        | "url"
        | "namespace"
        | "lease" => OWN,
        nats if nats.starts_with("nats_") => OWN,
        "lock_stale_seconds" | "force" | "no_wait" | "accept_changed" | "hand_over" => ANOTHER,
        "env_file" => OptionUse::Refused("the operator sets variables where the server runs"),
        "load_trajectory" => {
            OptionUse::Refused("put the conversation into `trajectory.json` of a task")
        }
        "skill" => OptionUse::Refused(
            "put the skills into the images of tasks, and name their directory in `environment.skills_dir`",
        ),
        "extra_docker_compose" => OptionUse::Refused("put a compose file into each task"),
        _ => return None,
    })
}

/// Refuses options of a command line that have no effect on the server.
///
/// # Errors
/// The option by name.
pub(in crate::cli) fn check_options(words: Vec<OsString>) -> Result<(), CliError> {
    let program = Cli::command();
    // The command line was read before.
    let Ok(matches) = program.clone().try_get_matches_from(words) else { return Ok(()) };
    let Some(("run", given)) = matches.subcommand() else { return Ok(()) };
    let Some(command) = program.find_subcommand("run") else { return Ok(()) };
    for option in command.get_arguments() {
        let id = option.get_id().as_str();
        let is_given = given.value_source(id) == Some(ValueSource::CommandLine);
        if let (true, Some(OptionUse::Refused(hint))) = (is_given, use_of(id)) {
            let name = option.get_long().unwrap_or(id);
            let what = format!("cannot use `--{name}` with a server of `rollout serve`");
            return Err(CliError::usage(what).hint(hint));
        }
    }
    let mut settings = given.get_many::<String>("set").into_iter().flatten();
    if settings.any(|setting| setting.starts_with("jobs_dir=")) {
        let what = "cannot use `--set jobs_dir` with a server of `rollout serve`";
        return Err(CliError::usage(what).hint(FILES_HINT));
    }
    let is_given = |id| given.value_source(id) == Some(ValueSource::CommandLine);
    if is_given("detach") && is_given("fail_under") {
        let what = "cannot use `--fail-under` with `--detach`: the result is known at the end";
        return Err(CliError::usage(what).hint("leave one of them out"));
    }
    Ok(())
}

/// Refuses the directory of a job's runs: the server has its own.
///
/// # Errors
/// The key by name, unless it has its default.
pub(super) fn check_jobs_dir(jobs_dir: &Path) -> Result<(), CliError> {
    let named = jobs_dir.components().filter(|part| *part != Component::CurDir);
    if named.eq(Path::new("jobs").components()) {
        return Ok(());
    }
    let what = "cannot use the key `jobs_dir` with a server of `rollout serve`";
    Err(CliError::usage(what).hint(FILES_HINT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(options: &str) -> Result<(), CliError> {
        let words = format!("rollout run job.yaml --remote-endpoint http://h:1 {options}");
        check_options(words.split_whitespace().map(OsString::from).collect())
    }

    #[test]
    fn option_of_run_has_a_known_effect_on_a_server() {
        let program = Cli::command();
        let command = program.find_subcommand("run").expect("the command");
        let ids = command.get_arguments().map(|option| option.get_id().as_str());
        let unknown: Vec<&str> = ids.filter(|id| use_of(id).is_none()).collect();
        assert!(unknown.is_empty(), "options without a known effect over HTTP: {unknown:?}");
    }

    #[test]
    fn option_without_effect_on_a_server_is_refused_by_name() {
        for (options, name) in [
            ("--jobs-dir out", "--jobs-dir"),
            ("-o out", "--jobs-dir"),
            ("--materialize none", "--materialize"),
            ("--sink local", "--sink"),
            ("--store /s", "--store"),
            ("--accept-changed", "--accept-changed"),
            ("--listen 127.0.0.1:1", "--listen"),
            ("--load-trajectory t.json", "--load-trajectory"),
            ("--skill s", "--skill"),
            ("--extra-docker-compose c.yaml", "--extra-docker-compose"),
            ("--fail-under 0.5 --detach", "--fail-under"),
            ("--set jobs_dir=out", "--set jobs_dir"),
        ] {
            let refused = checked(options).expect_err(options);
            assert!(refused.message.contains(&format!("`{name}`")), "{}", refused.message);
        }
        let refused = check_jobs_dir(Path::new("elsewhere")).expect_err("another directory");
        assert!(refused.message.contains("`jobs_dir`"), "{}", refused.message);
        assert!(
            check_jobs_dir(Path::new("jobs")).is_ok()
                && check_jobs_dir(Path::new("./jobs")).is_ok()
        );
        let used = "-a oracle -k 3 --fail-under 0.5 --strict -q --name n --set log_level=warn";
        assert!(checked(used).is_ok());
    }
}
