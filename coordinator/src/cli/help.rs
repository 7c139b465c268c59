//! Order of help texts: groups of commands, and the sections of `rollout run`. Clap prints commands in
//! one list, and options in the order of their declaration.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command, CommandFactory as _, FromArgMatches as _};
use console::Term;

use super::args::Cli;
use crate::events::sinks::terminal::format::wrapped;

/// Most columns of a help text.
const MAX_COLUMNS: usize = 100;

/// Commands by purpose, in the order of the help.
const COMMAND_GROUPS: &[(&str, &[&str])] = &[
    ("Run", &["run", "resume", "retry", "pause", "cancel", "control"]),
    ("Look at runs", &["list", "status", "show", "logs", "events", "export"]),
    ("Search, train", &["tree", "farm"]),
    ("Write jobs and tasks", &["check", "task", "agents", "keys"]),
    ("Servers and workers", &["up", "serve", "worker", "workers", "setup", "doctor", "gateway"]),
    ("Maintain", &["gc", "repair", "blob", "bench", "completions", "man"]),
];

/// Sections of the help of `rollout run` with their options. Others have the section that they are
/// declared with.
const RUN_SECTIONS: &[(&str, &[&str])] = &[
    (
        "Tasks",
        &[
            "path",
            "dataset",
            "registry",
            "repo",
            "task_name",
            "exclude_task_name",
            "n_tasks",
            "format",
            "extra_instruction",
            "extra_instruction_path",
            "task_env",
        ],
    ),
    (
        "Agents",
        &[
            "agent",
            "model",
            "base_url",
            "key_env",
            "dialect",
            "agents",
            "agent_key",
            "allow_agent_host",
            "resume_trajectory",
            "load_trajectory",
            "agent_env",
        ],
    ),
    (
        "Attempts",
        &[
            "n_attempts",
            "max_retries",
            "n_concurrent_trials",
            "n_concurrent_agents",
            "timeout_multiplier",
            "agent_timeout_multiplier",
            "verifier_timeout_multiplier",
            "agent_setup_timeout_multiplier",
            "environment_build_timeout_multiplier",
        ],
    ),
    (
        "Environments",
        &[
            "environment",
            "force_build",
            "preserve_env",
            "no_delete",
            "override_cpus",
            "override_memory",
            "override_storage",
            "override_gpus",
            "ca_bundle",
        ],
    ),
    ("Verification", &["disable_verification", "reward_key", "artifact", "verifier_env"]),
    (
        "Run",
        &[
            "name",
            "jobs_dir",
            "set",
            "config",
            "dry_run",
            "json",
            "materialize",
            "sink",
            "store",
            "store_cache",
            "kubernetes_config",
            "lock_stale_seconds",
            "force",
            "no_wait",
            "accept_changed",
            "fail_under",
            "strict",
            "env_file",
            "yes",
            "quiet",
            "verbose",
            "log_level",
            "unplaceable_timeout",
            "hand_over",
            "listen",
            "log_format",
        ],
    ),
];

/// Arguments of `rollout run` that its summary, `-h`, shows.
const RUN_SUMMARY: &[&str] = &[
    "job",
    "path",
    "dataset",
    "repo",
    "task_name",
    "n_tasks",
    "agent",
    "model",
    "n_attempts",
    "n_concurrent_trials",
    "environment",
    "name",
    "jobs_dir",
    "set",
    "dry_run",
    "json",
    "fail_under",
    "yes",
    "quiet",
    "url",
];

/// Reads a command line, whose first word is the program.
pub(super) fn parse(words: Vec<OsString>) -> Result<Cli, clap::Error> {
    let mut program = program();
    let mut matches = program.try_get_matches_from_mut(words)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut program))
}

fn program() -> Command {
    let program = Cli::command().mut_subcommand("run", with_sections);
    let header = program.get_styles().get_header();
    let options = format!("{header}Options:{header:#}");
    let commands = command_groups(&program, columns());
    program.help_template(format!(
        "{{before-help}}{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{commands}\n\n\
         {options}\n{{options}}{{after-help}}"
    ))
}

