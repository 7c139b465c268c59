//! Trajectories of agents, compared with the log of the model server and with what the agents record
//! themselves.

use rollout_tests::model_calls::{lines, of_type, tokens};
use rollout_tests::model_server::LoggedCall;
use rollout_tests::results::TrialDirectory;
use serde_json::Value;

/// Input and output tokens, and replies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) replies: u64,
    pub(crate) input: u64,
    pub(crate) output: u64,
}

/// Fails unless the steps of a trial's trajectory and their tokens equal the log of its server, and
/// each call of a tool that the agent answered has its result. Returns the counts of the main
/// conversation, and of all.
#[track_caller]
pub(crate) fn assert_equal_log(trial: &TrialDirectory, calls: &[LoggedCall]) -> (Counts, Counts) {
    let text = trial.text("gateway/trajectory.json").expect("a trajectory");
    let made: Value = serde_json::from_str(&text).expect("JSON");
    let main = counts(&made);
    let mut counts = main;
    for other in made["subagent_trajectories"].as_array().into_iter().flatten() {
        counts.add(self::counts(other));
    }
    let mut logged = Counts::default();
    for call in calls {
        let (input, output) = tokens(&call.reply);
        logged.add(Counts { replies: 1, input, output });
    }
    assert_eq!(counts, logged, "{made:#}");
    let records = lines(trial);
    let replies = of_type(&records, "ended").len() as u64;
    assert_eq!(counts.replies, replies, "a step for each call");
    assert_tool_results(&made);
    (main, counts)
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
