//! Plans.

use rollout_protocol::digest::Digest;
use rollout_protocol::spec::agent::{AgentKind, AgentLimits, AgentSpec, AgentTaskOptions};
use rollout_protocol::spec::environment::{
    DockerSettings, EnvironmentRates, EnvironmentSpec, PreservePolicy, ProviderSpec,
};
use rollout_protocol::spec::settings::{TrialSettings, VerifierSettings};
use serde_json::json;

use crate::config::TaskMetadata;
use crate::plan::{JobPlan, PlannedTask};

/// A plan of agents x tasks x attempts, in the dataset `data`.
pub(crate) fn plan(
    agents: &[&str],
    tasks: &[&str],
    attempts: u32,
    about: fn(&str) -> TaskMetadata,
) -> JobPlan {
    let agent = |name: &str| AgentSpec {
        name: name.into(),
        kind: AgentKind::Oracle,
        env: [].into(),
        limits: AgentLimits::default(),
        install_once: false,
        model: None,
        task_options: AgentTaskOptions::default(),
        session_calls: None,
    };
    let task = |name: &str| PlannedTask {
        dataset: "data".into(),
        name: name.into(),
        spec: Digest::sha256(b"spec"),
        git_commit_id: None,
        files: Digest::sha256(name.as_bytes()),
        rules: Digest::sha256(b"rules"),
        class: serde_json::from_value(json!("small")).unwrap_or_default(),
        resources: Default::default(),
        variables: [].into(),
        format: None,
        format_guessed: false,
        about: about(name),
    };
    let settings = TrialSettings {
        instruction_path: "/instruction.md".into(),
        environment: EnvironmentSpec {
            provider: ProviderSpec::Docker(DockerSettings::default()),
            force_build: false,
            preserve_env: PreservePolicy::Never,
            rates: EnvironmentRates::default(),
        },
        verifier: VerifierSettings::default(),
        artifacts: Vec::new(),
        extra_instructions: Vec::new(),
        compose_overlays: Vec::new(),
        install_only: false,
        gateway: None,
        budget: None,
        secrets: std::collections::BTreeSet::new(),
    };
    let agents = agents.iter().map(|name| agent(name)).collect();
    let tasks = tasks.iter().map(|name| task(name)).collect();
    JobPlan::new(settings, agents, tasks, attempts).expect("a plan")
}
