//! The tasks of a farm, and the documents that its samples run under.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use rollout_engine::WorkerRequirements;
use rollout_protocol::blob::MediaType;
use rollout_protocol::digest::Digest;
use rollout_protocol::farm::{AdmittedGroup, GroupRequest, InlineTask, RolloutSpec, TaskChoice};
use rollout_protocol::limits;
use rollout_protocol::spec::agent::AgentSpec;
use rollout_protocol::spec::task::TaskSpec;
use rollout_protocol::template::Template;
use rollout_store::{BlobStore, StoreError, get_json, put_json};
use serde::Serialize;

use crate::plan::{JobPlan, PlannedTask};
use crate::workloads::job::JobLanes;

/// Name of the model that the agent calls.
const MODEL_VARIABLE: &str = "ROLLOUT_MODEL";
/// Base URL of the model's API.
const BASE_URL_VARIABLE: &str = "ROLLOUT_MODEL_BASE_URL";
/// Sampling parameters, a JSON object.
const SAMPLING_VARIABLE: &str = "ROLLOUT_SAMPLING";
/// Version of the policy, as the trainer says.
const POLICY_VERSION_VARIABLE: &str = "ROLLOUT_POLICY_VERSION";

/// Digests of documents that are known to be stored. They are stored again after so many others.
const MAX_STORED: usize = 4096;

