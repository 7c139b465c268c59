//! Lanes of a job: its trials grouped by their requirements on a worker.

use std::collections::BTreeMap;

use rollout_engine::WorkerRequirements;
use rollout_protocol::spec::gateway::GatewaySpec;
use rollout_protocol::spec::resources::Resources;

use crate::plan::{JobPlan, required};

/// The lanes of a plan.
#[derive(Debug, Clone)]
pub struct JobLanes {
    needs: Vec<WorkerRequirements>,
    /// Lane of each agent and task, agent by agent.
    of: Vec<u16>,
    tasks: usize,
    /// Agent of each lane, if each is of one agent.
    agents: Vec<u16>,
}

impl JobLanes {
    /// Groups the trials of a plan. With more than 65,536 different requirements, the last ones
    /// share a lane.
    pub fn new(plan: &JobPlan) -> Self {
        Self::group(plan, false)
    }

    /// The same, with lanes of one agent each.
    pub fn by_agent(plan: &JobPlan) -> Self {
        Self::group(plan, true)
    }

    fn group(plan: &JobPlan, by_agent: bool) -> Self {
        let provider = plan.settings().environment.provider.kind();
        let verifier = &plan.settings().verifier;
        let judging = required(verifier.env.values().filter(|_| !verifier.disable));
        let keys = plan.settings().gateway.iter().flat_map(GatewaySpec::keys);
        let judging = &judging | &required(keys);
        let agents: Vec<_> = plan
            .agents()
            .iter()
            .map(|agent| &required(agent.spec.env.values()) | &judging)
            .collect();
        let mut index: BTreeMap<(u16, WorkerRequirements), u16> = BTreeMap::new();
        let (mut needs, mut agent_of_lane) = (Vec::new(), Vec::new());
        let mut of = Vec::with_capacity(agents.len() * plan.tasks().len());
        for (agent, variables) in (0..).zip(&agents) {
            let agent = if by_agent { agent } else { 0 };
            for task in plan.tasks() {
                let Resources { cpus, memory_mb, .. } = task.resources;
                let variables = variables | &task.variables;
                let (class, second_provider) = (task.class, None);
                let need = WorkerRequirements {
                    class,
                    cpus,
                    memory_mb,
                    provider,
                    second_provider,
                    variables,
                };
                let lane = *index.entry((agent, need)).or_insert_with_key(|(agent, need)| {
                    needs.push(need.clone());
                    agent_of_lane.push(*agent);
                    u16::try_from(needs.len() - 1).unwrap_or(u16::MAX)
                });
                of.push(lane);
            }
        }
        Self { needs, of, tasks: plan.tasks().len(), agents: agent_of_lane }
    }

    /// The lane of the trials of an agent and a task, by their indices in the plan.
    pub fn lane(&self, agent: usize, task: usize) -> u16 {
        self.of[agent * self.tasks + task]
    }

    /// The agent of each lane.
    pub fn agents(&self) -> Vec<u16> {
        self.agents.clone()
    }

    /// Number of trials of each lane, with this number of attempts of each agent and task.
    pub fn totals(&self, attempts: u64) -> Vec<u64> {
        let mut totals = vec![0; self.needs.len()];
        for lane in &self.of {
            totals[usize::from(*lane)] += attempts;
        }
        totals
    }

    /// Requirements of the trials of each lane.
    pub fn needs(&self) -> &[WorkerRequirements] {
        &self.needs
    }
}
