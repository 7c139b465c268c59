//! The trajectory of a try in the Agent Trajectory Interchange Format, made from the records of its
//! calls when it ends.
//!
//! * `content`, `request`: messages of all dialects; `conversations`: which call continues which;
//!   `steps`: the steps of a conversation; `calls`: reader of the records;
//! * A call is in one step of one conversation: the one with the most calls is the trajectory, the
//!   others are its subagents'. Calls without a complete reply are no steps.

mod calls;
mod content;
mod conversations;
mod request;
mod steps;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use rollout_base::supervise;
use rollout_protocol::limits;
use rollout_protocol::record::{
    ATIF_VERSION, AtifAgent, AtifFinalMetrics, AtifStep, AtifTrajectory, SessionCalls, TokenUsage,
};
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;

use self::calls::{CallReader, ReadCalls};
use self::conversations::branches;
use super::call_log::CALLS_FILE;
use crate::TrajectoryAgent;

/// Name of the file.
const TRAJECTORY_FILE: &str = "trajectory.json";

/// Trajectories that are made at once by a process: it bounds the memory for them.
static MADE_AT_ONCE: Semaphore = Semaphore::const_new(2);

/// Writes the trajectory of the calls in a directory; returns the file, if there is a call with a
/// complete reply.
///
/// # Errors
/// The system's error; there is no file then.
pub(crate) async fn write(
    directory: PathBuf,
    agent: TrajectoryAgent,
    session: Option<SessionCalls>,
) -> io::Result<Option<PathBuf>> {
    let _one = MADE_AT_ONCE.acquire().await.expect("the semaphore is never closed");
    supervise::blocking(move || write_blocking(&directory, &agent, session)).await
}

fn write_blocking(
    directory: &Path,
    agent: &TrajectoryAgent,
    session: Option<SessionCalls>,
) -> io::Result<Option<PathBuf>> {
    let file = File::open(directory.join(CALLS_FILE))?;
    let reader = CallReader::new(directory, limits::TRAJECTORY_TEXT_BYTES);
    let calls = reader.read(BufReader::new(file))?;
    let Some(mut trajectory) = trajectory(agent, &calls) else { return Ok(None) };
    if let (Some(session), Some(sums)) = (session, &mut trajectory.final_metrics) {
        sums.extra.insert("agent_session".to_owned(), session_json(session));
    }
    let path = directory.join(TRAJECTORY_FILE);
    let written = put(&path, &trajectory);
    if written.is_err() {
        let _best_effort = fs::remove_file(&path);
    }
    written.map(|()| Some(path))
}

fn put(path: &Path, trajectory: &AtifTrajectory) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    serde_json::to_writer(&mut file, trajectory)?;
    file.write_all(b"\n")?;
    file.flush()?;
    match file.get_ref().metadata()?.len() {
        bytes if bytes > limits::TRAJECTORY_FILE_BYTES => {
            Err(io::Error::other(format!("it has {bytes} bytes, more than a trajectory may have")))
        }
        _ => Ok(()),
    }
}

/// The trajectory of calls; `None` if none of them is a step.
fn trajectory(agent: &TrajectoryAgent, calls: &ReadCalls) -> Option<AtifTrajectory> {
    let mut branches = branches(&calls.nodes).into_iter();
    let mut main = conversation(agent, calls, &branches.next()?);
    main.subagent_trajectories =
        branches.map(|branch| conversation(agent, calls, &branch)).collect();
    main.trajectory_id = Some(agent.session.clone());
    main.notes = notes(calls);
    if let Some(sums) = &mut main.final_metrics {
        sums.total_cost_usd = calls.known_cost.filter(|_| calls.unpriced_calls == 0);
        sums.extra.insert("all_calls".to_owned(), all_json(calls));
        sums.extra
            .insert("calls_without_step".to_owned(), sum_json(calls.others, calls.other_calls));
    }
    Some(main)
}

