//! `plan.json`: a plan on disk, with all that is needed to restore and compare it.

use rollout_protocol::digest::Digest;
use rollout_protocol::spec::agent::AgentSpec;
use rollout_protocol::spec::guardrail::Guardrail;
use rollout_protocol::spec::settings::TrialSettings;
use serde::{Deserialize, Serialize};

use super::{JobPlan, JobPlanError, PlannedTask};

/// Format version written.
const VERSION: u32 = 1;

/// A plan as a document. Environment values are unexpanded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanDocument {
    /// Version of the format.
    pub version: u32,
    /// Digest of the plan.
    pub digest: Digest,
    /// Attempts per agent and task.
    pub n_attempts: u32,
    /// Settings of every trial.
    pub settings: TrialSettings,
    /// The agents, in result order.
    pub agents: Vec<AgentSpec>,
    /// The tasks, in result order.
    pub tasks: Vec<PlannedTask>,
    /// Bounds on metrics; metadata.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guardrails: Vec<Guardrail>,
    /// Digest of the rest of the document; absent in plans of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Digest>,
}

impl PlanDocument {
    /// Digest of the document without this field. The plan's own digest omits fields that no result
    /// depends on.
    fn content_digest(&self) -> Digest {
        let bare = Self { content: None, ..self.clone() };
        Digest::sha256(&serde_json::to_vec(&bare).expect("text keys only"))
    }
}

impl From<&JobPlan> for PlanDocument {
    fn from(plan: &JobPlan) -> Self {
        let bare = Self {
            version: VERSION,
            digest: plan.digest(),
            n_attempts: plan.n_attempts,
            settings: plan.settings.clone(),
            agents: plan.agents.iter().map(|agent| agent.spec.clone()).collect(),
            tasks: plan.tasks.clone(),
            guardrails: plan.guardrails.clone(),
            content: None,
        };
        Self { content: Some(bare.content_digest()), ..bare }
    }
}

impl TryFrom<PlanDocument> for JobPlan {
    type Error = JobPlanError;

    fn try_from(document: PlanDocument) -> Result<Self, JobPlanError> {
        if document.version > VERSION {
            return Err(JobPlanError::Newer { found: document.version, known: VERSION });
        }
        if let Some(recorded) = document.content
            && recorded != document.content_digest()
        {
            return Err(JobPlanError::Damaged { recorded, found: document.content_digest() });
        }
        let PlanDocument { settings, agents, tasks, n_attempts, guardrails, .. } = document;
        let plan = Self::new(settings, agents, tasks, n_attempts)?.with_guardrails(guardrails);
        if plan.digest() == document.digest {
            return Ok(plan);
        }
        Err(JobPlanError::Damaged { recorded: document.digest, found: plan.digest() })
    }
}
