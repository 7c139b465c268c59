//! Formats of log messages.

use rollout_protocol::exit::ExitCode;
use rollout_tests::project::Project;
use serde_json::Value;

use crate::cli::{DEADLINE, project};

/// A job of one trial in a sandbox.
fn job() -> Project {
    project().tasks(["faults/passes"], &[]).job("faults.yaml", &[("PROVIDER", "process")])
}

#[test]
fn json_logs_name_the_execution() {
    let project = job();
    let arguments = ["run", "job.yaml", "-q", "--log-format", "json"];
    let mut command = project.command(&arguments);
    command.env("ROLLOUT_LOG", "rollout_worker=debug");
    let exit = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success);
    let lines: Vec<Value> = (exit.stderr.lines())
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}")))
        .collect();
    assert!(!lines.is_empty(), "there are debug messages");
    for line in &lines {
        for key in ["timestamp", "level", "message"] {
            assert!(line[key].is_string(), "{key}: {line}");
        }
    }
    let spans: Vec<&Value> =
        lines.iter().map(|line| &line["span"]).filter(|span| span.is_object()).collect();
    assert!(!spans.is_empty(), "{}", exit.stderr);
    for span in spans {
        for key in ["run", "item", "try", "exec"] {
            assert!(span[key].is_string(), "{key}: {span}");
        }
    }
}

#[test]
fn text_logs_have_no_spans() {
    let project = job();
    let mut command = project.command(&["run", "job.yaml", "-q"]);
    command.env("ROLLOUT_LOG", "rollout_worker=debug");
    let exit = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success);
    assert!(exit.stderr.contains("DEBUG") && !exit.stderr.contains("exec="), "{}", exit.stderr);
}

#[test]
fn unknown_log_format_is_refused() {
    let project = job();
    let mut command = project.command(&["run", "job.yaml"]);
    command.env("ROLLOUT_LOG_FORMAT", "xml");
    let exit = project.start(command).wait(DEADLINE).expect_code(ExitCode::Usage);
    assert!(exit.stderr.contains("--log-format"), "{}", exit.stderr);
}
