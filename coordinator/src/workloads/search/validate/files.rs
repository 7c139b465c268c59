//! Validation of a search's files: existence and digests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rollout_base::regular_file;

use super::ValidationFaultKind::{
    BadPath, ChangedFile, MissingFile, OutsideArtifacts, UnreadableFile,
};
use super::ValidationFindings;
use crate::workloads::search::driver::{DesiredRepositoryState, SearchDirectory};
use crate::workloads::search::manifest::{
    ArtifactPolicy, CopiedFile, EvalStatus, SearchEval, SearchManifest, SearchNode,
};
use crate::workloads::search::policy::decide::ARTIFACTS_PREFIX;

pub(super) struct FileChecker<'a> {
    pub(super) directory: &'a SearchDirectory,
    pub(super) findings: &'a mut ValidationFindings,
    /// Digests of files already read.
    known: BTreeMap<PathBuf, String>,
}

pub(super) fn check(
    directory: &SearchDirectory,
    manifest: &SearchManifest,
    findings: &mut ValidationFindings,
) {
    let mut files = FileChecker { directory, findings, known: BTreeMap::new() };
    let copied = manifest.run_config.artifact_policy == ArtifactPolicy::CopyToRunRoot;
    let root = &manifest.root;
    files.check_artifact(
        "root",
        &root.root_baseline_csv_path,
        &root.root_baseline_provenance,
        copied,
    );
    for node in manifest.nodes.values() {
        files.check_node(node, copied, &manifest.run_config.node_ideas_root_dir);
    }
    for eval in manifest.evaluations.values() {
        files.check_eval(eval, copied, manifest.run_config.keep_failed_artifacts);
        if eval.status.is_settled() {
            files.check_contents(manifest, eval);
        }
    }
    // A simulated search has no checkouts.
    if !manifest.run_config.dry_run {
        for path in DesiredRepositoryState::from_manifest(manifest).worktrees.keys() {
            files.findings.checked.checkouts += 1;
            files.check_checkout(path);
        }
    }
}

impl FileChecker<'_> {
    /// Checks the checkout of an unexpanded node or of a kept candidate.
    fn check_checkout(&mut self, path: &str) {
        let subject = match path.split_once('/') {
            Some(("cand", eval)) => format!("eval {eval}"),
            Some((_, node)) => format!("node {node}"),
            None => "search".to_owned(),
        };
        if self.require_path(&subject, path).is_some_and(|real| !real.is_dir()) {
            self.findings.add(MissingFile, subject, format!("{path} is not a checkout"));
        }
    }

    fn check_node(&mut self, node: &SearchNode, copied: bool, ideas: &str) {
        let subject = format!("node {}", node.node_id);
        let baseline = &node.baseline_results_csv_path;
        self.check_artifact(&subject, baseline, &node.baseline_provenance, copied);
        for file in &node.context_pack_files {
            self.check_digest(&subject, &file.path, &file.sha256);
        }
        let own = format!("{ideas}/");
        for shown in &node.context_idea_files {
            if shown.path.starts_with(&own) {
                self.check_digest(&subject, &shown.path, &shown.sha256);
            } else {
                // The user's own file, which may have changed since.
                self.findings.checked.outside += 1;
            }
        }
        for idea in node.generated_idea_files.iter().flatten() {
            self.check_digest(&subject, &idea.path, &idea.sha256);
        }
    }

    /// Checks results: their path and their digest.
    fn check_artifact(&mut self, subject: &str, path: &str, kept: &CopiedFile, copied: bool) {
        if path != kept.copied_to_path {
            let message = format!("{path} is not the copied file, {}", kept.copied_to_path);
            self.findings.add(ChangedFile, subject, message);
        }
        if copied && !path.starts_with(ARTIFACTS_PREFIX) {
            let message = format!("{path} is not below {ARTIFACTS_PREFIX}");
            self.findings.add(OutsideArtifacts, subject, message);
        }
        self.check_digest(subject, path, &kept.sha256);
    }

    fn check_eval(&mut self, eval: &SearchEval, copied: bool, keeps_failed: bool) {
        let subject = format!("eval {}", eval.eval_id);
        self.require_path(&subject, &eval.idea_path);
        if !eval.status.is_settled() {
            return;
        }
        self.require_path(&subject, &format!("{}/eval_result.json", eval.eval_output_root));
        let kept = eval.status != EvalStatus::Failed || keeps_failed;
        if let Some(experiment) = eval.experiment_dir.as_ref().filter(|_| kept) {
            self.require_path(&subject, experiment);
        }
        if let (Some(path), Some(kept)) =
            (&eval.candidate_results_csv_path, &eval.candidate_results_provenance)
        {
            self.check_artifact(&subject, path, kept, copied);
            self.require_path(&subject, &kept.source_path);
        }
        for view in [&eval.parent_relative, &eval.root_relative].into_iter().flatten() {
            self.require_path(&subject, &view.summary_json_path);
        }
    }

    /// Requires a file or directory whose real path is below the search's directory.
    fn require_path(&mut self, subject: &str, path: &str) -> Option<PathBuf> {
        self.findings.checked.paths += 1;
        let Some(place) = self.directory.resolve_below(path) else {
            let message = format!("{path} is not a path below the directory of the search");
            self.findings.add(BadPath, subject, message);
            return None;
        };
        let Ok(real) = place.canonicalize() else {
            self.findings.add(MissingFile, subject, format!("{path} is missing"));
            return None;
        };
        let root = self.directory.root().canonicalize().ok()?;
        if !real.starts_with(root) {
            let message = format!("{path} leads out of the directory of the search");
            self.findings.add(BadPath, subject, message);
            return None;
        }
        Some(real)
    }

    /// Checks the digest of a file.
    pub(super) fn check_digest(&mut self, subject: &str, path: &str, expected: &str) {
        let Some(real) = self.require_path(subject, path) else { return };
        if !real.is_file() {
            self.findings.add(MissingFile, subject, format!("{path} is not a file"));
            return;
        }
        if !self.known.contains_key(&real) {
            match sha256(&real) {
                Ok(found) => {
                    self.known.insert(real.clone(), found);
                    self.findings.checked.digests += 1;
                }
                Err(error) => return self.add_unreadable(subject, path, &error),
            }
        }
        if self.known.get(&real).is_none_or(|found| found != expected) {
            let message = format!("{path} has other bytes than recorded");
            self.findings.add(ChangedFile, subject, message);
        }
    }

    /// Reads a file to its end, unless it was read before.
    pub(super) fn read_through(&mut self, subject: &str, path: &str, place: &Path) {
        if place.canonicalize().is_ok_and(|real| self.known.contains_key(&real)) {
            return;
        }
        match sha256(place) {
            Ok(_) => self.findings.checked.contents += 1,
            Err(error) => self.add_unreadable(subject, path, &error),
        }
    }

    pub(super) fn add_unreadable(&mut self, subject: &str, path: &str, error: &std::io::Error) {
        self.findings.add(UnreadableFile, subject, format!("cannot read {path}: {error}"));
    }
}

fn sha256(path: &Path) -> std::io::Result<String> {
    regular_file::digest(path).map(|digest| digest.hex())
}