/// Why the documents of a group cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum UnknownTask {
    /// No task has this name.
    #[error("the farm has no task `{name}`: tasks are named `dataset/task`")]
    Name {
        /// The name.
        name: String,
    },
    /// Several datasets have a task of this name.
    #[error("several datasets have a task `{name}`: name it as `dataset/task`")]
    Ambiguous {
        /// The name.
        name: String,
    },
    /// Another instruction would be that of one step only.
    #[error("cannot replace the instruction of `{name}`: the task has several steps")]
    Steps {
        /// The name.
        name: String,
    },
    /// The request cannot be serialized.
    #[error("cannot serialize the request to JSON")]
    Request(#[from] serde_json::Error),
    /// The blob store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The tasks of a farm's plan. Makes and stores the documents of groups.
#[derive(Debug)]
pub struct FarmDocuments {
    plan: Arc<JobPlan>,
    lanes: JobLanes,
    store: Arc<dyn BlobStore>,
    /// Tasks by `dataset/task`, and by the last part alone; `None` if that is ambiguous.
    names: HashMap<String, Option<usize>>,
    stored: Mutex<HashSet<Digest>>,
}

impl FarmDocuments {
    /// The tasks of a plan with one agent, whose documents are in the store.
    pub fn new(plan: Arc<JobPlan>, store: Arc<dyn BlobStore>) -> Self {
        let mut names = HashMap::new();
        for (index, task) in plan.tasks().iter().enumerate() {
            let short = names.entry(task.name.clone());
            short.and_modify(|known| *known = None).or_insert(Some(index));
        }
        for (index, PlannedTask { dataset, name, .. }) in plan.tasks().iter().enumerate() {
            names.insert(format!("{dataset}/{name}"), Some(index));
        }
        let lanes = JobLanes::new(&plan);
        Self { plan, lanes, store, names, stored: Mutex::default() }
    }

    /// Requirements of the samples of each lane.
    pub fn needs(&self) -> Vec<WorkerRequirements> {
        self.lanes.needs().to_vec()
    }

    /// The plan.
    pub fn plan(&self) -> &Arc<JobPlan> {
        &self.plan
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn BlobStore> {
        &self.store
    }

    /// Finds the task of a request and stores its documents.
    ///
    /// # Errors
    /// [`UnknownTask`].
    pub async fn admit(&self, request: GroupRequest) -> Result<AdmittedGroup, UnknownTask> {
        let content = request.content()?;
        let base = match &request.task {
            TaskChoice::Named(name) | TaskChoice::Inline(InlineTask { base: name, .. }) => name,
        };
        let index = self.find(base)?;
        let task = &self.plan.tasks()[index];
        let task_digest = match &request.task {
            TaskChoice::Named(_) => task.spec,
            TaskChoice::Inline(inline) => self.store_task(task, inline).await?,
        };
        let ordinal = index as u64 * u64::from(self.plan.n_attempts());
        let trial = self.plan.trial(ordinal).expect("the plan has every task of its agent");
        let agent = agent_of(&self.plan.agents()[0].spec, &request)?;
        let spec = RolloutSpec {
            settings: trial.trial_ref.settings,
            agent: self.store_document(&agent).await?,
            task: task_digest,
            class: task.class,
            lane: self.lanes.lane(trial.agent, trial.task),
        };
        Ok(AdmittedGroup { request, content, spec })
    }

    fn find(&self, name: &str) -> Result<usize, UnknownTask> {
        let shown = || limits::shorten(name.to_owned(), 2 * limits::NAME_BYTES);
        match self.names.get(name) {
            Some(Some(index)) => Ok(*index),
            Some(None) => Err(UnknownTask::Ambiguous { name: shown() }),
            None => Err(UnknownTask::Name { name: shown() }),
        }
    }

    /// Stores the task with another instruction.
    async fn store_task(
        &self,
        task: &PlannedTask,
        inline: &InlineTask,
    ) -> Result<Digest, UnknownTask> {
        let mut spec: TaskSpec = get_json(&*self.store, &task.spec).await?;
        let [step] = spec.steps.as_mut_slice() else {
            return Err(UnknownTask::Steps { name: inline.base.clone() });
        };
        let instruction = inline.instruction.clone().into_bytes();
        let stored = self.store.put_bytes(instruction.into(), MediaType::Text).await?;
        step.files.instruction = Some(stored);
        self.store_document(&spec).await
    }

    async fn store_document<T: Serialize + Sync>(&self, value: &T) -> Result<Digest, UnknownTask> {
        let digest = Digest::sha256_json(value)?;
        if self.stored().contains(&digest) {
            return Ok(digest);
        }
        let blob = put_json(&*self.store, value).await?;
        let mut stored = self.stored();
        if stored.len() >= MAX_STORED {
            stored.clear();
        }
        stored.insert(blob.digest);
        Ok(blob.digest)
    }

    fn stored(&self) -> std::sync::MutexGuard<'_, HashSet<Digest>> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The agent with the model and the parameters of a request. They are not the operator's: a `$` in
/// them stands for itself.
fn agent_of(agent: &AgentSpec, request: &GroupRequest) -> Result<AgentSpec, serde_json::Error> {
    let mut agent = agent.clone();
    let model = request.model.as_ref();
    let sampling = match request.sampling.is_empty() {
        true => None,
        false => Some(serde_json::to_string(&request.sampling)?),
    };
    let values = [
        (MODEL_VARIABLE, model.map(|model| model.name.clone())),
        (BASE_URL_VARIABLE, model.and_then(|model| model.base_url.clone())),
        (SAMPLING_VARIABLE, sampling),
        (POLICY_VERSION_VARIABLE, Some(request.policy_version.to_string())),
    ];
    for (name, value) in values {
        if let Some(value) = value {
            agent.env.insert(name.to_owned(), Template::new(value.replace('$', "$$")));
        }
    }
    Ok(agent)
}

#[cfg(test)]
mod tests {
    use rollout_protocol::farm::ModelEndpoint;
    use rollout_store::MemoryStore;
    use serde_json::json;

    use super::*;
    use crate::plan::noop;

    async fn documents() -> FarmDocuments {
        let (plan, documents) = noop(3).expect("a plan");
        let store = Arc::new(MemoryStore::default());
        for document in documents {
            store.put_bytes(document, MediaType::Json).await.expect("stored");
        }
        FarmDocuments::new(Arc::new(plan), store)
    }

    fn request(task: &str) -> GroupRequest {
        GroupRequest::new("g".parse().expect("an id"), task, 2)
    }

    #[tokio::test]
    async fn task_is_found_by_full_and_by_short_name() {
        let documents = documents().await;
        let PlannedTask { dataset, name, spec, .. } = documents.plan.tasks()[0].clone();
        for task in [format!("{dataset}/{name}"), name] {
            let admitted = documents.admit(request(&task)).await.expect("admitted");
            assert_eq!(admitted.spec.task, spec);
            assert_eq!(admitted.content, admitted.request.content().expect("a digest"));
        }
        let unknown = documents.admit(request("none")).await.expect_err("no task");
        assert!(unknown.to_string().contains("`none`"), "{unknown}");
    }

    #[tokio::test]
    async fn model_and_parameters_reach_the_agent_as_they_are() {
        let documents = documents().await;
        let name = documents.plan.tasks()[0].name.clone();
        let model = ModelEndpoint { name: "m${HOME}".to_owned(), base_url: None };
        let sampling = json!({"temperature": 0.5}).as_object().cloned().expect("an object");
        let request = GroupRequest { model: Some(model), sampling, ..request(&name) };
        let admitted = documents.admit(request).await.expect("admitted");
        let agent: AgentSpec =
            get_json(&*documents.store, &admitted.spec.agent).await.expect("an agent");
        let value = |name: &str| {
            let value = agent.env.get(name).map(|value| value.expand(|_| Some("x".to_owned())));
            value.transpose().expect("a value")
        };
        assert_eq!(value(MODEL_VARIABLE).as_deref(), Some("m${HOME}"));
        assert_eq!(value(SAMPLING_VARIABLE).as_deref(), Some(r#"{"temperature":0.5}"#));
        assert_eq!(value(POLICY_VERSION_VARIABLE).as_deref(), Some("0"));
        assert_eq!(value(BASE_URL_VARIABLE), None);
    }

    #[tokio::test]
    async fn inline_task_has_its_own_instruction() {
        let documents = documents().await;
        let base = documents.plan.tasks()[0].name.clone();
        let inline = InlineTask { base, instruction: "Do it.".to_owned() };
        let request = GroupRequest { task: TaskChoice::Inline(inline), ..request("") };
        let admitted = documents.admit(request).await.expect("admitted");
        let task: TaskSpec =
            get_json(&*documents.store, &admitted.spec.task).await.expect("a task");
        let instruction = task.steps[0].files.instruction.clone().expect("an instruction");
        let text = documents.store.get_bytes(&instruction.digest, 100).await.expect("stored");
        assert_eq!(&text[..], b"Do it.");
    }
}