fn notes(calls: &ReadCalls) -> Option<String> {
    let mut notes = vec!["Made from the records of the model gateway.".to_owned()];
    if calls.other_calls > 0 {
        notes.push(format!(
            "{} calls without a complete reply are no steps; see `calls_without_step`.",
            calls.other_calls - calls.left_out
        ));
    }
    if calls.left_out > 0 {
        notes.push(format!(
            "{} calls are left out: their texts are too large, or not in the records.",
            calls.left_out
        ));
    }
    if calls.ids_left_out > 0 {
        notes.push(format!(
            "Token ids of the prompts of {} calls are in `gateway/calls.jsonl` only.",
            calls.ids_left_out
        ));
    }
    Some(notes.join(" "))
}

fn sum_json(usage: TokenUsage, calls: u64) -> Value {
    json!({
        "calls": calls,
        "prompt_tokens": usage.input,
        "cached_tokens": usage.cached_input,
        "completion_tokens": usage.output,
        "reasoning_tokens": usage.reasoning,
    })
}

/// The figures of all calls. A cost of which a part is not known has a name of its own.
fn all_json(calls: &ReadCalls) -> Value {
    let mut all = sum_json(calls.all, calls.all_calls);
    if calls.unpriced_calls > 0 {
        all["unpriced_calls"] = calls.unpriced_calls.into();
        all["known_cost_usd"] = json!(calls.known_cost);
    }
    all
}

fn session_json(session: SessionCalls) -> Value {
    json!({
        "calls": session.calls,
        "prompt_tokens": session.input,
        "completion_tokens": session.output,
    })
}

/// One conversation.
fn conversation(agent: &TrajectoryAgent, calls: &ReadCalls, branch: &[usize]) -> AtifTrajectory {
    let nodes = &calls.nodes;
    let steps = steps::steps(nodes, branch);
    let first = branch.first().map(|index| &nodes[*index]);
    let mut extra = Map::new();
    let continued = first.and_then(|first| first.parent).map(|index| nodes[index].call);
    extra.extend(continued.map(|call| ("continues_call".to_owned(), call.into())));
    // A branch has the tools of the conversation that it leaves.
    let mut root = branch.first().copied();
    while let Some(parent) = root.and_then(|index| nodes[index].parent) {
        root = Some(parent);
    }
    AtifTrajectory {
        schema_version: ATIF_VERSION.to_owned(),
        session_id: Some(agent.session.clone()),
        trajectory_id: first.map(|first| format!("{}/call-{}", agent.session, first.call)),
        agent: AtifAgent {
            name: agent.name.clone(),
            version: agent.version.clone(),
            model_name: agent.model.clone().or_else(|| first.and_then(|first| first.model.clone())),
            tool_definitions: root.map(|root| nodes[root].tools.clone()).unwrap_or_default(),
        },
        final_metrics: Some(sums(&steps)),
        steps,
        notes: None,
        extra,
        subagent_trajectories: Vec::new(),
    }
}

/// The sums over steps; absent where no step has a figure. The cost is absent also if a call has none.
fn sums(steps: &[AtifStep]) -> AtifFinalMetrics {
    let metrics = || steps.iter().filter_map(|step| step.metrics.as_ref());
    let sum = |figures: Vec<u64>| {
        (!figures.is_empty()).then(|| figures.into_iter().fold(0, u64::saturating_add))
    };
    let calls = steps.iter().filter(|step| step.llm_call_count.is_some());
    let costs: Option<Vec<f64>> =
        calls.map(|step| step.metrics.as_ref().and_then(|metrics| metrics.cost_usd)).collect();
    AtifFinalMetrics {
        total_prompt_tokens: sum(metrics().filter_map(|one| one.prompt_tokens).collect()),
        total_completion_tokens: sum(metrics().filter_map(|one| one.completion_tokens).collect()),
        total_cached_tokens: sum(metrics().filter_map(|one| one.cached_tokens).collect()),
        total_cost_usd: costs.filter(|costs| !costs.is_empty()).map(|costs| costs.iter().sum()),
        total_steps: Some(steps.len() as u64),
        extra: Map::new(),
    }
}
