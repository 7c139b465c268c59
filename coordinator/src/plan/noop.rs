//! A plan of trials that do nothing, for measurements and tests.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use rollout_protocol::digest::Digest;
use rollout_protocol::spec::agent::{AgentKind, AgentLimits, AgentSpec, AgentTaskOptions};
use rollout_protocol::spec::environment::{
    EnvironmentRates, EnvironmentSpec, PreservePolicy, ProcessSettings, ProviderSpec,
};
use rollout_protocol::spec::settings::{TrialSettings, VerifierSettings};
use rollout_protocol::spec::task::TaskSpec;
use rollout_protocol::wire::offer::SizeClass;
use serde::Serialize;

use super::{JobPlan, JobPlanError, PlannedTask};
use crate::config::TaskMetadata;

/// One no-op agent, one task without files, and `items` attempts, together with the documents that
/// the trials refer to by digest.
pub(crate) fn noop(items: u32) -> Result<(JobPlan, Vec<Bytes>), JobPlanError> {
    let settings = TrialSettings {
        instruction_path: "/tmp/instruction.md".to_owned(),
        environment: EnvironmentSpec {
            provider: ProviderSpec::Process(ProcessSettings::default()),
            force_build: false,
            preserve_env: PreservePolicy::Never,
            rates: EnvironmentRates::default(),
        },
        verifier: VerifierSettings { disable: true, ..VerifierSettings::default() },
        artifacts: Vec::new(),
        extra_instructions: Vec::new(),
        compose_overlays: Vec::new(),
        install_only: false,
        gateway: None,
        budget: None,
        secrets: BTreeSet::new(),
    };
    let agent = AgentSpec {
        name: "nop".to_owned(),
        kind: AgentKind::Nop,
        env: BTreeMap::new(),
        limits: AgentLimits::default(),
        install_once: false,
        model: None,
        task_options: AgentTaskOptions::default(),
        session_calls: None,
    };
    let task = TaskSpec::new("bench", "noop");
    let documents = vec![document(&settings), document(&agent), document(&task)];
    let spec = Digest::sha256(&documents[2]);
    let planned = PlannedTask {
        dataset: task.dataset,
        name: task.name,
        spec,
        git_commit_id: None,
        files: Digest::sha256(b""),
        rules: Digest::sha256(b""),
        class: SizeClass::default(),
        resources: task.environment.resources,
        variables: BTreeSet::new(),
        format: None,
        format_guessed: false,
        about: TaskMetadata::default(),
    };
    Ok((JobPlan::new(settings, vec![agent], vec![planned], items)?, documents))
}

fn document<T: Serialize>(value: &T) -> Bytes {
    Bytes::from(serde_json::to_vec(value).expect("a document has only text keys"))
}
