//! The plan of a job: agents x datasets x tasks x attempts, computed on demand. Trials are not
//! stored, so memory grows with agents and tasks, not with trials.
//!
//! # Invariants
//! * Result order is: for each agent, each dataset, each task, each attempt. An *ordinal* is a
//!   position in it, from 0.
//! * Dispatch order is: for each task all its trials, so that trials of one image run together.
//! * Equal jobs over equal tasks have equal digests, whatever the concurrency, the retry policy,
//!   the name of the job, or the order of agents and tasks.
//! * No two trials of a plan have the same item.

mod build;
mod compare;
mod document;
mod dry_run;
mod noop;
mod read;
mod select;
mod variables;

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};

use rollout_protocol::digest::{Digest, DigestHasher};
use rollout_protocol::id::ItemId;
use rollout_protocol::limits::TRIALS_PER_RUN;
use rollout_protocol::spec::agent::AgentSpec;
use rollout_protocol::spec::guardrail::Guardrail;
use rollout_protocol::spec::resources::Resources;
use rollout_protocol::spec::settings::TrialSettings;
use rollout_protocol::spec::task::TaskFormat;
use rollout_protocol::spec::trial::{TrialName, TrialRef};
use rollout_protocol::wire::offer::SizeClass;
use serde::{Deserialize, Serialize};

pub use crate::config::TaskMetadata;
pub use build::{BuildError, build};
pub use compare::{ChangeSubject, PlanChange, SpecChange, compare};
pub use document::PlanDocument;
pub use dry_run::{DryRun, ImageView, PlanCounts, TaskView, dry_run};
pub(crate) use noop::noop;
pub use read::{PreparedJob, read};
pub(crate) use variables::required;

/// File name of the plan document in a run directory.
pub const PLAN_FILE: &str = "plan.json";

/// The plan of a job.
#[derive(Debug, Clone)]
pub struct JobPlan {
    settings: TrialSettings,
    settings_digest: Digest,
    agents: Vec<PlannedAgent>,
    tasks: Vec<PlannedTask>,
    n_attempts: u32,
    guardrails: Vec<Guardrail>,
    agent_index: HashMap<String, usize>,
    task_index: HashMap<(String, String), usize>,
}

/// An agent of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedAgent {
    /// The agent.
    pub spec: AgentSpec,
    /// Digest of its document.
    pub digest: Digest,
}

/// A task of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedTask {
    /// Dataset.
    pub dataset: String,
    /// Task.
    pub name: String,
    /// Digest of its document in the blob store.
    pub spec: Digest,
    /// Commit of its repository; not part of its identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_commit_id: Option<String>,
    /// Digest of its files alone.
    pub files: Digest,
    /// Digest of every other input of a trial: image, resources, time limits, variables.
    pub rules: Digest,
    /// Size class of its environments.
    #[serde(default)]
    pub class: SizeClass,
    /// Ceilings of its environments.
    #[serde(default)]
    pub resources: Resources,
    /// Variables without a default that its files use.
    #[serde(default)]
    pub variables: BTreeSet<String>,
    /// Format of the task; absent in plans of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<TaskFormat>,
    /// Whether the format is a guess; absent in plans of older versions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub format_guessed: bool,
    /// Metadata of its file.
    #[serde(default)]
    pub about: TaskMetadata,
}

/// Place of a trial in a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanPlace {
    /// Index of its agent in [`JobPlan::agents`].
    pub agent: usize,
    /// Index of its task in [`JobPlan::tasks`].
    pub task: usize,
    /// Attempt, from 1.
    pub attempt: u32,
}

/// A trial of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedTrial {
    /// Position in result order, from 0.
    pub ordinal: u64,
    /// Its name.
    pub name: TrialName,
    /// Digests of its documents.
    pub trial_ref: TrialRef,
    /// Its item id.
    pub item: ItemId,
    /// Index of its agent in [`JobPlan::agents`].
    pub agent: usize,
    /// Index of its task in [`JobPlan::tasks`].
    pub task: usize,
}

/// Error of building or reading a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobPlanError {
    /// More trials than a run can hold.
    #[error(
        "{agents} agents x {tasks} tasks x {attempts} attempts are more than {TRIALS_PER_RUN} trials"
    )]
    TooManyTrials {
        /// Agents.
        agents: usize,
        /// Tasks.
        tasks: usize,
        /// Attempts.
        attempts: u32,
    },
    /// Two agents or two tasks with the same name.
    #[error("{what} is in the plan twice")]
    Duplicate {
        /// The item.
        what: String,
    },
    /// A value that cannot be serialized to JSON.
    #[error("cannot serialize {what} to JSON: {reason}")]
    NotSerializable {
        /// The value.
        what: &'static str,
        /// Cause.
        reason: String,
    },
    /// A plan document of a newer version.
    #[error("the plan has format version {found}; this program reads up to {known}")]
    Newer {
        /// Its version.
        found: u32,
        /// The newest supported version.
        known: u32,
    },
    /// A plan document whose content does not match its digest.
    #[error("the plan is damaged: recorded digest {recorded}, actual digest {found}")]
    Damaged {
        /// The digest in the document.
        recorded: Digest,
        /// The digest of its content.
        found: Digest,
    },
}

