//! Trajectories in the Agent Trajectory Interchange Format, which Harbor's tools read. The format
//! forbids other members than these.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::model_call::TokenUsage;

/// The version of the format.
pub const ATIF_VERSION: &str = "ATIF-v1.8";

/// Path of a trial's trajectory, below its directory.
pub const ATIF_PATH: &str = "gateway/trajectory.json";

/// The steps of a conversation. Its steps are numbered from 1.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AtifTrajectory {
    /// [`ATIF_VERSION`].
    pub schema_version: String,
    /// The execution of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Its own id; those of the other conversations of a document differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trajectory_id: Option<String>,
    /// The agent.
    pub agent: AtifAgent,
    /// The steps; at least one.
    pub steps: Vec<AtifStep>,
    /// Remarks for readers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notes: Option<String>,
    /// Sums over the steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_metrics: Option<AtifFinalMetrics>,
    /// Facts that the format has no member for.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
    /// Other conversations of the agent, such as those of its subagents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subagent_trajectories: Vec<Self>,
}

/// The agent of a trajectory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AtifAgent {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The model of steps that name no other one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    /// Tools that the model was offered, in the form of OpenAI's functions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_definitions: Vec<Value>,
}

/// The origin of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AtifSource {
    /// A system prompt.
    System,
    /// A message that no model wrote.
    #[default]
    User,
    /// A reply of a model.
    Agent,
}

/// A step. Members from `model_name` to `tool_calls`, and `metrics`, are those of agents only.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AtifStep {
    /// Number of the step, from 1.
    pub step_id: u64,
    /// When it was made, in the form of ISO 8601.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<String>,
    /// Its origin.
    pub source: AtifSource,
    /// The model, as the server names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    /// The effort that the request asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<String>,
    /// The text.
    pub message: String,
    /// Reasoning that the server gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// Calls of tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<AtifToolCall>,
    /// Results of these calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observation: Option<AtifObservation>,
    /// Figures of the model call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<AtifMetrics>,
    /// Whether no call of this execution made the step: its text came with a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_copied_context: Option<bool>,
    /// Model calls of the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub llm_call_count: Option<u32>,
    /// Facts that the format has no member for.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

/// A call of a tool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AtifToolCall {
    /// Id of the call.
    pub tool_call_id: String,
    /// Name of the tool.
    pub function_name: String,
    /// Its arguments.
    pub arguments: Map<String, Value>,
}

/// Results of the calls of a step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AtifObservation {
    /// The results.
    pub results: Vec<AtifResult>,
}

/// The result of a call of a tool.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AtifResult {
    /// Id of the call, which the same step has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_call_id: Option<String>,
    /// The text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Facts that the format has no member for.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

/// Figures of a model call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AtifMetrics {
    /// Input tokens, cached ones included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Output tokens, reasoning included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<u64>,
    /// Input tokens from the server's cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// Cost, if prices are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_usd: Option<f64>,
    /// Token ids of the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<u32>>,
    /// Token ids of the reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_token_ids: Option<Vec<u32>>,
    /// Log probabilities of the reply's tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Vec<f64>>,
    /// Facts that the format has no member for.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

/// Sums over the steps of a trajectory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AtifFinalMetrics {
    /// Input tokens, cached ones included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_prompt_tokens: Option<u64>,
    /// Output tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_completion_tokens: Option<u64>,
    /// Input tokens from the server's cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_cached_tokens: Option<u64>,
    /// Cost, with that of subagents, if that of every call is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_cost_usd: Option<f64>,
    /// Number of steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_steps: Option<u64>,
    /// Facts that the format has no member for.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub extra: Map<String, Value>,
}

impl AtifMetrics {
    /// The token counts of a call.
    pub fn of_usage(usage: TokenUsage) -> Self {
        let mut extra = Map::new();
        if usage.reasoning > 0 {
            extra.insert("reasoning_tokens".to_owned(), usage.reasoning.into());
        }
        Self {
            prompt_tokens: Some(usage.input),
            completion_tokens: Some(usage.output),
            cached_tokens: Some(usage.cached_input),
            extra,
            ..Self::default()
        }
    }
}
