//! `VALIDATION_REPORT.md` and `VALIDATION_REPORT.json`: equal searches give equal reports.

use rollout_engine::atomic_file;

use super::Validation;
use crate::workloads::search::driver::{SearchDirectory, SearchError};
use crate::workloads::search::report::cell;

/// Names of the reports below the search's directory.
const MARKDOWN_FILE: &str = "VALIDATION_REPORT.md";
const JSON_FILE: &str = "VALIDATION_REPORT.json";

impl Validation {
    /// The result, a line each.
    pub fn lines(&self) -> Vec<String> {
        let word = if self.is_sound() { "sound" } else { "NOT SOUND" };
        let mut lines = vec![format!("search {}: {word}", self.tree_run_id)];
        lines.extend(self.faults.iter().map(|fault| {
            format!("{}: {}: {}", self.fault_kind_name(fault.kind), fault.subject, fault.message)
        }));
        lines.extend(self.checked_lines());
        lines
    }

    /// Writes both reports again.
    ///
    /// # Errors
    /// [`SearchError::File`].
    pub fn write(&self, directory: &SearchDirectory) -> Result<(), SearchError> {
        atomic_file::write_json(&directory.root().join(JSON_FILE), self)?;
        directory.write_report(MARKDOWN_FILE, &self.markdown())
    }

    fn markdown(&self) -> String {
        let mut text = format!("# Validation of search {}\n\n", cell(&self.tree_run_id));
        if self.is_sound() {
            text.push_str("No faults found.\n");
        } else {
            text.push_str("| kind | of | fault |\n| --- | --- | --- |\n");
            for fault in &self.faults {
                let (subject, message) = (cell(&fault.subject), cell(&fault.message));
                text.push_str(&format!(
                    "| {} | {subject} | {message} |\n",
                    self.fault_kind_name(fault.kind)
                ));
            }
        }
        text.push_str("\n## Checked\n\n");
        for line in self.checked_lines() {
            text.push_str(&format!("* {line}\n"));
        }
        text
    }

    fn checked_lines(&self) -> Vec<String> {
        let checked = &self.checked;
        vec![
            format!("{} nodes and {} evals", checked.nodes, checked.evals),
            format!("{} required files and directories", checked.paths),
            format!("{} digests of files", checked.digests),
            format!("{} files of evals, read completely", checked.contents),
            match checked.outputs {
                Some(outputs) if checked.absent_outputs == 0 => {
                    format!("{outputs} outputs of evals, compared with their blobs")
                }
                Some(outputs) => format!(
                    "{outputs} outputs of evals, compared with their blobs; {} more are not there: \
                     `rollout repair` writes them again",
                    checked.absent_outputs
                ),
                None => "outputs of evals were not compared with a blob store".to_owned(),
            },
            format!("{} checkouts: they exist, their files were not compared", checked.checkouts),
            format!("{} ideas of the user that were shown: not checked", checked.outside),
            match checked.scores {
                Some(scores) => format!("{scores} scores, computed again"),
                None => "no scores: the search was simulated".to_owned(),
            },
            format!("{} decisions, made again", checked.decisions),
            match checked.commits {
                Some(commits) => format!("{commits} commits and their references"),
                None => "no commits: the search was simulated".to_owned(),
            },
        ]
    }

    fn fault_kind_name(&self, kind: super::ValidationFaultKind) -> String {
        let value = serde_json::to_value(kind).ok();
        value.as_ref().and_then(|value| value.as_str()).unwrap_or_default().replace('_', " ")
    }
}
