//! The table of expected results of every fixture.

use std::collections::BTreeMap;
use std::fs;

use serde::Deserialize;

use crate::project::fixtures;
use crate::results::TrialDirectory;

/// `tests/fixtures/expected.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ExpectedTrials {
    /// Tasks under `tasks/faults`.
    pub faults: BTreeMap<String, ExpectedTrial>,
    /// Agents of `jobs/agents.yaml`.
    pub agents: BTreeMap<String, ExpectedTrial>,
    /// Job files and texts their errors must contain.
    pub invalid_jobs: BTreeMap<String, Vec<String>>,
    /// Tasks under `tasks/bad-toml` and texts their errors must contain.
    pub invalid_tasks: BTreeMap<String, Vec<String>>,
}

/// Expected result of a trial.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedTrial {
    /// Type of its error; `None` for no error.
    pub error: Option<String>,
    /// Text that the error message must contain.
    pub says: Option<String>,
    /// Its reward; `None` for no reward.
    pub reward: Option<f64>,
    /// Providers that the entry applies to.
    #[serde(default = "every_provider")]
    pub providers: Vec<String>,
}

fn every_provider() -> Vec<String> {
    ["docker", "process"].map(str::to_owned).into()
}

impl ExpectedTrials {
    /// Reads the table.
    ///
    /// # Panics
    /// When the table is invalid.
    pub fn read() -> Self {
        let path = fixtures().join("expected.toml");
        let text = fs::read_to_string(&path).expect("expected.toml");
        toml::from_str(&text).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Entries of `table` that apply to `provider`.
    pub fn for_provider<'a>(
        table: &'a BTreeMap<String, ExpectedTrial>,
        provider: &str,
    ) -> Vec<(&'a str, &'a ExpectedTrial)> {
        let is_for =
            |outcome: &ExpectedTrial| outcome.providers.iter().any(|name| name == provider);
        table.iter().filter(|(_, o)| is_for(o)).map(|(name, o)| (name.as_str(), o)).collect()
    }
}

impl ExpectedTrial {
    /// Differences between `trial` and the expectation.
    pub fn differences(&self, trial: &TrialDirectory) -> Vec<String> {
        let mut differences = Vec::new();
        if trial.error() != self.error.as_deref() {
            let got = &trial.result["error"];
            differences.push(format!("{}: expected {:?}, got {got}", trial.name, self.error));
        }
        if trial.reward() != self.reward {
            let got = trial.reward();
            differences.push(format!("{}: expected {:?}, got {got:?}", trial.name, self.reward));
        }
        if let Some(text) = &self.says
            && !trial.message().contains(text)
        {
            let got = trial.message();
            differences.push(format!("{}: no {text:?} in {got:?}", trial.name));
        }
        // `error.txt` exists exactly when the trial has an error.
        let text = trial.text("error.txt");
        if text.is_some() != self.error.is_some() {
            differences.push(format!("{}: error.txt is {text:?}", trial.name));
        }
        differences
    }
}
