//! Sessions that agents write themselves, in formats of their own.

use std::collections::BTreeMap;

use rollout_tests::model_calls::files;
use rollout_tests::results::TrialDirectory;
use serde_json::Value;

use crate::trajectories::Counts;

/// Where the session of an agent has the tokens of its model calls.
struct NativeSession {
    agent: &'static str,
    /// Directory of the files, below the trial's.
    directory: &'static str,
    /// End of their names.
    suffix: &'static str,
    /// Path of the list of records in a file; each line is a record without it.
    list: Option<&'static str>,
    /// Path of the id of a call: of records with the same one, the last one counts.
    id: Option<&'static str>,
    /// Paths of numbers in a record; one without output is of no call.
    input: &'static str,
    output: &'static str,
}

const SESSIONS: [NativeSession; 4] = [
    NativeSession {
        agent: "claude-code",
        directory: "logs/agent/claude/projects",
        suffix: ".jsonl",
        list: None,
        id: Some("/uuid"),
        input: "/message/usage/input_tokens",
        output: "/message/usage/output_tokens",
    },
    NativeSession {
        agent: "codex",
        directory: "logs/agent/codex/sessions",
        suffix: ".jsonl",
        list: None,
        id: None,
        input: "/payload/usage/input_tokens",
        output: "/payload/usage/output_tokens",
    },
    NativeSession {
        agent: "gemini-cli",
        directory: "logs/agent/gemini/.gemini/tmp",
        suffix: ".jsonl",
        list: None,
        id: Some("/id"),
        input: "/tokens/input",
        output: "/tokens/output",
    },
    NativeSession {
        agent: "mini-swe-agent",
        directory: "logs/agent",
        suffix: "mini-swe-agent.json",
        list: Some("/messages"),
        id: None,
        input: "/extra/response/usage/prompt_tokens",
        output: "/extra/response/usage/completion_tokens",
    },
];

/// Fails unless an agent's own session, if its format is known, has these counts.
#[track_caller]
pub(crate) fn assert_equal(agent: &str, trial: &TrialDirectory, counts: &Counts) {
    let Some(session) = SESSIONS.iter().find(|session| session.agent == agent) else { return };
    let found = session.read(trial);
    assert_eq!(found, *counts, "the session of {agent}");
}

impl NativeSession {
    fn read(&self, trial: &TrialDirectory) -> Counts {
        let mut calls: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for file in files(&trial.directory.join(self.directory)) {
            if !file.to_string_lossy().ends_with(self.suffix) {
                continue;
            }
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            for (number, record) in self.records(&text).iter().enumerate() {
                let count = |path: &str| record.pointer(path).and_then(Value::as_u64);
                let Some(output) = count(self.output) else { continue };
                let id = self.id.and_then(|path| record.pointer(path)).map(Value::to_string);
                let id = id.unwrap_or_else(|| format!("{}:{number}", file.display()));
                calls.insert(id, (count(self.input).unwrap_or_default(), output));
            }
        }
        Counts {
            replies: calls.len() as u64,
            input: calls.values().map(|call| call.0).sum(),
            output: calls.values().map(|call| call.1).sum(),
        }
    }

    fn records(&self, text: &str) -> Vec<Value> {
        match self.list {
            None => text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect(),
            Some(list) => {
                let document: Value = serde_json::from_str(text).unwrap_or_default();
                document.pointer(list).and_then(Value::as_array).cloned().unwrap_or_default()
            }
        }
    }
}
