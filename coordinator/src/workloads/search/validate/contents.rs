//! Validation of the contents of eval files against the manifest.

use std::collections::VecDeque;
use std::fs;
use std::path::Path;

use rollout_base::backoff::error_chain;
use rollout_protocol::record::EvalRecord;
use rollout_store::archive::ArchivePath;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::ValidationFaultKind::{ChangedFile, MissingFile, UnreadableFile};
use super::files::FileChecker;
use crate::workloads::search::driver::EvalResult;
use crate::workloads::search::idea;
use crate::workloads::search::manifest::{
    ComparisonSummary, EvalStatus, SearchEval, SearchManifest,
};

/// Keys of a comparison's numbers: in its own file, and in the manifest.
const NUMBERS: [(&str, &str); 4] = [
    ("recommendation", "recommendation_summary"),
    ("primary_delta", "primary_delta"),
    ("baseline_rows_used", "baseline_rows_used"),
    ("candidate_rows_used", "candidate_rows_used"),
];

impl FileChecker<'_> {
    /// Checks the files of a settled eval whose paths were checked before.
    pub(super) fn check_contents(&mut self, manifest: &SearchManifest, eval: &SearchEval) {
        let subject = format!("eval {}", eval.eval_id);
        self.check_idea(&subject, eval);
        self.check_result(&subject, manifest, eval);
        self.check_scores(&subject, eval);
        let kept = eval.status != EvalStatus::Failed || manifest.run_config.keep_failed_artifacts;
        // A simulated eval has no logs.
        if let Some(experiment) = eval.experiment_dir.as_deref().filter(|_| kept)
            && !manifest.run_config.dry_run
        {
            self.check_experiment(&subject, manifest, eval, experiment);
            self.read_all_below(&subject, experiment);
        }
    }

    /// Checks the idea that was tried: its normalized text must not be repeated.
    fn check_idea(&mut self, subject: &str, eval: &SearchEval) {
        let path = &eval.idea_path;
        let Some(content) = self.read(subject, path) else { return };
        let found = idea::idea_file(path.clone(), &content);
        if found.normalized_sha256 != eval.idea_normalized_sha256 {
            let message = format!("{path} is not the idea that was tried");
            self.findings.add(ChangedFile, subject, message);
        }
    }

    /// Checks `eval_result.json`, from which the eval was merged.
    fn check_result(&mut self, subject: &str, manifest: &SearchManifest, eval: &SearchEval) {
        let path = format!("{}/eval_result.json", eval.eval_output_root);
        // A missing file is reported elsewhere.
        if !self.directory.root().join(&path).exists() {
            return;
        }
        self.findings.checked.contents += 1;
        let found = EvalResult::read(&self.directory.eval(eval.eval_id), manifest, eval.eval_id);
        let found = match found {
            Ok(Some(found)) => found,
            Ok(None) => {
                let message = format!("{path} is not the result of this eval");
                return self.findings.add(ChangedFile, subject, message);
            }
            Err(error) => {
                return self.findings.add(UnreadableFile, subject, error_chain(&error));
            }
        };
        let error =
            |error: &crate::workloads::search::manifest::SearchEvalError| error.error_type.clone();
        let merged = found.error.as_ref().map(error);
        let is_same = [
            ("the status", found.status == eval.status),
            ("the number of attempts", found.attempt == eval.attempt),
            ("the commit", found.candidate_commit == eval.candidate_commit),
            ("the cost", found.cost == eval.cost),
            ("the model calls", found.calls == eval.calls),
            // An earlier version that wrote the manifest again has left them out there.
            (
                "the possible secrets",
                eval.possible_secrets.is_empty() || found.possible_secrets == eval.possible_secrets,
            ),
            ("the seconds", found.seconds == eval.seconds),
            ("the worker", found.worker == eval.worker),
            (
                "the times",
                (found.started_at, found.finished_at) == (eval.started_at, eval.finished_at),
            ),
            // Merging records an error for results that cannot be scored.
            ("the error", merged.is_none() || merged == eval.error.as_ref().map(error)),
        ];
        for (what, _) in is_same.into_iter().filter(|(_, same)| !same) {
            let message = format!("{what} in {path} differs from the manifest");
            self.findings.add(ChangedFile, subject, message);
        }
    }

    /// Checks `score.json` with both comparisons.
    fn check_scores(&mut self, subject: &str, eval: &SearchEval) {
        let views =
            [("parent_relative", &eval.parent_relative), ("root_relative", &eval.root_relative)];
        for (key, view) in views {
            let Some(view) = view else { continue };
            let path = &view.summary_json_path;
            let Some(document) = self.read_json::<Value>(subject, path) else { continue };
            if !matches_summary(&document[key], view) {
                let message = format!("`{key}` in {path} differs from the manifest");
                self.findings.add(ChangedFile, subject, message);
            }
        }
    }

    /// Checks the records of all attempts and, by digest, the outputs that they name.
    fn check_experiment(
        &mut self,
        subject: &str,
        manifest: &SearchManifest,
        eval: &SearchEval,
        experiment: &str,
    ) {
        for attempt in 1..=eval.attempt {
            let tried = format!("{experiment}/attempt-{attempt}");
            let path = format!("{tried}/record.json");
            let is_needed = attempt == eval.attempt && eval.status == EvalStatus::Completed;
            if !self.directory.root().join(&path).exists() {
                if is_needed {
                    self.findings.add(MissingFile, subject, format!("{path} is missing"));
                }
                continue;
            }
            let Some(record) = self.read_json::<EvalRecord>(subject, &path) else { continue };
            let name = (&record.name.tree, &record.name.eval);
            if name != (&manifest.tree_run_id, &eval.eval_id.to_string()) {
                let message = format!("{path} is the record of another eval");
                self.findings.add(ChangedFile, subject, message);
                continue;
            }
            for output in &record.outputs {
                let Ok(Some(clean)) = ArchivePath::clean(output.path.as_bytes()) else { continue };
                let path = format!("{tried}/{}", clean.as_path().display());
                self.check_digest(subject, &path, &output.blob.digest.hex());
            }
            let kept = eval.candidate_results_provenance.as_ref().filter(|_| is_needed);
            if let (Some(results), Some(kept)) = (&record.results, kept)
                && results.digest.hex() != kept.sha256
            {
                let message = format!("{path} names other results than the manifest");
                self.findings.add(ChangedFile, subject, message);
            }
        }
    }

    /// Reads all files below a directory to the end.
    fn read_all_below(&mut self, subject: &str, path: &str) {
        let mut next = VecDeque::from([path.to_owned()]);
        while let Some(path) = next.pop_front() {
            let place = self.directory.root().join(&path);
            let listed = fs::read_dir(&place).and_then(|entries| {
                entries
                    .map(|entry| {
                        let entry = entry?;
                        Ok((entry.file_name(), entry.file_type()?))
                    })
                    .collect::<std::io::Result<Vec<_>>>()
            });
            let mut listed = match listed {
                Ok(listed) => listed,
                Err(error) => {
                    self.add_unreadable(subject, &path, &error);
                    continue;
                }
            };
            listed.sort_by(|a, b| a.0.cmp(&b.0));
            for (name, kind) in listed {
                let path = format!("{path}/{}", name.to_string_lossy());
                if kind.is_dir() {
                    next.push_back(path);
                } else if kind.is_file() {
                    self.read_through(subject, &path, &place.join(&name));
                }
            }
        }
    }

    /// Reads a JSON file.
    fn read_json<T: DeserializeOwned>(&mut self, subject: &str, path: &str) -> Option<T> {
        let content = self.read(subject, path)?;
        match serde_json::from_slice(&content) {
            Ok(document) => Some(document),
            Err(error) => {
                let message = format!("{path} is not valid: {error}");
                self.findings.add(UnreadableFile, subject, message);
                None
            }
        }
    }

    /// Reads a file; a missing one is reported elsewhere.
    fn read(&mut self, subject: &str, path: &str) -> Option<Vec<u8>> {
        let place = self.directory.resolve_below(path)?;
        self.content(subject, path, &place)
    }

    fn content(&mut self, subject: &str, path: &str, place: &Path) -> Option<Vec<u8>> {
        if !place.is_file() {
            return None;
        }
        self.findings.checked.contents += 1;
        match fs::read(place) {
            Ok(content) => Some(content),
            Err(error) => {
                self.add_unreadable(subject, path, &error);
                None
            }
        }
    }
}

/// Whether a comparison in a file, whole or summarized, equals that of the manifest.
fn matches_summary(found: &Value, view: &ComparisonSummary) -> bool {
    let Ok(view) = serde_json::to_value(view) else { return false };
    NUMBERS.iter().all(|(whole, brief)| {
        let found = found.get(*whole).or_else(|| found.get(*brief)).unwrap_or(&Value::Null);
        *found == view[*brief]
    })
}