/// Columns of the help text.
fn columns() -> usize {
    let of_terminal = Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
    of_terminal.unwrap_or(MAX_COLUMNS).min(MAX_COLUMNS)
}

/// The groups of commands, with a line for each.
fn command_groups(program: &Command, columns: usize) -> String {
    let styles = program.get_styles();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let longest = program.get_subcommands().map(|command| command.get_name().len()).max();
    let longest = longest.unwrap_or_default();
    let line = |command: &Command| {
        let name = command.get_name();
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let aliases: Vec<&str> = command.get_visible_aliases().collect();
        let aliases = match aliases.is_empty() {
            true => String::new(),
            false => format!(" [alias: {}]", aliases.join(", ")),
        };
        let padding = " ".repeat(longest - name.len());
        let line = format!("  {literal}{name}{literal:#}{padding}  {about}{aliases}");
        wrapped(&line, columns, longest + 4)
    };
    let groups = COMMAND_GROUPS.iter().map(|(title, names)| {
        let commands = names.iter().filter_map(|name| program.find_subcommand(name));
        let lines: Vec<String> = commands.map(line).collect();
        format!("{header}{title}:{header:#}\n{}", lines.join("\n"))
    });
    groups.collect::<Vec<_>>().join("\n\n")
}

/// `rollout run` with its options in sections. The flag for help has a section of its own: without one
/// it would be the first.
fn with_sections(run: Command) -> Command {
    let help = Arg::new("help")
        .short('h')
        .long("help")
        .action(ArgAction::Help)
        .help("Print a summary; `--help` prints all options")
        .long_help("Print help (see a summary with '-h')")
        .help_heading("Help");
    run.mut_args(in_section).disable_help_flag(true).arg(help)
}

fn in_section(arg: Arg) -> Arg {
    let is = |id: &&str| arg.get_id() == *id;
    let section = RUN_SECTIONS.iter().find(|(_, ids)| ids.iter().any(is));
    let is_detail = !RUN_SUMMARY.iter().any(is);
    let arg = arg.hide_short_help(is_detail);
    match section {
        Some((title, _)) => arg.help_heading(*title),
        None => arg,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_with_sections_is_valid() {
        program().debug_assert();
    }

    #[test]
    fn command_is_in_one_group_of_the_help() {
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            let groups = COMMAND_GROUPS.iter().filter(|(_, names)| names.contains(&name)).count();
            assert_eq!(groups, 1, "{name}");
        }
        // Braces would be tags of the template.
        let text = command_groups(&Cli::command(), MAX_COLUMNS);
        assert!(!text.contains(['{', '}']), "{text}");
    }

    #[cfg(all(feature = "nats", feature = "kubernetes"))]
    #[test]
    fn sections_of_run_have_its_options_only() {
        let program = Cli::command();
        let run = program.find_subcommand("run").expect("the command");
        let ids: Vec<&str> = run.get_arguments().map(|arg| arg.get_id().as_str()).collect();
        let named = RUN_SECTIONS.iter().flat_map(|(_, ids)| *ids).chain(RUN_SUMMARY);
        let unknown: Vec<_> = named.filter(|id| !ids.contains(id)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn tasks_agents_and_attempts_come_first() {
        let mut program = program();
        let run = program.find_subcommand_mut("run").expect("the command");
        for text in [run.render_help().to_string(), run.render_long_help().to_string()] {
            let place = |title: &str| text.find(&format!("\n{title}:\n")).expect(title);
            let places = ["Tasks", "Agents", "Attempts", "Environments", "Run", "NATS", "Help"];
            #[cfg(feature = "nats")]
            assert!(places.map(place).is_sorted(), "{text}");
            #[cfg(not(feature = "nats"))]
            assert!(places[..5].iter().map(|title| place(title)).is_sorted(), "{text}");
        }
    }
}
