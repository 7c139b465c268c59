//! A line for each trial: task, agent, model, result and trajectory.

use rollout_protocol::record::{ItemOutcome, Rewards};
use rollout_protocol::spec::agent::AgentModel;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{ExportError, ExportSource, SettledTrial, damaged};
use crate::results::metrics::{TrialScore, total_cost};

/// A line.
#[derive(Serialize)]
struct TraceLine<'a> {
    run: String,
    job_name: &'a str,
    item: String,
    agent_name: &'a str,
    model: Option<String>,
    dataset_name: &'a str,
    task_name: &'a str,
    attempt: u32,
    outcome: ItemOutcome,
    reward: Option<f64>,
    rewards: Option<&'a Rewards>,
    error: Option<TraceError<'a>>,
    cost: Option<f64>,
    trajectory: Option<&'a RawValue>,
}

/// The error of a trial.
#[derive(Serialize)]
struct TraceError<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    code: &'a str,
    class: &'a str,
    message: &'a str,
}

/// The line of a trial.
pub(super) fn line(
    source: &ExportSource,
    trial: &SettledTrial,
    trajectory: Option<&str>,
) -> Result<Vec<u8>, ExportError> {
    let (name, verdict) = (&trial.name, &trial.settlement.verdict);
    let trajectory: Option<&RawValue> =
        trajectory.map(serde_json::from_str).transpose().map_err(|error| damaged(trial, error))?;
    let error = verdict.error.as_ref().map(|error| TraceError {
        kind: error.kind.as_str(),
        code: error.code.as_str(),
        class: error.class.as_str(),
        message: &error.message,
    });
    let line = TraceLine {
        run: source.header.run.to_string(),
        job_name: &source.header.job,
        item: trial.settlement.item.to_string(),
        agent_name: &name.agent,
        model: model(source, &name.agent),
        dataset_name: &name.dataset,
        task_name: &name.task,
        attempt: name.attempt,
        outcome: verdict.outcome,
        reward: TrialScore::from_settlement(&trial.settlement).reward,
        rewards: (!verdict.rewards.is_empty()).then_some(&verdict.rewards),
        error,
        cost: total_cost(&trial.settlement),
        trajectory,
    };
    let mut text = serde_json::to_vec(&line).map_err(|error| damaged(trial, error))?;
    text.push(b'\n');
    Ok(text)
}

/// The model that the job asks an agent to use.
fn model(source: &ExportSource, agent: &str) -> Option<String> {
    let planned = source.plan().agents().iter().find(|planned| planned.spec.name == agent);
    let name = |model: &AgentModel| format!("{}/{}", model.provider, model.name);
    planned.and_then(|planned| planned.spec.model.as_ref()).map(name)
}
