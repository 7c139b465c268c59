//! The steps of a conversation.

use rollout_protocol::Timestamp;
use rollout_protocol::record::{AtifObservation, AtifResult, AtifSource, AtifStep, AtifToolCall};
use serde_json::Map;

use super::content::{AgentItem, Item, ResultItem};
use super::conversations::CallNode;

/// Steps of the agent that are searched for the call of a result.
const SEARCHED_STEPS: usize = 64;

/// The steps of calls that continue each other.
pub(super) fn steps(nodes: &[CallNode], branch: &[usize]) -> Vec<AtifStep> {
    let mut steps = Steps::default();
    for index in branch {
        let node = &nodes[*index];
        for item in &node.added {
            steps.add(item, node.began_at);
        }
        steps.add_reply(node);
        for result in &node.results {
            steps.add_result(result, node.ended_at);
        }
    }
    steps.0
}

#[derive(Default)]
struct Steps(Vec<AtifStep>);

impl Steps {
    fn push(&mut self, step: AtifStep) {
        self.0.push(AtifStep { step_id: self.0.len() as u64 + 1, ..step });
    }

    fn add(&mut self, item: &Item, at: Timestamp) {
        let plain = |source, message: &str| AtifStep {
            timestamp: Some(time(at)),
            source,
            message: message.to_owned(),
            ..AtifStep::default()
        };
        match item {
            Item::System(text) => self.push(plain(AtifSource::System, text)),
            Item::User(text) => self.push(plain(AtifSource::User, text)),
            Item::Agent(agent) => self.add_copied(agent, at),
            Item::Result(result) => self.add_result(result, at),
        }
    }

    /// Adds the message of a model that came with a request. Parts of one message may be several
    /// items.
    fn add_copied(&mut self, agent: &AgentItem, at: Timestamp) {
        let number = self.0.len() + 1;
        let open = self.0.last_mut().filter(|step| {
            step.source == AtifSource::Agent
                && step.is_copied_context == Some(true)
                && step.observation.is_none()
        });
        if let Some(step) = open {
            let reasoning = step.reasoning_content.take().unwrap_or_default();
            let text = std::mem::take(&mut step.message);
            let calls = std::mem::take(&mut step.tool_calls);
            let mut whole = AgentItem { text, reasoning, calls };
            whole.add(agent.clone());
            fill(step, &whole, &format!("copied_{}", step.step_id));
            return;
        }
        let mut step = AtifStep {
            timestamp: Some(time(at)),
            is_copied_context: Some(true),
            ..AtifStep::default()
        };
        fill(&mut step, agent, &format!("copied_{number}"));
        self.push(step);
    }

    fn add_reply(&mut self, node: &CallNode) {
        let mut step = AtifStep {
            timestamp: Some(time(node.ended_at)),
            model_name: node.model.clone(),
            reasoning_effort: node.effort.clone(),
            metrics: node.metrics.clone(),
            llm_call_count: Some(1),
            extra: node.extra.clone(),
            ..AtifStep::default()
        };
        fill(&mut step, &node.reply, &format!("call_{}", node.call));
        self.push(step);
    }

    /// Adds a result to the step that called the tool. A result without one is a step of its own.
    fn add_result(&mut self, result: &ResultItem, at: Timestamp) {
        let mut found = AtifResult {
            source_call_id: None,
            content: Some(result.text.clone()),
            extra: Map::new(),
        };
        if result.is_error {
            found.extra.insert("is_error".to_owned(), true.into());
        }
        let agents = self.0.iter_mut().rev().filter(|step| step.source == AtifSource::Agent);
        for step in agents.take(SEARCHED_STEPS) {
            if let Some(id) = open_call(step, result) {
                found.source_call_id = Some(id);
                step.observation.get_or_insert_default().results.push(found);
                return;
            }
        }
        found.extra.extend(result.call.clone().map(|call| ("call_id".to_owned(), call.into())));
        self.push(AtifStep {
            timestamp: Some(time(at)),
            source: AtifSource::System,
            observation: Some(AtifObservation { results: vec![found] }),
            ..AtifStep::default()
        });
    }
}

/// The id of the first call of a step that a result is of and that has none yet.
fn open_call(step: &AtifStep, result: &ResultItem) -> Option<String> {
    let results = step.observation.iter().flat_map(|observation| &observation.results);
    let answered = |call: &AtifToolCall| {
        let ids = results.clone().filter_map(|result| result.source_call_id.as_deref());
        let same = |id: &&str| *id == call.tool_call_id;
        ids.filter(same).count()
            >= step.tool_calls.iter().filter(|one| one.tool_call_id == call.tool_call_id).count()
    };
    let is_of = |call: &&AtifToolCall| match (&result.call, &result.name) {
        (Some(id), _) => call.tool_call_id == *id,
        (None, Some(name)) => call.function_name == *name,
        (None, None) => true,
    };
    let named = step.tool_calls.iter().filter(is_of).find(|call| !answered(call));
    // Some clients give a result an id of their own.
    let by_name = || {
        let name = result.name.as_ref()?;
        step.tool_calls.iter().find(|call| call.function_name == *name && !answered(call))
    };
    named.or_else(by_name).map(|call| call.tool_call_id.clone())
}

/// Fills a step of the agent. Calls without an id get one.
fn fill(step: &mut AtifStep, agent: &AgentItem, prefix: &str) {
    step.source = AtifSource::Agent;
    step.message.clone_from(&agent.text);
    step.reasoning_content =
        Some(agent.reasoning.clone()).filter(|reasoning| !reasoning.is_empty());
    step.tool_calls.clone_from(&agent.calls);
    for (index, call) in step.tool_calls.iter_mut().enumerate() {
        if call.tool_call_id.is_empty() {
            call.tool_call_id = format!("{prefix}_{}", index + 1);
        }
    }
}

/// A time in the form of ISO 8601 that other tools read.
pub(super) fn time(at: Timestamp) -> String {
    format!("{at:.6}")
}
