//! Differences between two plans of a run.

use std::fmt;

use rollout_protocol::spec::settings::TrialSettings;
use serde::Serialize;
use serde_json::{Map, Value};

use super::JobPlan;

/// The difference between an earlier plan and a later one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PlanChange {
    /// Agents and tasks that only the later plan has, and additional attempts.
    pub added: Vec<String>,
    /// Agents and tasks that only the earlier plan has, and attempts that are no longer made. If the
    /// user accepts this, their results are kept but not counted.
    pub removed: Vec<String>,
    /// Items in both plans that differ: results of the earlier plan are invalid for the later one.
    pub changed: Vec<SpecChange>,
}

/// An item in both plans that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SpecChange {
    /// The item.
    pub subject: ChangeSubject,
    /// Its differences, as display text.
    pub differences: Vec<String>,
}

/// An item that can differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ChangeSubject {
    /// The settings of every trial.
    Settings,
    /// An agent.
    Agent {
        /// Its name.
        name: String,
    },
    /// A task.
    Task {
        /// Its dataset.
        dataset: String,
        /// Its name.
        name: String,
    },
}

impl PlanChange {
    /// Whether every result of the earlier plan for a trial of the later plan is still valid.
    pub fn is_compatible(&self) -> bool {
        self.changed.is_empty()
    }

    /// Whether the plans have the same trials.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }

    /// Agents, tasks and attempts that only one of the plans has, as display lines.
    pub fn extent_lines(&self) -> Vec<String> {
        let added = self.added.iter().map(|what| format!("{what}: added"));
        let removed = self.removed.iter().map(|what| format!("{what}: no longer planned"));
        added.chain(removed).collect()
    }

    /// The differences that make results invalid, as display lines.
    pub fn lines(&self) -> Vec<String> {
        let lines = |change: &SpecChange| -> Vec<String> {
            let line = |difference: &String| match &change.subject {
                ChangeSubject::Settings => difference.clone(),
                subject => format!("{subject}: {difference}"),
            };
            change.differences.iter().map(line).collect()
        };
        self.changed.iter().flat_map(lines).collect()
    }
}

impl fmt::Display for ChangeSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settings => f.write_str("settings"),
            Self::Agent { name } => write!(f, "agent {name}"),
            Self::Task { dataset, name } => write!(f, "task {dataset}/{name}"),
        }
    }
}

/// Compares an earlier plan with a later one.
pub fn compare(earlier: &JobPlan, later: &JobPlan) -> PlanChange {
    let mut change = PlanChange::default();
    let (before, after) = (written(&earlier.settings), written(&later.settings));
    if earlier.settings_digest != later.settings_digest && before != after {
        let differences = differences(&before, &after);
        change.changed.push(SpecChange { subject: ChangeSubject::Settings, differences });
    }
    compare_agents(earlier, later, &mut change);
    compare_tasks(earlier, later, &mut change);
    let (before, after) = (earlier.n_attempts, later.n_attempts);
    if after > before {
        change.added.push(format!("attempts {} to {after}", before + 1));
    } else if after < before {
        change.removed.push(format!("attempts {} to {before}", after + 1));
    }
    change
}

/// Settings without those that a server adds, by which no result becomes invalid.
fn written(settings: &TrialSettings) -> TrialSettings {
    let mut settings = settings.clone();
    settings.environment.provider.set_build_guard(None);
    settings
}

fn compare_agents(earlier: &JobPlan, later: &JobPlan, change: &mut PlanChange) {
    for agent in &earlier.agents {
        let name = &agent.spec.name;
        match later.agent(name) {
            None => change.removed.push(format!("agent {name}")),
            Some(after) if after.digest != agent.digest => change.changed.push(SpecChange {
                subject: ChangeSubject::Agent { name: name.clone() },
                differences: differences(&agent.spec, &after.spec),
            }),
            Some(_) => {}
        }
    }
    let new = later.agents.iter().filter(|agent| earlier.agent(&agent.spec.name).is_none());
    change.added.extend(new.map(|agent| format!("agent {}", agent.spec.name)));
}

