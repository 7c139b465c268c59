//! Conversations in the form of chat completions, to train a model on.

use rollout_protocol::record::{AtifSource, AtifStep, AtifToolCall, AtifTrajectory};
use serde_json::{Value, json};

use super::{ExportError, SettledTrial, damaged};
use crate::results::metrics::TrialScore;

/// The reward of a trial, if it has one.
pub(super) fn reward(trial: &SettledTrial) -> Option<f64> {
    TrialScore::from_settlement(&trial.settlement).reward
}

/// The line of a trial: its main conversation.
pub(super) fn line(
    trial: &SettledTrial,
    reward: f64,
    trajectory: &str,
) -> Result<Vec<u8>, ExportError> {
    let trajectory: AtifTrajectory =
        serde_json::from_str(trajectory).map_err(|error| damaged(trial, error))?;
    let mut line = json!({
        "messages": messages(&trajectory.steps),
        "trial": trial.name.to_string(),
        "model": trajectory.agent.model_name,
        "reward": reward,
    });
    if !trajectory.agent.tool_definitions.is_empty() {
        line["tools"] = Value::Array(trajectory.agent.tool_definitions);
    }
    Ok(format!("{line}\n").into_bytes())
}

/// The messages of steps.
fn messages(steps: &[AtifStep]) -> Vec<Value> {
    let mut messages = Vec::new();
    for step in steps {
        match step.source {
            // The result of a call that no step has.
            AtifSource::System if step.observation.is_some() && step.message.is_empty() => {}
            AtifSource::System => messages.push(json!({"role": "system", "content": step.message})),
            AtifSource::User => messages.push(json!({"role": "user", "content": step.message})),
            AtifSource::Agent => messages.push(assistant(step)),
        }
        for result in step.observation.iter().flat_map(|observation| &observation.results) {
            let content = result.content.as_deref().unwrap_or_default();
            messages.push(match &result.source_call_id {
                Some(id) => json!({"role": "tool", "tool_call_id": id, "content": content}),
                None => json!({"role": "user", "content": content}),
            });
        }
    }
    messages
}

/// The message of a model. One that came with a request is context: its weight is 0.
fn assistant(step: &AtifStep) -> Value {
    let mut message = json!({"role": "assistant", "content": step.message});
    if let Some(reasoning) = &step.reasoning_content {
        message["reasoning_content"] = json!(reasoning);
    }
    if !step.tool_calls.is_empty() {
        message["tool_calls"] = step.tool_calls.iter().map(tool_call).collect();
    }
    if step.is_copied_context == Some(true) {
        message["weight"] = json!(0);
    }
    message
}

fn tool_call(call: &AtifToolCall) -> Value {
    let arguments = Value::Object(call.arguments.clone()).to_string();
    json!({
        "id": call.tool_call_id,
        "type": "function",
        "function": {"name": call.function_name, "arguments": arguments},
    })
}

#[cfg(test)]
mod tests {
    use rollout_protocol::record::{AtifObservation, AtifResult};

    use super::*;

    #[test]
    fn steps_become_messages_of_chat_completions() {
        let call = AtifToolCall {
            tool_call_id: "c".to_owned(),
            function_name: "sh".to_owned(),
            arguments: json!({"a": 1}).as_object().cloned().expect("an object"),
        };
        let result = |call: Option<&str>, text: &str| AtifResult {
            source_call_id: call.map(str::to_owned),
            content: Some(text.to_owned()),
            ..AtifResult::default()
        };
        let observation = |result| Some(AtifObservation { results: vec![result] });
        let step = |source, message: &str| AtifStep {
            source,
            message: message.to_owned(),
            ..AtifStep::default()
        };
        let steps = [
            step(AtifSource::System, "s"),
            AtifStep { is_copied_context: Some(true), ..step(AtifSource::Agent, "old") },
            step(AtifSource::User, "u"),
            AtifStep {
                tool_calls: vec![call],
                reasoning_content: Some("hm".to_owned()),
                observation: observation(result(Some("c"), "r")),
                ..step(AtifSource::Agent, "")
            },
            AtifStep {
                observation: observation(result(None, "?")),
                ..step(AtifSource::System, "")
            },
        ];
        let expected = json!([
            {"role": "system", "content": "s"},
            {"role": "assistant", "content": "old", "weight": 0},
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [
                {"id": "c", "type": "function",
                    "function": {"name": "sh", "arguments": "{\"a\":1}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "r"},
            {"role": "user", "content": "?"},
        ]);
        assert_eq!(Value::Array(messages(&steps)), expected);
    }
}
