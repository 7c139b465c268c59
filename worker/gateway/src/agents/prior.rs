//! A conversation that an agent continues: the initial trajectory of a task, in the Agent Trajectory
//! Interchange Format. Files of other tools have further members, and content in parts; both are read.

use serde_json::{Value, json};

use super::shell::TOOL;

/// File with the initial conversation, for agents with scripts.
pub const TRAJECTORY_FILE: &str = "/rollout/trajectory.json";

/// Variable with the path of [`TRAJECTORY_FILE`], if there is one.
pub const TRAJECTORY_VARIABLE: &str = "ROLLOUT_TRAJECTORY";

/// File with the messages of the same conversation, as [`PriorConversation::messages`] has them.
pub const CONVERSATION_FILE: &str = "/rollout/conversation.json";

/// Variable with the path of [`CONVERSATION_FILE`], if there is one.
pub const CONVERSATION_VARIABLE: &str = "ROLLOUT_CONVERSATION";

const USER: &str = "user";
const ASSISTANT: &str = "assistant";

/// Message before a conversation that the agent begins.
const BEGINNING: &str = "[an earlier conversation]";

/// The turns of a conversation. System prompts are left out: an agent has its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriorConversation {
    pub(super) turns: Vec<PriorTurn>,
}

/// A turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PriorTurn {
    /// A message to the model.
    User(String),
    /// A reply of the model.
    Agent {
        text: String,
        /// Commands with their outputs.
        commands: Vec<PriorCommand>,
    },
}

/// A command that the model ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PriorCommand {
    pub(super) command: String,
    pub(super) output: String,
}

/// Why a document is no trajectory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTrajectory {
    /// It is no JSON.
    #[error("it is no JSON: {0}")]
    Json(String),
    /// It has no steps.
    #[error("it has no list `steps` with at least one step")]
    NoSteps,
    /// Its steps have no text of a user or of an agent.
    #[error("no step of it has a message of a user or of an agent")]
    NoMessages,
    /// A step has no known source.
    #[error("the `source` of step {0} is none of `system`, `user` and `agent`")]
    UnknownSource(usize),
}

impl PriorConversation {
    /// Reads a document of the format. Calls of other tools than `bash` become texts.
    ///
    /// # Errors
    /// [`InvalidTrajectory`].
    pub fn parse(document: &[u8]) -> Result<Self, InvalidTrajectory> {
        let document: Value = serde_json::from_slice(document)
            .map_err(|error| InvalidTrajectory::Json(error.to_string()))?;
        let steps = document["steps"].as_array().filter(|steps| !steps.is_empty());
        let mut turns = Vec::new();
        for (index, step) in steps.ok_or(InvalidTrajectory::NoSteps)?.iter().enumerate() {
            match step["source"].as_str() {
                Some("system") => {}
                Some("user") => turns.extend(user_turn(text(&step["message"]))),
                Some("agent") => turns.extend(agent_turns(step)),
                _ => return Err(InvalidTrajectory::UnknownSource(index + 1)),
            }
        }
        if turns.is_empty() {
            return Err(InvalidTrajectory::NoMessages);
        }
        Ok(Self { turns })
    }

    /// Its messages as texts, in a form that sessions of any agent can take: a list of objects with
    /// `role`, which is `user` and `assistant` in turns from `user` on, and `content`.
    pub fn messages(&self) -> Value {
        let mut messages: Vec<(&str, String)> = Vec::new();
        let mut add = |role, text: String| match messages.last_mut() {
            Some((last, before)) if *last == role => {
                before.push_str("\n\n");
                before.push_str(&text);
            }
            None if role == ASSISTANT => {
                messages.extend([(USER, BEGINNING.to_owned()), (role, text)]);
            }
            _ => messages.push((role, text)),
        };
        for turn in &self.turns {
            match turn {
                PriorTurn::User(text) => add(USER, text.clone()),
                PriorTurn::Agent { text, commands } => {
                    let ran = commands.iter().map(|command| format!("[ran {}]", command.command));
                    let said = Some(text.clone()).filter(|text| !text.is_empty());
                    add(ASSISTANT, said.into_iter().chain(ran).collect::<Vec<_>>().join("\n"));
                    for PriorCommand { output, .. } in commands {
                        add(USER, format!("[result]\n{output}"));
                    }
                }
            }
        }
        let message = |(role, text)| json!({"role": role, "content": text});
        messages.into_iter().map(message).collect()
    }
}

/// A message to the model. Servers refuse messages without a text.
fn user_turn(text: String) -> Option<PriorTurn> {
    (!text.trim().is_empty()).then_some(PriorTurn::User(text))
}

