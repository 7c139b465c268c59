//! `error.txt`: the errors of a trial as readable text.

use std::fmt::Write as _;

use rollout_protocol::error::{ErrorClass, TrialError};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::{Execution, OutputFile, Settlement, TrialRecord};

use crate::results::escape;

/// The text; `None` for a trial without errors.
pub(crate) fn render(settlement: &Settlement, record: Option<&TrialRecord>) -> Option<String> {
    let first = settlement.verdict.error.as_ref();
    let others = record.map_or(&[][..], |record| &record.secondary_errors);
    let main = first.or(others.first())?;
    let mut text = String::new();
    error(&mut text, main);
    if let Some(by) = &settlement.by {
        execution(&mut text, by, record);
    }
    let others = if first.is_some() { others } else { &others[1..] };
    if !others.is_empty() {
        text.push_str("\nFurther errors:\n");
        for other in others {
            line(
                &mut text,
                &format!("* {} ({}, {}): {}", other.kind, other.code, other.phase, other.message),
            );
        }
    }
    let outputs: Vec<&OutputFile> = (record.iter())
        .flat_map(|record| &record.outputs)
        .filter(|output| is_of_phase(&output.path, main.phase))
        .collect();
    if !outputs.is_empty() {
        text.push_str("\nWhere to look:\n");
        for output in outputs {
            let cut = if output.truncated { ", middle truncated" } else { "" };
            line(&mut text, &format!("* {} ({} bytes{cut})", output.path, output.total_bytes));
        }
    }
    Some(text)
}

fn error(text: &mut String, error: &TrialError) {
    line(text, &format!("{}: {}", error.kind, error.message));
    text.push('\n');
    line(text, &format!("code:  {}", error.code));
    line(text, &format!("class: {}", class(error.class)));
    line(text, &format!("phase: {}", error.phase));
}

fn execution(text: &mut String, by: &Execution, record: Option<&TrialRecord>) {
    line(text, &format!("try:   {} (execution {})", by.try_id, by.exec));
    let host = record.map_or_else(String::new, |record| format!(" on {}", record.host));
    line(text, &format!("ran by {}{host}", by.worker));
    if let Some(environment) = record.and_then(|record| record.environment.as_ref()) {
        line(text, &format!("in the {} environment {}", environment.provider, environment.id));
        if let Some(how) = &environment.preserved {
            line(text, &format!("which was kept: {how}"));
        }
    }
}

const fn class(class: ErrorClass) -> &'static str {
    match class {
        ErrorClass::Infrastructure => "infrastructure (no evidence about agent or task)",
        ErrorClass::Agent => "agent",
        ErrorClass::Verifier => "verifier",
        ErrorClass::Task => "task",
    }
}

/// Whether a captured file is output of a phase.
fn is_of_phase(path: &str, phase: Phase) -> bool {
    match phase {
        Phase::AgentSetup => path.starts_with("setup/"),
        Phase::AgentExecution => path.starts_with("command/"),
        Phase::Verification => path.starts_with("logs/verifier/"),
        Phase::Queued | Phase::EnvironmentSetup | Phase::Collection | Phase::Teardown => {
            !["setup/", "command/", "logs/"].iter().any(|prefix| path.starts_with(prefix))
        }
    }
}

fn line(text: &mut String, content: &str) {
    writeln!(text, "{}", escape::block(content)).expect("writing to a string does not fail");
}