impl JobPlan {
    /// Builds a plan over agents and tasks, in the given order.
    ///
    /// # Errors
    /// [`JobPlanError`] if there are too many trials or two items have the same name.
    pub fn new(
        settings: TrialSettings,
        agents: Vec<AgentSpec>,
        tasks: Vec<PlannedTask>,
        n_attempts: u32,
    ) -> Result<Self, JobPlanError> {
        let agents = agents
            .into_iter()
            .map(|spec| Ok(PlannedAgent { digest: digest("an agent", &spec)?, spec }))
            .collect::<Result<Vec<_>, JobPlanError>>()?;
        check_size(agents.len(), tasks.len(), n_attempts)?;
        let agent_index = index(agents.iter().map(|a| a.spec.name.clone()), |name| {
            format!("the agent `{name}`")
        })?;
        let names = tasks.iter().map(|t| (t.dataset.clone(), t.name.clone()));
        let task_index = index(names, |(dataset, name)| format!("the task `{dataset}/{name}`"))?;
        let settings_digest = digest("the settings", &settings)?;
        let guardrails = Vec::new();
        Ok(Self {
            settings,
            settings_digest,
            agents,
            tasks,
            n_attempts,
            guardrails,
            agent_index,
            task_index,
        })
    }

    /// Sets the guardrails. They are metadata: no digest depends on them.
    #[must_use]
    pub fn with_guardrails(self, guardrails: Vec<Guardrail>) -> Self {
        Self { guardrails, ..self }
    }

    /// The guardrails, in file order.
    pub fn guardrails(&self) -> &[Guardrail] {
        &self.guardrails
    }

    /// Settings of every trial.
    pub fn settings(&self) -> &TrialSettings {
        &self.settings
    }

    /// The agents, in result order.
    pub fn agents(&self) -> &[PlannedAgent] {
        &self.agents
    }

    /// The tasks of all datasets, in result order.
    pub fn tasks(&self) -> &[PlannedTask] {
        &self.tasks
    }

    /// Attempts per agent and task.
    pub fn n_attempts(&self) -> u32 {
        self.n_attempts
    }

    /// Number of trials.
    pub fn len(&self) -> u64 {
        self.agents.len() as u64 * self.trials_per_agent()
    }

    /// Whether there are no trials.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of trials of each agent.
    pub fn trials_per_agent(&self) -> u64 {
        self.tasks.len() as u64 * u64::from(self.n_attempts)
    }

    /// The trial at a position in result order; `None` beyond the end.
    pub fn trial(&self, ordinal: u64) -> Option<PlannedTrial> {
        let place = self.place(ordinal)?;
        let name = self.name_at(place);
        let PlanPlace { agent, task, .. } = place;
        let trial_ref = self.trial_ref_at(place);
        Some(PlannedTrial { ordinal, item: name.item(), name, trial_ref, agent, task })
    }

    /// Where a position in result order is in the plan; `None` beyond the end.
    pub fn place(&self, ordinal: u64) -> Option<PlanPlace> {
        if ordinal >= self.len() {
            return None;
        }
        let attempts = u64::from(self.n_attempts);
        Some(PlanPlace {
            agent: (ordinal / self.trials_per_agent()) as usize,
            task: (ordinal % self.trials_per_agent() / attempts) as usize,
            attempt: (ordinal % attempts) as u32 + 1,
        })
    }

    /// Name of the trial at a place.
    pub fn name_at(&self, place: PlanPlace) -> TrialName {
        let task = &self.tasks[place.task];
        TrialName {
            agent: self.agents[place.agent].spec.name.clone(),
            dataset: task.dataset.clone(),
            task: task.name.clone(),
            attempt: place.attempt,
        }
    }

    /// Item id of the trial at a place.
    pub fn item_at(&self, place: PlanPlace) -> ItemId {
        let (agent, task) = (&self.agents[place.agent], &self.tasks[place.task]);
        ItemId::for_trial(&agent.spec.name, &task.dataset, &task.name, place.attempt)
    }

    /// Digests of the documents of the trial at a place.
    pub fn trial_ref_at(&self, place: PlanPlace) -> TrialRef {
        TrialRef {
            settings: self.settings_digest,
            agent: self.agents[place.agent].digest,
            task: self.tasks[place.task].spec,
            attempt: place.attempt,
        }
    }

    /// Position of a trial in result order; `None` if it is not in the plan.
    pub fn ordinal(&self, name: &TrialName) -> Option<u64> {
        let agent = *self.agent_index.get(&name.agent)?;
        let task = *self.task_index.get(&(name.dataset.clone(), name.task.clone()))?;
        let attempt = name.attempt.checked_sub(1).filter(|a| *a < self.n_attempts)?;
        Some(self.ordinal_at(agent, task, attempt))
    }

