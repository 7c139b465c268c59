//! Commands that read a run: text and JSON.

use regex::Regex;
use rollout_protocol::exit::ExitCode;
use rollout_tests::project::Project;
use serde_json::Value;

use crate::cli::{DEADLINE, assert_printed, normalized, project};

/// An agent that prints, on a task that passes and on one whose tests fail.
const JOB: &str = "name: demo\nn_concurrent_trials: 1\nenvironment: {type: process}\n\
                   retry: {max_attempts: 1}\nagents:\n  - name: prints\n    execute: |\n      \
                   printf 'said \\033[1mloud\\033[0m\\n'\n      echo warned >&2\n      \
                   echo '{}' >/logs/agent/trace.json\ndatasets:\n  - path: tasks\n";

/// A project with a finished run without result files of trials.
fn finished() -> Project {
    let project = project().tasks(["faults/passes", "faults/verifier-failed"], &[]);
    let project = project.write("job.yaml", JOB);
    let arguments = ["run", "job.yaml", "--materialize", "none", "-q"];
    let _ended = project.rollout(&arguments).wait(DEADLINE).expect_code(ExitCode::Success);
    project
}

fn printed(project: &Project, arguments: &[&str]) -> String {
    project.rollout(arguments).wait(DEADLINE).expect_code(ExitCode::Success).stdout
}

/// A text without widths, figures and names that differ from run to run.
fn plain(project: &Project, text: &str) -> String {
    let mut text = normalized(project, text);
    for (pattern, replacement) in [
        (r"(<host>|[a-z0-9-]+)-[0-9a-f]{12}\b", "<worker>"),
        (r"\d+(\.\d)? settled per (second|minute|hour)", "<n> settled per <time>"),
        (r"(?m)  \d+\.\d{1,3}(  |$)", "  <seconds>$1"),
        (r"(?m)^ +\d+  <time>", "<seq>  <time>"),
        (r"  +", "  "),
        (r"(?m) +$", ""),
    ] {
        let pattern = Regex::new(pattern).expect("a pattern");
        text = pattern.replace_all(&text, replacement).into_owned();
    }
    text
}

#[test]
fn run_without_name_has_local_time_of_named_zone() {
    if !std::path::Path::new("/usr/share/zoneinfo/Pacific/Kiritimati").exists() {
        rollout_tests::ignored::report_ignored_part("local times: this host has no time zones");
        return;
    }
    let project = project().tasks(["faults/passes"], &[]);
    let hour = |zone: &str| {
        let words = ["run", "-p", "tasks", "-a", "nop", "-e", "process", "--dry-run", "--json"];
        let mut command = project.command(&words);
        command.env("TZ", zone);
        let ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success);
        let plan: Value = serde_json::from_str(&ended.stdout).expect("a plan");
        let name = plan["config"]["name"].as_str().expect("a name").to_owned();
        let (_, time) = name.split_once("__").expect("a date and a time");
        time[..2].parse::<i32>().expect("an hour")
    };
    // 14 hours east of Greenwich, all year; the clock may strike between the two runs.
    let ahead = (hour("Pacific/Kiritimati") - hour("UTC")).rem_euclid(24);
    assert!([13, 14].contains(&ahead), "{ahead} hours");
}

#[test]
fn tables_and_lines_of_events_have_local_times() {
    if !std::path::Path::new("/usr/share/zoneinfo/Asia/Tokyo").exists() {
        rollout_tests::ignored::report_ignored_part("local times: this host has no time zones");
        return;
    }
    let project = finished();
    let ended = |zone: &str, words: &[&str]| {
        let mut command = project.command(words);
        command.env("TZ", zone);
        project.start(command).wait(DEADLINE).expect_code(ExitCode::Success)
    };
    for (words, is_local) in [
        (&["list"][..], true),
        (&["status", "jobs/demo"], true),
        (&["show", "jobs/demo", "passes"], true),
        (&["events", "jobs/demo"], true),
        (&["list", "--json"], false),
        (&["events", "jobs/demo", "--json"], false),
    ] {
        let shown = ended("Asia/Tokyo", words).stdout;
        assert_eq!(shown.contains("+09:00"), is_local, "{shown}");
    }
}

#[test]
fn unknown_zone_is_named_once_by_commands_that_show_local_times() {
    let project = finished();
    let unnamed = ["run", "-p", "tasks", "-a", "nop", "-e", "process", "--dry-run"];
    let named = [&unnamed[..], &["--name", "n"]].concat();
    for (words, expected) in [
        (&["list"][..], 1),
        (&["status", "jobs/demo"], 1),
        (&["show", "jobs/demo", "passes"], 1),
        (&["events", "jobs/demo"], 1),
        (&unnamed[..], 1),
        (&named[..], 0),
        (&["show", "jobs/demo"], 0),
        (&["status", "jobs/demo", "--json"], 0),
        (&["list", "--json"], 0),
        (&["events", "jobs/demo", "--json"], 0),
        (&["logs", "jobs/demo", "passes"], 0),
        (&["check", "tasks"], 0),
        (&["keys", "job"], 0),
    ] {
        let mut command = project.command(words);
        command.env("TZ", "Nowhere/Else");
        let ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success);
        let warnings = ended.stderr.matches("cannot find the time zone of TZ=Nowhere/Else").count();
        assert_eq!(warnings, expected, "{words:?}: {}", ended.stderr);
        assert!(!ended.stdout.contains("+09:00"), "{}", ended.stdout);
    }
}

