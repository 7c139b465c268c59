//! The result tree of a job.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The run directory of a job.
#[derive(Debug, Clone)]
pub struct Results {
    directory: PathBuf,
}

/// The directory of a trial.
#[derive(Debug, Clone)]
pub struct TrialDirectory {
    /// `<agent>/<dataset>/<task>__<attempt>`.
    pub name: String,
    /// Its directory.
    pub directory: PathBuf,
    /// Its `result.json`.
    pub result: Value,
}

impl Results {
    /// The results in a run directory.
    pub fn new(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// The run directory.
    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// The job's `result.json`.
    ///
    /// # Panics
    /// When it is missing.
    #[track_caller]
    pub fn job(&self) -> Value {
        json(&self.directory.join("result.json")).expect("the job's result.json")
    }

    /// A number of the job's `result.json`.
    ///
    /// # Panics
    /// When it is missing.
    #[track_caller]
    pub fn count(&self, key: &str) -> u64 {
        let job = self.job();
        job[key].as_u64().unwrap_or_else(|| panic!("no {key} in {job:#}"))
    }

    /// Asserts that the job's totals equal those computed from its trials.
    ///
    /// # Panics
    /// With the differing figures.
    #[track_caller]
    pub fn assert_headline(&self) {
        let job = self.job();
        let trials = self.trials();
        assert_eq!(Some(trials.len()), job["results"].as_array().map(Vec::len), "{job:#}");
        let (mut scored, mut passed, mut single, mut several) = (0, 0, 0, 0);
        let (mut failures, mut sum, mut before_agent) = (BTreeMap::new(), 0.0, 0);
        for trial in &trials {
            match trial.result["outcome"].as_str() {
                Some("completed") => {
                    scored += 1;
                    let reward = trial.reward();
                    let whole = trial.result["unverified_steps"].is_null();
                    passed += u64::from(reward == Some(1.0) && whole);
                    sum +=
                        reward.map_or(0.0, |reward| if whole { reward } else { reward.min(0.0) });
                    *(if reward.is_some() { &mut single } else { &mut several }) += 1;
                }
                Some("failed") => {
                    let failure = match trial.result["error"]["code"].as_str() {
                        Some("unsupported_by_environment") => "unsupported",
                        _ => trial.result["error"]["class"].as_str().expect("a class"),
                    };
                    *failures.entry(failure.to_owned()).or_insert(0u64) += 1;
                    let is_early = trial.result["error"]["before_agent"] == true;
                    before_agent += u64::from(is_early);
                    let uncounted = ["infrastructure", "unsupported"].contains(&failure);
                    scored += u64::from(!uncounted && !is_early);
                }
                _ => {}
            }
        }
        let over = scored - several;
        let mean = (over > 0 && (single > 0 || several == 0)).then(|| sum / over as f64);
        let count = |key: &str| job["scored"][key].as_u64();
        assert_eq!((count("trials"), count("passed")), (Some(scored), Some(passed)), "{job:#}");
        let difference =
            job["scored"]["mean_reward"].as_f64().zip(mean).map(|(a, b)| (a - b).abs());
        let same = match difference {
            Some(difference) => difference < 1e-9,
            None => job["scored"]["mean_reward"].is_null() && mean.is_none(),
        };
        assert!(same, "mean reward {mean:?}: {job:#}");
        assert_eq!(job["task_failures_before_agent"], before_agent, "{job:#}");
        for (kind, found) in job["failures"].as_object().expect("failures") {
            let expected = failures.get(kind).copied().unwrap_or_default();
            assert_eq!(found.as_u64(), Some(expected), "{kind}: {job:#}");
        }
    }

    /// Every trial with a `result.json`, by name.
    pub fn trials(&self) -> Vec<TrialDirectory> {
        let mut trials = Vec::new();
        for agent in directories(&self.directory) {
            for dataset in directories(&agent) {
                for directory in directories(&dataset) {
                    if let Some(result) = json(&directory.join("result.json")) {
                        let name = directory.strip_prefix(&self.directory).expect("below");
                        let name = name.to_string_lossy().into_owned();
                        trials.push(TrialDirectory { name, directory, result });
                    }
                }
            }
        }
        trials.sort_by(|a, b| a.name.cmp(&b.name));
        trials
    }

    /// Number of trials with a `result.json`, for conditions that are polled: nothing is read.
    pub fn trial_count(&self) -> usize {
        let trials = directories(&self.directory).into_iter().flat_map(|agent| directories(&agent));
        let trials = trials.flat_map(|dataset| directories(&dataset));
        trials.filter(|trial| trial.join("result.json").is_file()).count()
    }

    /// First attempt of an agent at a task, in any dataset.
    ///
    /// # Panics
    /// When it has no result, with the names of the trials that have one.
    #[track_caller]
    pub fn trial(&self, agent: &str, task: &str) -> TrialDirectory {
        let trials = self.trials();
        let names: Vec<_> = trials.iter().map(|trial| trial.name.clone()).collect();
        let is_it = |trial: &TrialDirectory| {
            trial.result["agent_name"] == agent
                && trial.result["task_name"] == task
                && trial.result["attempt"] == 1
        };
        let found = trials.into_iter().find(is_it);
        found.unwrap_or_else(|| panic!("no trial of {agent} at {task} among {names:#?}"))
    }
}

impl TrialDirectory {
    /// Its reward.
    pub fn reward(&self) -> Option<f64> {
        self.result["reward"].as_f64()
    }

    /// The type of its error.
    pub fn error(&self) -> Option<&str> {
        self.result["error"]["type"].as_str()
    }

    /// The message of its error.
    pub fn message(&self) -> &str {
        self.result["error"]["message"].as_str().unwrap_or_default()
    }

    /// Content of a file of the trial, if it exists.
    pub fn text(&self, name: &str) -> Option<String> {
        let bytes = fs::read(self.directory.join(name)).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Content of a JSON file, if it exists.
///
/// # Panics
/// When it is not JSON: a reader must never see a half-written file.
pub fn json(path: &Path) -> Option<Value> {
    let text = fs::read(path).ok()?;
    let value = serde_json::from_slice(&text);
    Some(value.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

fn directories(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    // Names that begin with a dot are unfinished results.
    let hidden = |path: &Path| path.file_name().is_some_and(|n| n.as_encoded_bytes()[0] == b'.');
    let entries = entries.map(|entry| entry.path()).filter(|path| !hidden(path));
    entries.filter(|path| path.is_dir() && !path.is_symlink()).collect()
}