/// The reply of a step, and a message with results that belong to none of its commands.
fn agent_turns(step: &Value) -> Vec<PriorTurn> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let calls = list(&step["tool_calls"]);
    let mut results = list(&step["observation"]["results"]);
    let (mut said, mut commands) = (text(&step["message"]), Vec::new());
    for call in &calls {
        let command = call["arguments"]["command"].as_str();
        let Some(command) = command.filter(|_| call["function_name"] == TOOL) else {
            let name = call["function_name"].as_str().unwrap_or("a tool");
            said.push_str(&format!("\n[called {name} with {}]", call["arguments"]));
            continue;
        };
        let id = call["tool_call_id"].as_str();
        let is_of_call =
            |result: &mut Value| id.is_some() && result["source_call_id"].as_str() == id;
        let outputs: Vec<_> =
            results.extract_if(.., is_of_call).map(|result| text(&result["content"])).collect();
        commands.push(PriorCommand { command: command.to_owned(), output: outputs.join("\n") });
    }
    let others: Vec<_> = results.iter().map(|result| text(&result["content"])).collect();
    let said = said.trim().to_owned();
    let reply = (!said.is_empty() || !commands.is_empty())
        .then_some(PriorTurn::Agent { text: said, commands });
    let others = others.join("\n");
    let others = (!others.trim().is_empty()).then(|| format!("[result]\n{others}"));
    reply.into_iter().chain(others.and_then(user_turn)).collect()
}

/// Content as text: a text, or the texts of its parts.
fn text(content: &Value) -> String {
    let part = |part: &Value| match (part["text"].as_str(), part["type"].as_str()) {
        (Some(text), _) => text.to_owned(),
        (None, kind) => format!("[{}]", kind.unwrap_or("content")),
    };
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(part).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(steps: &Value) -> Result<Vec<PriorTurn>, InvalidTrajectory> {
        let document = json!({"schema_version": "ATIF-v1.8", "steps": steps}).to_string();
        Ok(PriorConversation::parse(document.as_bytes())?.turns)
    }

    #[test]
    fn commands_keep_their_outputs_and_other_calls_become_texts() {
        let turns = parse(&json!([
            {"step_id": 1, "source": "system", "message": "be brief"},
            {"step_id": 2, "source": "user", "message": [
                {"type": "text", "text": "look"}, {"type": "image", "source": {}}]},
            {"step_id": 3, "source": "agent", "message": "I look", "tool_calls": [
                {"tool_call_id": "a", "function_name": "bash", "arguments": {"command": "ls"}},
                {"tool_call_id": "b", "function_name": "edit", "arguments": {"path": "x"}}],
             "observation": {"results": [
                {"source_call_id": "b", "content": "edited"},
                {"source_call_id": "a", "content": "file"}]}},
            {"step_id": 4, "source": "agent", "message": " ", "tool_calls": [
                {"function_name": "bash", "arguments": {"command": "id"}}],
             "observation": {"results": [{"content": "root"}]}},
            {"step_id": 5, "source": "agent", "message": ""},
            {"step_id": 6, "source": "user"},
        ]));
        let command = PriorCommand { command: "ls".into(), output: "file".into() };
        let expected = [
            PriorTurn::User("look\n[image]".into()),
            PriorTurn::Agent {
                text: "I look\n[called edit with {\"path\":\"x\"}]".into(),
                commands: vec![command],
            },
            PriorTurn::User("[result]\nedited".into()),
            PriorTurn::Agent {
                text: String::new(),
                commands: vec![PriorCommand { command: "id".into(), output: String::new() }],
            },
            PriorTurn::User("[result]\nroot".into()),
        ];
        assert_eq!(turns.expect("a conversation"), expected);
    }

    #[test]
    fn document_without_steps_of_known_sources_is_refused() {
        assert_eq!(parse(&json!([])), Err(InvalidTrajectory::NoSteps));
        let silent = json!([{"source": "system", "message": "be brief"},
            {"source": "user", "message": " "}, {"source": "agent", "message": ""}]);
        assert_eq!(parse(&silent), Err(InvalidTrajectory::NoMessages));
        let unknown = json!([{"source": "user", "message": "a"}, {"source": "tool"}]);
        assert_eq!(parse(&unknown), Err(InvalidTrajectory::UnknownSource(2)));
        let text = PriorConversation::parse(b"{");
        assert!(matches!(text, Err(InvalidTrajectory::Json(_))), "{text:?}");
    }

    #[test]
    fn messages_take_turns_and_begin_with_that_of_user() {
        let document = json!({"steps": [
            {"source": "agent", "message": "hello"},
            {"source": "user", "message": "look"},
            {"source": "user", "message": "and tell"},
            {"source": "agent", "message": "", "tool_calls": [
                {"tool_call_id": "a", "function_name": "bash", "arguments": {"command": "ls"}},
                {"tool_call_id": "b", "function_name": "bash", "arguments": {"command": "id"}}],
             "observation": {"results": [{"source_call_id": "a", "content": "x"}]}},
            {"source": "agent", "message": "done"},
        ]});
        let conversation = PriorConversation::parse(document.to_string().as_bytes());
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        let expected = json!([
            message("user", "[an earlier conversation]"),
            message("assistant", "hello"),
            message("user", "look\n\nand tell"),
            message("assistant", "[ran ls]\n[ran id]"),
            message("user", "[result]\nx\n\n[result]\n"),
            message("assistant", "done"),
        ]);
        assert_eq!(conversation.expect("a conversation").messages(), expected);
    }
}
