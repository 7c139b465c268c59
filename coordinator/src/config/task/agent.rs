//! `[agent]` and `[steps.agent]`.

use rollout_protocol::spec::task::{AgentPhase, TaskEnvironment};

use super::super::elements::timeouts;
use super::super::reader::{Field, Fields};
use super::TaskReadContext;
use super::format::FormatDefaults;
use super::network::{self, NetworkKeys};

keys! {
    /// The keys of `agent`.
    pub(crate) table AgentPhaseKeys {
        timeout_sec: Value("seconds"), "rollout: 600, harbor: no limit", "Time limit of an attempt.";
        install_timeout_sec (Rollout): Value("seconds"), "rollout: 300, harbor: 360",
            "Time limit of the agent's install script.";
        user (Harbor): Value("text|integer"), "image default", "User that the agent's scripts run as.";
        network_mode (Harbor): Value("public|no-network|allowlist"), "as `environment`",
            "Network access of the agent.";
        allowed_hosts (Harbor): Value("list of hosts"), "empty",
            "Hosts for `allowlist`, as in `environment.allowed_hosts`.";
    }
}

/// The network keys of agents.
const NETWORK_KEYS: NetworkKeys =
    NetworkKeys { mode: AgentPhaseKeys::network_mode, hosts: AgentPhaseKeys::allowed_hosts };

/// Reads how agents run, and the time limit of their install scripts.
pub(super) fn read(
    field: &Field<'_>,
    environment: &TaskEnvironment,
    context: &mut TaskReadContext,
) -> (AgentPhase, f64) {
    let FormatDefaults { agent_sec, install_sec, .. } = context.defaults;
    let phase = AgentPhase { timeout_sec: agent_sec, ..AgentPhase::default() };
    let Some(mut fields) = field.mapping() else { return (phase, install_sec) };
    let install_sec =
        timeouts::read(&fields.take(AgentPhaseKeys::install_timeout_sec), install_sec);
    let phase = merge(&mut fields, phase, environment, context);
    fields.finish();
    (phase, install_sec)
}

/// Reads how the agent runs in a step; absent keys are inherited from `task`.
pub(super) fn read_step(
    field: &Field<'_>,
    task: &AgentPhase,
    environment: &TaskEnvironment,
    context: &mut TaskReadContext,
) -> AgentPhase {
    let Some(mut fields) = field.mapping() else { return task.clone() };
    let phase = merge(&mut fields, task.clone(), environment, context);
    fields.finish();
    phase
}

fn merge(
    fields: &mut Fields<'_>,
    below: AgentPhase,
    environment: &TaskEnvironment,
    reading: &mut TaskReadContext,
) -> AgentPhase {
    let timeout = fields.take(AgentPhaseKeys::timeout_sec);
    let timeout_sec = if timeout.is_present() {
        Some(timeouts::read(&timeout, below.timeout_sec.unwrap_or(timeouts::MAX_TIMEOUT_SEC)))
    } else {
        below.timeout_sec
    };
    AgentPhase {
        timeout_sec,
        user: reading.user(&fields.take(AgentPhaseKeys::user)).or(below.user),
        network: network::phase(fields, NETWORK_KEYS, &environment.network, below.network, reading),
    }
}
