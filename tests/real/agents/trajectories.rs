//! Trajectories of agents, compared with the log of the model server and with what the agents record
//! themselves.

use rollout_tests::model_calls::{lines, of_type};
use rollout_tests::model_server::LoggedCall;
use rollout_tests::results::TrialDirectory;
use serde_json::Value;

/// Token counts of a reply in the log of the server, of which a stream has the last ones.
const USAGE: [(&str, &str); 4] = [
    ("/prompt_tokens", "/completion_tokens"),
    ("/input_tokens", "/output_tokens"),
    ("/promptTokenCount", "/candidatesTokenCount"),
    ("/response/usage/input_tokens", "/response/usage/output_tokens"),
];

/// Input and output tokens, and replies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) replies: u64,
    pub(crate) input: u64,
    pub(crate) output: u64,
}

/// Fails unless the steps of a trial's trajectory and their tokens equal the log of its server, and
/// each call of a tool that the agent answered has its result. Returns the counts.
#[track_caller]
pub(crate) fn assert_equal_log(trial: &TrialDirectory, calls: &[LoggedCall]) -> Counts {
    let text = trial.text("gateway/trajectory.json").expect("a trajectory");
    let made: Value = serde_json::from_str(&text).expect("JSON");
    let mut counts = counts(&made);
    for other in made["subagent_trajectories"].as_array().into_iter().flatten() {
        counts.add(self::counts(other));
    }
    let mut logged = Counts::default();
    for call in calls {
        logged.add(of_reply(&String::from_utf8_lossy(&call.reply)));
    }
    assert_eq!(counts, logged, "{made:#}");
    let records = lines(trial);
    let replies = of_type(&records, "ended").len() as u64;
    assert_eq!(counts.replies, replies, "a step for each call");
    assert_tool_results(&made);
    counts
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.replies += other.replies;
        self.input += other.input;
        self.output += other.output;
    }
}

/// The counts of a trajectory, which its sums equal.
#[track_caller]
fn counts(made: &Value) -> Counts {
    let steps = made["steps"].as_array().expect("steps");
    let own = steps.iter().filter(|step| step["llm_call_count"] == 1);
    let sum = |name: &str| -> u64 {
        steps.iter().filter_map(|step| step["metrics"][name].as_u64()).sum()
    };
    let counts = Counts {
        replies: own.count() as u64,
        input: sum("prompt_tokens"),
        output: sum("completion_tokens"),
    };
    let sums = &made["final_metrics"];
    assert_eq!(sums["total_prompt_tokens"].as_u64(), Some(counts.input), "{sums:#}");
    assert_eq!(sums["total_completion_tokens"].as_u64(), Some(counts.output), "{sums:#}");
    counts
}

/// The main conversation calls a tool, and each call but those of its last step has a result.
#[track_caller]
fn assert_tool_results(made: &Value) {
    let steps = made["steps"].as_array().expect("steps");
    let calls = |step: &Value| step["tool_calls"].as_array().map_or(0, Vec::len);
    let results = |step: &Value| step["observation"]["results"].as_array().map_or(0, Vec::len);
    for step in steps.iter().rev().skip(1).filter(|step| calls(step) > 0) {
        assert_eq!(results(step), calls(step), "{made:#}");
    }
}

/// The counts of a reply of the server.
fn of_reply(reply: &str) -> Counts {
    let events = reply.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = if reply.starts_with('{') {
        serde_json::from_str(reply).into_iter().collect()
    } else {
        events.filter_map(|data| serde_json::from_str(data).ok()).collect()
    };
    let mut counts = Counts { replies: 1, ..Counts::default() };
    for event in &events {
        let nested = [&event["usage"], &event["message"]["usage"], &event["usageMetadata"], event];
        for (usage, (input, output)) in
            nested.into_iter().flat_map(|usage| USAGE.map(|paths| (usage, paths)))
        {
            let count = |path: &str| usage.pointer(path).and_then(Value::as_u64);
            counts.input = count(input).unwrap_or(counts.input);
            counts.output = count(output).unwrap_or(counts.output);
        }
    }
    counts
}
