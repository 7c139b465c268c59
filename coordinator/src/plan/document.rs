//! `plan.json`: a plan on disk, enough to make it again and to compare it.

use rollout_protocol::digest::Digest;
use rollout_protocol::spec::agent::AgentSpec;
use rollout_protocol::spec::settings::TrialSettings;
use serde::{Deserialize, Serialize};

use super::{JobPlan, PlanError, PlannedTask};

/// The version written.
const VERSION: u32 = 1;

/// A plan as a document. Environment values are unexpanded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanDocument {
    /// Version of the format.
    pub version: u32,
    /// Digest of the plan.
    pub digest: Digest,
    /// Samples per agent and task.
    pub n_attempts: u32,
    /// What every trial runs under.
    pub settings: TrialSettings,
    /// The agents, in result order.
    pub agents: Vec<AgentSpec>,
    /// The tasks, in result order.
    pub tasks: Vec<PlannedTask>,
}

impl From<&JobPlan> for PlanDocument {
    fn from(plan: &JobPlan) -> Self {
        Self {
            version: VERSION,
            digest: plan.digest(),
            n_attempts: plan.n_attempts,
            settings: plan.settings.clone(),
            agents: plan.agents.iter().map(|agent| agent.spec.clone()).collect(),
            tasks: plan.tasks.clone(),
        }
    }
}

impl TryFrom<PlanDocument> for JobPlan {
    type Error = PlanError;

    fn try_from(document: PlanDocument) -> Result<Self, PlanError> {
        if document.version > VERSION {
            return Err(PlanError::Newer { found: document.version, known: VERSION });
        }
        let PlanDocument { settings, agents, tasks, n_attempts, .. } = document;
        let plan = Self::new(settings, agents, tasks, n_attempts)?;
        if plan.digest() == document.digest {
            return Ok(plan);
        }
        Err(PlanError::Damaged { recorded: document.digest, found: plan.digest() })
    }
}