    fn ordinal_at(&self, agent: usize, task: usize, attempt: u32) -> u64 {
        agent as u64 * self.trials_per_agent()
            + task as u64 * u64::from(self.n_attempts)
            + u64::from(attempt)
    }

    /// The task of the trial at a position in result order; `None` beyond the end.
    pub fn task_at(&self, ordinal: u64) -> Option<&PlannedTask> {
        let index = || self.index_of_agent_trial(ordinal) / u64::from(self.n_attempts);
        (ordinal < self.len()).then(|| &self.tasks[index() as usize])
    }

    /// Position of the trial with an ordinal below [`len`](Self::len) among those of its agent:
    /// equal for trials of the same task and attempt.
    pub fn index_of_agent_trial(&self, ordinal: u64) -> u64 {
        ordinal % self.trials_per_agent()
    }

    /// Every trial in result order.
    pub fn trials(&self) -> impl Iterator<Item = PlannedTrial> + '_ {
        (0..self.len()).filter_map(|ordinal| self.trial(ordinal))
    }

    /// Ordinal of the `k`-th trial in dispatch order: task by task, first attempts first.
    pub fn dispatch_ordinal(&self, k: u64) -> Option<u64> {
        if k >= self.len() {
            return None;
        }
        let agents = self.agents.len() as u64;
        let per_task = agents * u64::from(self.n_attempts);
        let attempt = (k % per_task / agents) as u32;
        Some(self.ordinal_at((k % agents) as usize, (k / per_task) as usize, attempt))
    }

    /// Every ordinal in dispatch order.
    pub fn dispatch_order(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len()).filter_map(|k| self.dispatch_ordinal(k))
    }

    /// The digest of the plan's trials.
    pub fn digest(&self) -> Digest {
        let mut hasher = DigestHasher::default();
        hasher.update_part(b"plan");
        hasher.update_part(&self.n_attempts.to_be_bytes());
        hasher.update_part(self.settings_digest.as_bytes());
        let mut agents: Vec<_> = self.agents.iter().map(|a| (&a.spec.name, a.digest)).collect();
        agents.sort_unstable();
        hasher.update_part(&(agents.len() as u64).to_be_bytes());
        for (name, digest) in agents {
            hasher.update_part(name.as_bytes());
            hasher.update_part(digest.as_bytes());
        }
        let mut tasks: Vec<_> = self.tasks.iter().collect();
        tasks.sort_unstable_by_key(|t| (&t.dataset, &t.name));
        for task in tasks {
            hasher.update_part(task.dataset.as_bytes());
            hasher.update_part(task.name.as_bytes());
            hasher.update_part(task.files.as_bytes());
            hasher.update_part(task.rules.as_bytes());
        }
        hasher.finish()
    }

    /// Reuses the documents of an earlier plan for tasks whose trial inputs are unchanged: a commit
    /// elsewhere in a task's repository leaves its results valid.
    pub fn reuse_documents(&mut self, earlier: &Self) {
        for task in &mut self.tasks {
            if let Some(before) = earlier.task(&task.dataset, &task.name)
                && (before.files, before.rules) == (task.files, task.rules)
            {
                task.spec = before.spec;
            }
        }
    }

    fn task(&self, dataset: &str, name: &str) -> Option<&PlannedTask> {
        let index = self.task_index.get(&(dataset.to_owned(), name.to_owned()))?;
        Some(&self.tasks[*index])
    }

    fn agent(&self, name: &str) -> Option<&PlannedAgent> {
        self.agent_index.get(name).map(|index| &self.agents[*index])
    }
}

fn check_size(agents: usize, tasks: usize, attempts: u32) -> Result<(), JobPlanError> {
    let trials = (agents as u64)
        .checked_mul(tasks as u64)
        .and_then(|pairs| pairs.checked_mul(u64::from(attempts)));
    if trials.is_some_and(|trials| trials <= TRIALS_PER_RUN) {
        return Ok(());
    }
    Err(JobPlanError::TooManyTrials { agents, tasks, attempts })
}

fn index<K: std::hash::Hash + Eq + Clone>(
    keys: impl Iterator<Item = K>,
    what: impl Fn(&K) -> String,
) -> Result<HashMap<K, usize>, JobPlanError> {
    let mut index = HashMap::new();
    for (at, key) in keys.enumerate() {
        if index.insert(key.clone(), at).is_some() {
            return Err(JobPlanError::Duplicate { what: what(&key) });
        }
    }
    Ok(index)
}

fn digest<T: Serialize>(what: &'static str, value: &T) -> Result<Digest, JobPlanError> {
    Digest::sha256_json(value)
        .map_err(|error| JobPlanError::NotSerializable { what, reason: error.to_string() })
}
