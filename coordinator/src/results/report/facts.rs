//! Facts about the datasets and tasks of a run, for the terminal header and the results.

use std::collections::{BTreeMap, HashMap};

use rollout_protocol::spec::task::TaskFormat;
use serde::{Deserialize, Serialize};

use crate::plan::{JobPlan, TaskMetadata};
use crate::results::escape;

/// Maximum number of unsupported tasks named in the header; the others are counted.
const MAX_NAMED_TASKS: usize = 3;

/// A dataset of a run and the formats of its tasks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetFacts {
    /// Name in the results.
    pub dataset_name: String,
    /// Version.
    pub version: Option<String>,
    /// Description in the registry.
    pub description: Option<String>,
    /// Number of its tasks in the run.
    pub tasks: usize,
    /// Number of tasks by format.
    pub formats: BTreeMap<String, usize>,
    /// Tasks whose format is set neither by the job nor by their own file.
    pub guessed: usize,
    /// Tasks that the environment cannot run with some agent of the run.
    pub unsupported: Vec<String>,
}

/// Metadata and format of a task.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TaskFacts {
    /// Format.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format: Option<TaskFormat>,
    /// Descriptive metadata of the task file.
    #[serde(flatten)]
    pub about: TaskMetadata,
}

/// The tasks of a run, by dataset and name.
#[derive(Debug, Clone, Default)]
pub struct TaskFactsIndex(HashMap<String, HashMap<String, TaskFacts>>);

impl TaskFactsIndex {
    /// Collects the tasks of a plan.
    pub fn from_plan(plan: &JobPlan) -> Self {
        let mut datasets: HashMap<String, HashMap<String, TaskFacts>> = HashMap::new();
        for task in plan.tasks() {
            let facts = TaskFacts { format: task.format, about: task.about.clone() };
            datasets.entry(task.dataset.clone()).or_default().insert(task.name.clone(), facts);
        }
        Self(datasets)
    }

    /// The facts of a task.
    pub fn find(&self, dataset: &str, task: &str) -> Option<&TaskFacts> {
        self.0.get(dataset)?.get(task)
    }
}

impl DatasetFacts {
    /// The line about the dataset in the header of a run.
    pub fn line(&self) -> String {
        let count = |count: usize| match count {
            1 => "1 task".to_owned(),
            _ => format!("{count} tasks"),
        };
        let formats: Vec<String> = match &self.formats {
            all if all.len() == 1 => all.keys().cloned().collect(),
            several => several.iter().map(|(format, n)| format!("{n} {format}")).collect(),
        };
        let version = match &self.version {
            Some(version) if !self.dataset_name.ends_with(&format!("@{version}")) => {
                format!(" {version}")
            }
            _ => String::new(),
        };
        let mut line = format!(
            "dataset {}{version}: {}, format {}",
            self.dataset_name,
            count(self.tasks),
            formats.join(" and ")
        );
        if self.guessed > 0 {
            line += &format!(" ({} guessed; set it with `--format`)", self.guessed);
        }
        if !self.unsupported.is_empty() {
            let more = self.unsupported.len().saturating_sub(MAX_NAMED_TASKS);
            let mut names =
                self.unsupported.iter().take(MAX_NAMED_TASKS).cloned().collect::<Vec<_>>();
            if more > 0 {
                names.push(format!("{more} more"));
            }
            let count = self.unsupported.len();
            line += &format!("; {count} unsupported by the environment: {}", names.join(", "));
        }
        escape::line(&line).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dataset_line_shows_formats_guesses_and_unsupported() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let mut facts = DatasetFacts {
            dataset_name: "bench".into(),
            version: Some("2.0".into()),
            tasks: 1,
            formats: BTreeMap::from([("harbor".to_owned(), 1)]),
            ..DatasetFacts::default()
        };
        assert_eq!(facts.line(), "dataset bench 2.0: 1 task, format harbor");
        facts.dataset_name = "bench@2.0".into();
        facts.tasks = 9;
        facts.formats = BTreeMap::from([("harbor".to_owned(), 8), ("rollout".to_owned(), 1)]);
        facts.guessed = 2;
        facts.unsupported = names(&["a", "b", "c", "d", "e"]);
        assert_eq!(
            facts.line(),
            "dataset bench@2.0: 9 tasks, format 8 harbor and 1 rollout (2 guessed; set it with \
             `--format`); 5 unsupported by the environment: a, b, c, 2 more"
        );
    }
}
