//! Trials over the scripted provider.

mod apart;
mod artifacts;
mod faults;
mod hostile;
mod parking;
mod paths;
mod phases;
mod rewards;
mod rules;
mod steps;
mod stops;

use rollout_protocol::error::TrialError;
use rollout_protocol::record::TrialRecord;

use super::testing::Rig;
use super::{Draft, FileRole, Finished};

/// The draft of a trial that has a verdict.
fn verdict(finished: Finished) -> Draft {
    match finished {
        Finished::Verdict(draft) => draft,
        Finished::Stopped { phase, .. } => panic!("stopped in {phase}"),
    }
}

/// Runs a trial that has a verdict, and checks that nothing is left of its environment.
async fn run(rig: &Rig) -> Draft {
    let draft = verdict(rig.run().await);
    assert_eq!(rig.provider.leaked(), Vec::<String>::new());
    assert_eq!(rig.provider.busy(), Vec::<String>::new());
    draft
}

fn error(draft: &Draft) -> &TrialError {
    draft.record.verdict.error.as_ref().expect("an error")
}

/// An error in short: type, code, class and retry class.
fn brief(error: &TrialError) -> String {
    let [class, retry] = [
        serde_json::to_string(&error.class).expect("text"),
        serde_json::to_string(&error.retry).expect("text"),
    ];
    let text = format!("{} {} {class} {retry}", error.kind, error.code);
    text.replace('"', "")
}

/// Text of a captured output.
fn output(draft: &Draft, wanted: &str) -> String {
    let found = draft.files.iter().find(|file| match &file.role {
        FileRole::Output { path, .. } => path == wanted,
        _ => false,
    });
    let Some(file) = found else { panic!("no {wanted} in {:?}", draft.files) };
    std::fs::read_to_string(&file.file).expect("text")
}

/// Paths of the captured outputs.
fn outputs(draft: &Draft) -> Vec<&str> {
    let mut paths = Vec::new();
    for file in &draft.files {
        if let FileRole::Output { path, .. } = &file.role {
            paths.push(path.as_str());
        }
    }
    paths
}

/// Names and contents of the collected logs.
fn logs(draft: &Draft) -> Option<Vec<(String, Vec<u8>)>> {
    archive(draft, |role| matches!(role, FileRole::Logs { .. }))
}

/// Names and contents of an archive among a draft's files.
fn archive(draft: &Draft, wanted: impl Fn(&FileRole) -> bool) -> Option<Vec<(String, Vec<u8>)>> {
    let file = draft.files.iter().find(|file| wanted(&file.role))?;
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

fn log_names(draft: &Draft) -> Vec<String> {
    logs(draft).into_iter().flatten().map(|(name, _)| name).collect()
}

/// Codes of the errors beside the first.
fn secondary(record: &TrialRecord) -> Vec<&str> {
    record.secondary_errors.iter().map(|error| error.code.as_str()).collect()
}
