//! A simulated backend: it runs no commands and touches no repository; the rest of a search is as
//! usual. The outcome of an eval follows from its number, see `scenario`.

mod scenario;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use jiff::SignedDuration;
use rollout_protocol::Timestamp;
use rollout_protocol::digest::{Digest, DigestHasher};

use self::scenario::{SimulatedOutcome, simulated_outcome};
use super::directory::remove_all;
use super::{
    BackendError, DesiredRepositoryState, EvalOrder, EvalResult, FailedRemoval, IdeasOrder,
    RepositoryMaintenance, ScoreError, Scores, SearchBackend, SearchError, SweepFiles,
};
use crate::workloads::search::manifest::{
    CleanupKind, DeferredCleanup, EvalStatus, SearchEvalError, SearchRunConfig,
};
use rollout_protocol::search::{EvalId, NodeId};

/// The first removals of these evals' checkouts fail.
const UNREMOVABLE_EVERY: u32 = 3;

/// Failed removals before one succeeds.
const REMOVAL_FAILURES: u32 = 2;

/// Simulates commands and a repository.
#[derive(Debug)]
pub struct SimulatedBackend {
    root: PathBuf,
    results_file: String,
    rows: u64,
    column: String,
    running: BTreeMap<EvalId, EvalOrder>,
}

impl SimulatedBackend {
    /// A simulation for the search in `root`.
    pub fn new(root: impl Into<PathBuf>, config: &crate::config::TreeFile) -> Self {
        let search = &config.search;
        Self {
            root: root.into(),
            results_file: config.results_file.clone(),
            rows: rows(search.sweep_config_limit, search.min_candidate_rows),
            column: config.profile.primary.column.clone(),
            running: BTreeMap::new(),
        }
    }

    fn checkout(&self, path: &str, commit: &str) -> std::io::Result<()> {
        let path = self.root.join(path);
        fs::create_dir_all(&path)?;
        fs::write(path.join("COMMIT"), format!("{commit}\n"))
    }

    /// Writes the outcome of an eval to its directory.
    fn write_result(&self, order: &EvalOrder) -> Result<EvalResult, SearchError> {
        let (id, outcome) = (order.eval.eval_id, simulated_outcome(order.eval.eval_id));
        // The first attempt of some evals fails.
        let attempt = if id.0 % 10 == 6 && order.retries > 0 { 2 } else { 1 };
        for n in 1..=attempt {
            let path = order.root.join(format!("attempt-{n}"));
            remove_all(&path)?;
            fs::create_dir_all(&path).map_err(SearchError::io("create", &path))?;
            let text = self.sweep(&outcome, n == attempt);
            let file = path.join(&self.results_file);
            if let Some(text) = text {
                fs::write(&file, text).map_err(SearchError::io("write", &file))?;
            }
        }
        let result = self.result(order, &outcome, attempt);
        result.write(&order.root)?;
        Ok(result)
    }

    fn result(&self, order: &EvalOrder, outcome: &SimulatedOutcome, attempt: u32) -> EvalResult {
        let (eval, number) = (&order.eval, order.eval.eval_id.0);
        let (begins, ends) = (1 + number % 5, 11 + number % 7);
        let after = |seconds: u32| {
            let seconds = SignedDuration::from_secs(seconds.into());
            eval.queued_at.saturating_add(seconds).unwrap_or(Timestamp::MAX)
        };
        let commit = commit(&[&order.parent_commit, &eval.idea_normalized_sha256]);
        let file = format!("attempt-{attempt}/{}", self.results_file);
        let (status, candidate_commit, results_csv, error) = match outcome {
            SimulatedOutcome::Results(_) => (EvalStatus::Completed, Some(commit), Some(file), None),
            SimulatedOutcome::NoChanges => (EvalStatus::NoChanges, None, None, None),
            SimulatedOutcome::TimedOut => {
                let error = SearchEvalError {
                    error_type: "sweep_timeout".to_owned(),
                    message: "the simulated sweep timed out".to_owned(),
                    timed_out: true,
                    infrastructure: false,
                };
                (EvalStatus::Failed, Some(commit), None, Some(error))
            }
        };
        EvalResult {
            eval_id: eval.eval_id,
            parent_node_id: eval.parent_node_id,
            idea_normalized_sha256: eval.idea_normalized_sha256.clone(),
            round: order.round,
            status,
            attempt,
            worker: Some("player".to_owned()),
            started_at: Some(after(begins)),
            finished_at: Some(after(ends)),
            seconds: Some(f64::from(ends - begins) * f64::from(attempt)),
            candidate_commit,
            results_csv,
            cost: Some(0.25 * f64::from(1 + number % 3)),
            calls: Vec::new(),
            possible_secrets: Vec::new(),
            error,
        }
    }

    /// The results of a sweep; only the first half for a failed attempt.
    fn sweep(&self, outcome: &SimulatedOutcome, whole: bool) -> Option<String> {
        let SimulatedOutcome::Results(results) = outcome else { return None };
        let mut text = format!("config_id,status,{}\n", self.column);
        let rows = if whole { self.rows } else { self.rows.div_ceil(2) };
        for row in 0..rows {
            let line = if row == 0 && !results.complete {
                format!("{row},error,nan\n")
            } else {
                format!("{row},ok,{}\n", results.delta.unwrap_or(0.0))
            };
            text.push_str(&line);
        }
        Some(text)
    }
}

/// Number of rows of a simulated sweep.
fn rows(limit: Option<u64>, least: u64) -> u64 {
    limit.unwrap_or(least).clamp(1, 100_000)
}

