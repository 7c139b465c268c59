//! Trials over the scripted provider.

mod artifacts;
mod before_agent;
mod egress_faults;
mod faults;
mod format_doubt;
mod harness;
mod harness_control;
mod harness_live;
mod health;
mod hostile;
mod image_health;
mod parking;
mod paths;
mod phases;
mod rewards;
mod rules;
mod separate_verifier;
mod steps;
mod stops;
mod workspace_diffs;

use rollout_protocol::error::TrialError;
use rollout_protocol::record::TrialRecord;

use super::testing::TrialFixture;
use crate::executor::{FileRole, Finished};

/// A trial that has a verdict.
fn verdict(finished: Finished<TrialRecord>) -> Finished<TrialRecord> {
    assert_eq!(finished.stopped, None, "{finished:?}");
    finished
}

/// Whether the report of a trial holds its whole result.
fn is_bare(finished: &Finished<TrialRecord>) -> bool {
    finished.clone().into_any_kind().is_bare()
}

/// Runs a trial that has a verdict, and checks that nothing is left of its environment.
async fn run(rig: &TrialFixture) -> Finished<TrialRecord> {
    let finished = verdict(rig.run().await);
    assert_eq!(rig.provider.leaked(), Vec::<String>::new());
    assert_eq!(rig.provider.busy(), Vec::<String>::new());
    finished
}

fn error(finished: &Finished<TrialRecord>) -> &TrialError {
    finished.record.verdict.error.as_ref().expect("an error")
}

/// An error in short: type, code, class and retry class.
fn error_summary(error: &TrialError) -> String {
    let [class, retry] = [
        serde_json::to_string(&error.class).expect("text"),
        serde_json::to_string(&error.retry).expect("text"),
    ];
    let text = format!("{} {} {class} {retry}", error.kind, error.code);
    text.replace('"', "")
}

/// Text of a captured output.
fn output(finished: &Finished<TrialRecord>, wanted: &str) -> String {
    let found = finished.files.iter().find(|file| match &file.role {
        FileRole::Output { path, .. } => path == wanted,
        _ => false,
    });
    let Some(file) = found else { panic!("no {wanted} in {:?}", finished.files) };
    std::fs::read_to_string(&file.file).expect("text")
}

/// Paths of the captured outputs.
fn outputs(finished: &Finished<TrialRecord>) -> Vec<&str> {
    let mut paths = Vec::new();
    for file in &finished.files {
        if let FileRole::Output { path, .. } = &file.role {
            paths.push(path.as_str());
        }
    }
    paths
}

/// Names and contents of the collected logs.
fn logs(finished: &Finished<TrialRecord>) -> Option<Vec<(String, Vec<u8>)>> {
    archive(finished, |role| matches!(role, FileRole::Logs { .. }))
}

/// Names and contents of an archive among a trial's files.
fn archive(
    finished: &Finished<TrialRecord>,
    wanted: impl Fn(&FileRole) -> bool,
) -> Option<Vec<(String, Vec<u8>)>> {
    let file = finished.files.iter().find(|file| wanted(&file.role))?;
    let tar = std::fs::File::open(&file.file).expect("the archive");
    let mut found = Vec::new();
    for entry in tar::Archive::new(tar).entries().expect("a tar archive") {
        let mut entry = entry.expect("an entry");
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let mut content = Vec::new();
        std::io::Read::read_to_end(&mut entry, &mut content).expect("content");
        found.push((name, content));
    }
    Some(found)
}

fn log_names(finished: &Finished<TrialRecord>) -> Vec<String> {
    logs(finished).into_iter().flatten().map(|(name, _)| name).collect()
}

/// Codes of the errors except the first.
fn secondary_codes(record: &TrialRecord) -> Vec<&str> {
    record.secondary_errors.iter().map(|error| error.code.as_str()).collect()
}
