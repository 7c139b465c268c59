//! Tasks of both formats, and the table of expected oracle results.

use std::collections::BTreeMap;
use std::fs;

use serde::Deserialize;

use crate::project::{Project, copy, fixtures};
use crate::results::{Results, TrialDirectory};

/// `tests/fixtures/formats.toml`: datasets with their tasks.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct FormatTable(pub BTreeMap<String, BTreeMap<String, FormatOutcome>>);

/// Expected oracle result of a task.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FormatOutcome {
    /// Its reward; `None` for no reward.
    pub reward: Option<f64>,
    /// The verifier's rewards by key, if it reports several.
    #[serde(default)]
    pub rewards: BTreeMap<String, f64>,
    /// Type of its error; `None` for no error.
    pub error: Option<String>,
    /// Text that the error message must contain.
    says: Option<String>,
    /// Providers that can run it.
    #[serde(default = "every_provider")]
    providers: Vec<String>,
    /// Expected files below the trial directory, with their content.
    #[serde(default)]
    files: BTreeMap<String, String>,
    /// Files that must not exist.
    #[serde(default)]
    absent: Vec<String>,
    /// Differences in Harbor; read by the comparison with Harbor only.
    #[serde(default, rename = "harbor")]
    _harbor: Option<toml::Value>,
}

fn every_provider() -> Vec<String> {
    ["docker", "process"].map(str::to_owned).into()
}

impl FormatTable {
    /// Reads the table.
    ///
    /// # Panics
    /// When the table is invalid.
    pub fn read() -> Self {
        let text = fs::read_to_string(fixtures().join("formats.toml")).expect("formats.toml");
        toml::from_str(&text).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Writes a job with every task the provider can run, without those in `except`.
    pub fn write_job(&self, project: &Project, provider: &str, except: &[&str]) {
        let fixtures_dir = fixtures();
        let fixtures = fixtures_dir.display().to_string();
        let left_out = |dataset: &str| {
            let tasks = self.0[dataset].iter();
            let names = tasks.filter(|(name, outcome)| !outcome.runs(name, provider, except));
            let names: Vec<_> = names.map(|(name, _)| name.as_str()).collect();
            format!("[{}]", names.join(", "))
        };
        let values = [
            ("PROVIDER", provider),
            ("FIXTURES", &fixtures),
            ("HARBOR_EXCEPT", &left_out("harbor")),
            ("ROLLOUT_EXCEPT", &left_out("rollout")),
        ];
        copy(&fixtures_dir.join("jobs/formats.yaml"), &project.path().join("job.yaml"), &values);
    }

    /// Differences between the results and the table, and the number of trials compared.
    pub fn differences(
        &self,
        results: &Results,
        provider: &str,
        except: &[&str],
    ) -> (usize, Vec<String>) {
        let trials = results.trials();
        let (mut count, mut differences) = (0, Vec::new());
        for (dataset, tasks) in &self.0 {
            for (name, outcome) in tasks.iter().filter(|(n, o)| o.runs(n, provider, except)) {
                count += 1;
                let wanted = format!("oracle/{dataset}/{name}__1");
                match trials.iter().find(|trial| trial.name == wanted) {
                    Some(trial) => differences.extend(outcome.differences(trial)),
                    None => differences.push(format!("{wanted} has no result")),
                }
            }
        }
        if trials.len() != count {
            differences.push(format!("{} results of {count} trials", trials.len()));
        }
        (count, differences)
    }
}

impl FormatOutcome {
    fn runs(&self, name: &str, provider: &str, except: &[&str]) -> bool {
        self.providers.iter().any(|known| known == provider) && !except.contains(&name)
    }

    fn differences(&self, trial: &TrialDirectory) -> Vec<String> {
        let mut differences = Vec::new();
        let mut differ = |what: &str, expected: String, got: String| {
            if expected != got {
                let name = &trial.name;
                differences.push(format!("{name}: {what}: expected {expected}, got {got}"));
            }
        };
        differ("error", format!("{:?}", self.error.as_deref()), format!("{:?}", trial.error()));
        let near = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => (a - b).abs() < 1e-9,
            (a, b) => a == b,
        };
        if !near(self.reward, trial.reward()) {
            differ("reward", format!("{:?}", self.reward), format!("{:?}", trial.reward()));
        }
        if !self.rewards.is_empty() {
            let got = trial.result["rewards"].as_object().cloned().unwrap_or_default();
            let got: BTreeMap<_, _> = got.iter().map(|(k, v)| (k.clone(), v.as_f64())).collect();
            let wanted: BTreeMap<_, _> =
                self.rewards.iter().map(|(k, v)| (k.clone(), Some(*v))).collect();
            differ("rewards", format!("{wanted:?}"), format!("{got:?}"));
        }
        for text in self.says.iter().filter(|text| !trial.message().contains(text.as_str())) {
            differ("message", format!("{text:?} in it"), format!("{:?}", trial.message()));
        }
        for (file, text) in &self.files {
            differ(file, format!("{:?}", Some(text)), format!("{:?}", trial.text(file)));
        }
        for path in &self.absent {
            let there = trial.directory.join(path).symlink_metadata().is_ok();
            differ(path, "absent".to_owned(), if there { "there" } else { "absent" }.to_owned());
        }
        differences
    }
}
