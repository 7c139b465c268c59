//! Agents that the program has itself: no script and no file describes them.

use rollout_protocol::spec::gateway::ModelDialect;

/// An agent that the program has itself.
#[derive(Debug, PartialEq, Eq)]
pub struct BuiltInAgent {
    /// Its name. No other agent can have it.
    pub name: &'static str,
    /// Description, one line.
    pub summary: &'static str,
    /// Dialects of model servers that it speaks, the preferred one first; empty if it calls no model.
    pub dialects: &'static [ModelDialect],
    /// Options of a job that it takes.
    pub options: &'static [&'static str],
}

/// All of them.
pub const BUILT_IN_AGENTS: &[BuiltInAgent] = &[
    BuiltInAgent {
        name: "oracle",
        summary: "Runs the solution of each task; calls no model",
        dialects: &[],
        options: &[],
    },
    BuiltInAgent {
        name: "nop",
        summary: "Does nothing: shows what the tests say of an untouched environment",
        dialects: &[],
        options: &[],
    },
    BuiltInAgent {
        name: "shell",
        summary: "A loop of model calls and commands; needs nothing in the image",
        dialects: &[ModelDialect::Openai, ModelDialect::Anthropic, ModelDialect::Gemini],
        options: &["system_prompt", "max_turns", "command_timeout_sec"],
    },
];

impl BuiltInAgent {
    /// The agent with a name.
    pub fn find(name: &str) -> Option<&'static Self> {
        BUILT_IN_AGENTS.iter().find(|agent| agent.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_agent_is_found_by_its_name_only() {
        for agent in BUILT_IN_AGENTS {
            assert_eq!(BuiltInAgent::find(agent.name), Some(agent));
        }
        assert_eq!(BuiltInAgent::find("codex"), None);
        assert_eq!(BuiltInAgent::find("shell@1"), None);
    }
}