#[test]
fn unknown_zone_is_named_once_by_servers_which_name_runs_by_local_time() {
    for server in ["up", "serve"] {
        // A server that reads its token ends at its start.
        let project = project().write("state/token", "short");
        let mut command = project.command(&[server, "--dir", "state"]);
        command.env("TZ", "Nowhere/Else");
        let ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Config);
        assert!(ended.stderr.contains("is damaged"), "{server}: {}", ended.stderr);
        let warnings = ended.stderr.matches("cannot find the time zone of TZ=Nowhere/Else").count();
        assert_eq!(warnings, 1, "{server}: {}", ended.stderr);
    }
}

#[test]
fn directory_without_a_run_is_refused_for_that_also_without_its_server() {
    let project = project().write("jobs/file", "no run");
    for command in ["resume", "pause"] {
        let mut command = project.command(&[command, "jobs"]);
        command.env("ROLLOUT_NATS_URL", "nats://127.0.0.1:1");
        let ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Config);
        assert!(ended.stderr.contains("manifest.json"), "{}", ended.stderr);
    }
}

#[test]
fn text_of_commands_that_read_run_is_as_reviewed() {
    let project = finished();
    for (name, arguments) in [
        ("status", &["status", "jobs/demo"][..]),
        ("list", &["list"]),
        ("show", &["show", "jobs/demo"]),
        ("show_failed", &["show", "jobs/demo", "--failed"]),
        ("show_trial", &["show", "jobs/demo", "verifier-failed"]),
        ("logs", &["logs", "jobs/demo", "passes"]),
        ("logs_list", &["logs", "jobs/demo", "passes", "--list"]),
        ("events", &["events", "jobs/demo"]),
    ] {
        let text = printed(&project, arguments);
        assert_printed(&format!("run_{name}"), &plain(&project, &text));
    }
}

/// Replaces values by their types, to compare the shape of a document.
fn shape(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(key, value)| (key.clone(), shape(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().take(1).map(shape).collect()),
        Value::String(_) => "text".into(),
        Value::Number(_) => "number".into(),
        Value::Bool(_) => "boolean".into(),
        Value::Null => Value::Null,
    }
}

#[test]
fn json_of_commands_that_read_run_is_as_reviewed() {
    let project = finished();
    for (name, arguments) in [
        ("status", &["status", "jobs/demo", "--json"][..]),
        ("list", &["list", "jobs", "--json"]),
        ("show", &["show", "jobs/demo", "--json"]),
        ("show_trial", &["show", "jobs/demo", "passes", "--json"]),
        ("logs", &["logs", "jobs/demo", "passes", "--json"]),
        ("logs_list", &["logs", "jobs/demo", "passes", "--list", "--json"]),
    ] {
        let text = printed(&project, arguments);
        let document: Value = serde_json::from_str(&text).expect("one JSON document");
        let shape = serde_json::to_string_pretty(&shape(&document)).expect("JSON");
        assert_printed(&format!("run_{name}_json"), &shape);
    }
}

#[test]
fn list_in_fresh_directory_has_no_runs_and_is_no_error() {
    let project = project();
    let exit = project.rollout(&["list"]).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!(exit.stdout, "no runs\n");
    assert!(exit.stderr.starts_with("hint: nothing has run in this directory"), "{}", exit.stderr);
    let document: Value =
        serde_json::from_str(&printed(&project, &["list", "--json"])).expect("one JSON document");
    assert_eq!(document["runs"], Value::Array(Vec::new()));
}

#[test]
fn output_that_is_not_for_terminal_is_printed_as_it_is() {
    let project = finished();
    let output = printed(&project, &["logs", "jobs/demo", "passes", "command/stdout.txt"]);
    assert_eq!(output, "said \u{1b}[1mloud\u{1b}[0m\n");
    let trace = printed(&project, &["logs", "jobs/demo", "passes", "logs/agent/trace.json"]);
    assert_eq!(trace, "{}\n");
}

#[test]
fn errors_of_commands_that_read_run_are_explained() {
    let project = finished();
    for (name, arguments) in [
        ("no_run", &["status", "tasks"][..]),
        ("no_jobs", &["list", "missing"]),
        ("no_trial", &["show", "jobs/demo", "other"]),
        ("many_trials", &["show", "jobs/demo", "tasks"]),
        ("no_output", &["logs", "jobs/demo", "passes", "other.txt"]),
        ("no_try", &["logs", "jobs/demo", "passes", "--try", "7"]),
    ] {
        let exit = project.rollout(arguments).wait(DEADLINE).expect_code(ExitCode::Config);
        assert_printed(&format!("error_{name}"), &normalized(&project, &exit.stderr));
    }
}