fn compare_tasks(earlier: &JobPlan, later: &JobPlan, change: &mut PlanChange) {
    for task in &earlier.tasks {
        let Some(after) = later.task(&task.dataset, &task.name) else {
            change.removed.push(format!("task {}/{}", task.dataset, task.name));
            continue;
        };
        let mut differences = Vec::new();
        if task.files != after.files {
            differences.push("its files changed".to_owned());
        }
        if task.rules != after.rules {
            let what = "its image, resources, time limits, variables, steps, users, network or \
                        rules changed (task.toml, or the job's overrides)";
            differences.push(what.to_owned());
        }
        if !differences.is_empty() {
            let (dataset, name) = (task.dataset.clone(), task.name.clone());
            change
                .changed
                .push(SpecChange { subject: ChangeSubject::Task { dataset, name }, differences });
        }
    }
    let new = later.tasks.iter().filter(|t| earlier.task(&t.dataset, &t.name).is_none());
    change.added.extend(new.map(|task| format!("task {}/{}", task.dataset, task.name)));
}

/// Differences between two specs. Scripts and environment values are never shown: they are long or
/// secret.
fn differences<T: Serialize>(before: &T, after: &T) -> Vec<String> {
    let mut found = Vec::new();
    let json = |value: &T| serde_json::to_value(value).unwrap_or(Value::Null);
    walk("", &json(before), &json(after), &mut found);
    found
}

fn walk(path: &str, before: &Value, after: &Value, found: &mut Vec<String>) {
    if before == after {
        return;
    }
    let nothing = Map::new();
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            return walk_object(path, before, after, found);
        }
        // Empty objects may be omitted: compare the entries of the other one.
        (Value::Null, Value::Object(after)) if !path.is_empty() => {
            return walk_object(path, &nothing, after, found);
        }
        (Value::Object(before), Value::Null) if !path.is_empty() => {
            return walk_object(path, before, &nothing, found);
        }
        _ => {}
    }
    let variable = path.starts_with("env.") || path.contains(".env.");
    let script = path.ends_with("kind.install") || path.ends_with("kind.execute");
    let key = job_key(path);
    if variable || script {
        found.push(format!("{key} changed"));
    } else {
        found.push(format!("{key} was {}, is {}", display(before), display(after)));
    }
}

/// The job file's key of a setting at `path`, where the two differ.
fn job_key(path: &str) -> String {
    const KEYS: [(&str, &str); 3] = [
        ("environment.provider.type", "environment.type"),
        ("kind.install", "install"),
        ("kind.execute", "execute"),
    ];
    const TABLES: [(&str, &str); 2] = [
        ("environment.provider.", "environment.provider_config."),
        ("environment.rates.", "environment.provider_config."),
    ];
    if let Some((_, key)) = KEYS.iter().find(|(known, _)| *known == path) {
        return (*key).to_owned();
    }
    let renamed = TABLES.iter().find_map(|(table, renamed)| {
        path.strip_prefix(*table).map(|key| format!("{renamed}{key}"))
    });
    renamed.unwrap_or_else(|| path.to_owned())
}

/// A value as display text; words without quotes.
fn display(value: &Value) -> String {
    match value {
        Value::Null => "not set".to_owned(),
        Value::String(text) if !text.is_empty() => text.clone(),
        value => value.to_string(),
    }
}

fn walk_object(
    path: &str,
    before: &Map<String, Value>,
    after: &Map<String, Value>,
    found: &mut Vec<String>,
) {
    let keys = before.keys().chain(after.keys().filter(|key| !before.contains_key(*key)));
    for key in keys {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let value = |object: &Map<String, Value>| object.get(key).cloned().unwrap_or(Value::Null);
        walk(&path, &value(before), &value(after), found);
    }
}