/// A commit ID derived from the parts.
fn commit(parts: &[&str]) -> String {
    let mut hasher = DigestHasher::default();
    for part in parts {
        hasher.update_part(part.as_bytes());
    }
    hasher.finish().hex().chars().take(40).collect()
}

fn failed(what: &str) -> impl Fn(std::io::Error) -> BackendError + '_ {
    move |error| BackendError::Failed { what: what.to_owned(), reason: error.to_string() }
}

impl RepositoryMaintenance for SimulatedBackend {
    fn reconcile(
        &mut self,
        wanted: &DesiredRepositoryState,
        deferred: &BTreeSet<String>,
    ) -> Result<Vec<FailedRemoval>, BackendError> {
        for (path, commit) in &wanted.worktrees {
            self.checkout(path, commit).map_err(failed("cannot make a checkout"))?;
        }
        let mut left = Vec::new();
        for kind in ["wt", "cand"] {
            for name in names(&self.root.join(kind)).map_err(failed("cannot list checkouts"))? {
                let path = format!("{kind}/{name}");
                let stays = wanted.worktrees.contains_key(&path)
                    || wanted.candidates.contains(&path)
                    || deferred.contains(&path);
                if stays {
                    continue;
                }
                if kind == "cand" && name.parse::<u32>().is_ok_and(|id| id % UNREMOVABLE_EVERY == 2)
                {
                    let reason = "simulated: a file in it is in use".to_owned();
                    left.push(FailedRemoval { path, kind: CleanupKind::Worktree, reason });
                } else if let Err(error) = remove_all(&self.root.join(&path)) {
                    let reason = error.to_string();
                    left.push(FailedRemoval { path, kind: CleanupKind::Worktree, reason });
                }
            }
        }
        Ok(left)
    }

    fn remove(&mut self, item: &DeferredCleanup) -> Result<(), String> {
        if item.attempts < REMOVAL_FAILURES {
            return Err("simulated: a file in it is still in use".to_owned());
        }
        remove_all(&self.root.join(&item.path)).map_err(|error| error.to_string())
    }
}

impl SearchBackend for SimulatedBackend {
    fn resolve(&mut self, name: &str) -> Result<String, BackendError> {
        Ok(commit(&["root", name]))
    }

    fn diff(&mut self, from: &str, to: &str) -> Result<Vec<u8>, BackendError> {
        Ok(format!("simulated: from {from}\nto {to}\n").into_bytes())
    }

    fn generate_ideas(
        &mut self,
        orders: Vec<IdeasOrder>,
        done: &mut dyn FnMut(NodeId) -> Result<(), SearchError>,
    ) -> Result<(), SearchError> {
        for order in orders {
            let node = order.node.node_id;
            // Two more than needed: two repeat others.
            for n in 0..order.count.saturating_add(2) {
                let text = match n {
                    0 => "- The same idea everywhere\n".to_owned(),
                    2 => "* the SAME idea everywhere\r\n".to_owned(),
                    _ => format!("- Idea {n} of node {node}\n"),
                };
                let path = order.into.join(format!("idea-{n:03}.md"));
                fs::write(&path, text).map_err(SearchError::io("write", &path))?;
            }
            done(node)?;
        }
        Ok(())
    }

    fn begin_eval(&mut self, order: EvalOrder) -> Result<(), BackendError> {
        let path = format!("cand/{}", order.eval.eval_id);
        self.checkout(&path, &order.parent_commit).map_err(failed("cannot make a checkout"))?;
        self.running.insert(order.eval.eval_id, order);
        Ok(())
    }

    /// All running evals end together; their results are returned in a pseudorandom order.
    fn next_result(&mut self) -> Result<EvalResult, BackendError> {
        let mut results = BTreeMap::new();
        for (id, order) in &self.running {
            let left = self.write_result(order).map_err(|error| BackendError::Failed {
                what: format!("cannot simulate eval {id}"),
                reason: error.to_string(),
            })?;
            results.insert(*id, left);
        }
        let first =
            self.running.keys().min_by_key(|id| Digest::sha256(&id.0.to_be_bytes())).copied();
        let none = || BackendError::Failed {
            what: "cannot wait for an eval".to_owned(),
            reason: "no eval is running".to_owned(),
        };
        let id = first.ok_or_else(none)?;
        self.running.remove(&id);
        results.remove(&id).ok_or_else(none)
    }

    fn score(&self, sweep: &SweepFiles<'_>) -> Result<Scores, ScoreError> {
        let config: &SearchRunConfig = &sweep.manifest.run_config;
        let rows = rows(config.sweep_config_limit, config.min_candidate_rows);
        Ok(scenario::simulated_scores(sweep.eval, rows, config.sweep_config_limit))
    }
}

/// Sorted names in a directory; it may be missing.
fn names(directory: &Path) -> std::io::Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

/// A finished simulated search for tests.
#[cfg(test)]
pub(crate) fn finished() -> (tempfile::TempDir, super::SearchDirectory) {
    let fixture = super::tests::SearchFixture::new();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(fixture.run());
    let directory = super::SearchDirectory::new(fixture.root());
    (fixture.into_directory(), directory)
}

/// The repeated ideas of the simulation count as equal.
#[cfg(test)]
mod tests {
    use crate::workloads::search::idea;

    #[test]
    fn repeated_idea_in_other_markup_normalizes_to_same_text() {
        let one = idea::normalize_idea("- The same idea everywhere\n");
        assert_eq!(one, idea::normalize_idea("* the SAME idea everywhere\r\n"));
    }
}
