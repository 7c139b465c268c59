//! The agent `shell`: a loop of model calls and shell commands.
//!
//! [`ShellSession`] decides, without IO: it makes the requests and reads the replies. `openai`,
//! `anthropic` and `gemini` are the forms of its messages; `output` bounds what commands print.

mod anthropic;
mod gemini;
mod openai;
mod output;

use bytes::Bytes;
use rollout_protocol::spec::agent::ShellSpec;
use rollout_protocol::spec::gateway::ModelDialect;
use serde_json::Value;

use super::prior::{PriorConversation, PriorTurn};

pub use self::output::BoundedOutput;

/// Name of the only tool.
pub(super) const TOOL: &str = "bash";

/// Description of the tool, for the model.
const TOOL_DESCRIPTION: &str = "Runs a command with bash in the working directory of the task and returns its exit code and output.";

/// Description of the tool's parameter.
const COMMAND_DESCRIPTION: &str = "The command, one or more lines of bash.";

/// The system prompt, unless the job has one.
const SYSTEM_PROMPT: &str = "\
You solve a task on a Linux machine. Use the tool `bash` to run commands. Each command runs in a new \
shell in the working directory of the task, without a terminal; files stay, variables and the \
current directory do not. No human answers questions. Check your work before you end. When the task \
is done, answer with a short summary and without a tool call.";

/// Text before the list of a task's skills.
const SKILLS_PROMPT: &str = "

The task has skills: instructions for certain kinds of work. Each is a file SKILL.md, whose directory \
may have further files that it needs. Read the file of a skill before you do such work. The skills, \
with the beginning of each file:

";

/// Message before an earlier conversation that begins with a reply: dialects want one.
const PRIOR_PROMPT: &str = "This is the conversation so far.";

/// Bytes of a command's output that the model gets, half from its beginning and half from its end.
pub const OUTPUT_BYTES: usize = 16 * 1024;

/// Most tokens of an Anthropic reply, which the dialect wants to know.
const MAX_REPLY_TOKENS: u32 = 8192;

/// A conversation with a model about one step of a task.
#[derive(Debug)]
pub struct ShellSession {
    dialect: ModelDialect,
    model: String,
    system: String,
    messages: Vec<Value>,
    turns_left: u32,
}

/// A call to a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShellRequest {
    /// Path below the gateway's prefix of the dialect.
    pub path: String,
    /// The body, JSON.
    pub body: Bytes,
}

/// The model's decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShellStep {
    /// It wants these commands to run, in order; each output is added with
    /// [`ShellSession::add_outputs`].
    Run {
        /// Text beside the commands.
        text: String,
        /// The commands.
        commands: Vec<ShellCommand>,
    },
    /// It says that it is done.
    Done(String),
}

/// A command that a model wants to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShellCommand {
    /// Id of the tool call.
    pub id: String,
    /// The command; `None` if the arguments of the call do not have one.
    pub command: Option<String>,
}

/// A reply that the agent does not understand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the reply of the model server is no reply of the dialect {0}")]
pub struct UnknownReply(ModelDialect);

impl ShellSession {
    /// A conversation that begins with an instruction, or continues an earlier one with it. `skills`
    /// lists those of the task, if it has some.
    pub fn new(
        spec: &ShellSpec,
        model: &str,
        dialect: ModelDialect,
        instruction: &str,
        skills: Option<&str>,
        prior: Option<&PriorConversation>,
    ) -> Self {
        let mut system = spec.system_prompt.clone().unwrap_or_else(|| SYSTEM_PROMPT.to_owned());
        if let Some(skills) = skills {
            system.push_str(SKILLS_PROMPT);
            system.push_str(skills);
        }
        let mut session =
            Self { dialect, model: model.to_owned(), system, messages: Vec::new(), turns_left: 0 };
        if let Some(prior) = prior {
            session.add_prior(prior);
        }
        session.resume(spec, instruction);
        session
    }

    /// Adds the turns of an earlier conversation.
    fn add_prior(&mut self, prior: &PriorConversation) {
        if matches!(prior.turns.first(), Some(PriorTurn::Agent { .. })) {
            self.add_user(PRIOR_PROMPT);
        }
        let mut number = 0;
        for turn in &prior.turns {
            let (text, commands) = match turn {
                PriorTurn::User(text) => {
                    self.add_user(text);
                    continue;
                }
                PriorTurn::Agent { text, commands } => (text, commands),
            };
            // Ids of other programs may have a form that the server refuses.
            let ids = commands.iter().map(|_| {
                number += 1;
                format!("prior_{number}")
            });
            let ids: Vec<String> = ids.collect();
            let calls = || ids.iter().zip(commands.iter().map(|command| command.command.as_str()));
            self.messages.push(match self.dialect {
                ModelDialect::Openai => openai::assistant(text, calls()),
                ModelDialect::Anthropic => anthropic::assistant(text, calls()),
                ModelDialect::Gemini => gemini::assistant(text, calls()),
            });
            let outputs = commands.iter().map(|command| command.output.clone());
            let outputs: Vec<_> = ids.iter().cloned().zip(outputs).collect();
            if !outputs.is_empty() {
                self.add_outputs(&outputs);
            }
        }
    }

    fn add_user(&mut self, text: &str) {
        self.messages.push(match self.dialect {
            ModelDialect::Openai | ModelDialect::Anthropic => {
                serde_json::json!({"role": "user", "content": text})
            }
            ModelDialect::Gemini => gemini::user(text),
        });
    }

    /// Continues the conversation with another instruction, with all turns of a new one.
    pub fn resume(&mut self, spec: &ShellSpec, instruction: &str) {
        self.turns_left = spec.max_turns;
        self.add_user(instruction);
    }

    /// The next call; `None` if the model has had all its turns.
    pub fn next_request(&mut self) -> Option<ShellRequest> {
        self.turns_left = self.turns_left.checked_sub(1)?;
        let (path, body) = match self.dialect {
            ModelDialect::Openai => openai::request(&self.model, &self.system, &self.messages),
            ModelDialect::Anthropic => {
                anthropic::request(&self.model, &self.system, &self.messages)
            }
            ModelDialect::Gemini => gemini::request(&self.model, &self.system, &self.messages),
        };
        Some(ShellRequest { path, body: Bytes::from(body.to_string()) })
    }

    /// Reads the reply to the last call.
    ///
    /// # Errors
    /// [`UnknownReply`].
    pub fn read_reply(&mut self, body: &[u8]) -> Result<ShellStep, UnknownReply> {
        let unknown = UnknownReply(self.dialect);
        let reply: Value = serde_json::from_slice(body).map_err(|_| unknown)?;
        let read = match self.dialect {
            ModelDialect::Openai => openai::read(&reply),
            ModelDialect::Anthropic => anthropic::read(&reply),
            ModelDialect::Gemini => gemini::read(&reply),
        };
        let (message, text, commands) = read.ok_or(unknown)?;
        self.messages.push(message);
        Ok(match commands.is_empty() {
            true => ShellStep::Done(text),
            false => ShellStep::Run { text, commands },
        })
    }

    /// Adds what the commands of the last reply printed, by the ids of their calls.
    pub fn add_outputs(&mut self, outputs: &[(String, String)]) {
        match self.dialect {
            ModelDialect::Openai => self.messages.extend(outputs.iter().map(openai::output)),
            ModelDialect::Anthropic => self.messages.push(anthropic::outputs(outputs)),
            ModelDialect::Gemini => self.messages.push(gemini::outputs(outputs)),
        }
    }
}

#[cfg(test)]
mod tests;
