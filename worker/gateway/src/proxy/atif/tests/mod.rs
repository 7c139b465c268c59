mod bounds;
mod conversations;
mod dialects;

use rollout_protocol::record::{
    AtifSource, AtifStep, AtifTrajectory, CallAttempt, CallBegun, CallBody, CallEnd, CallEnded,
    CallLatency, ModelCallLine, ModelEndpoint, TokenUsage,
};
use rollout_protocol::{Timestamp, limits};
use serde_json::{Value, json};

use super::calls::{CallReader, ReadCalls};
use super::*;
use crate::proxy::reply::ReplyParser;

/// Records of calls, in the order in which a gateway writes them.
#[derive(Default)]
struct Records {
    lines: Vec<u8>,
    calls: u64,
}

/// The end of a call without a reply.
fn ended(call: u64) -> CallEnded {
    CallEnded {
        call,
        ended_at: Timestamp::from_second(i64::try_from(call).expect("small") * 10 + 5)
            .expect("a time"),
        end: CallEnd::Complete,
        upstream: None,
        status: Some(200),
        error: None,
        attempts: vec![CallAttempt::default()],
        latency: CallLatency { total_sec: 5.0, ..CallLatency::default() },
        policy: None,
        model: None,
        finish_reasons: Vec::new(),
        usage: None,
        cost: None,
        tokens: None,
        reply: CallBody::default(),
    }
}

fn body(text: &str) -> CallBody {
    CallBody { bytes: text.len() as u64, text: Some(text.to_owned()), ..CallBody::default() }
}

impl Records {
    fn line(&mut self, line: &ModelCallLine) {
        self.lines.extend(serde_json::to_vec(line).expect("JSON"));
        self.lines.push(b'\n');
    }

    /// Begins a call; returns its number.
    fn begin(&mut self, endpoint: ModelEndpoint, path: &str, request: &Value) -> u64 {
        self.calls += 1;
        let call = self.calls;
        let second = i64::try_from(call).expect("small") * 10;
        self.line(&ModelCallLine::Begun(Box::new(CallBegun {
            call,
            began_at: Timestamp::from_second(second).expect("a time"),
            upstream: "main".to_owned(),
            endpoint,
            path: path.to_owned(),
            headers: std::collections::BTreeMap::new(),
            request: body(&request.to_string()),
            added: Vec::new(),
            repeats: None,
        })));
        call
    }

    /// Ends a call with a reply, whose figures are read as the gateway reads them.
    fn end(&mut self, call: u64, endpoint: ModelEndpoint, reply: &str) {
        let mut parser = ReplyParser::new(endpoint);
        if reply.starts_with('{') {
            parser.whole(reply.as_bytes());
        } else {
            for data in reply.lines().filter_map(|line| line.strip_prefix("data: ")) {
                parser.event(data);
            }
        }
        let parsed = parser.finish();
        self.line(&ModelCallLine::Ended(Box::new(CallEnded {
            model: parsed.model,
            finish_reasons: parsed.finish_reasons,
            usage: parsed.usage,
            cost: parsed.usage.map(|usage| usage.output as f64),
            tokens: parsed.tokens,
            reply: body(reply),
            ..ended(call)
        })));
    }

    fn call(&mut self, endpoint: ModelEndpoint, request: &Value, reply: &str) -> u64 {
        let call = self.begin(endpoint, "/models/gem-1:generateContent", request);
        self.end(call, endpoint, reply);
        call
    }

    fn chat(&mut self, messages: &Value, reply: &Value) -> u64 {
        let request = json!({"model": "m", "messages": messages});
        let usage = json!({"prompt_tokens": 10, "completion_tokens": 2});
        let reply = json!({"model": "m-1", "usage": usage,
            "choices": [{"index": 0, "finish_reason": "stop", "message": reply}]});
        self.call(ModelEndpoint::ChatCompletions, &request, &reply.to_string())
    }

    fn read(&self) -> ReadCalls {
        self.read_within(limits::TRAJECTORY_TEXT_BYTES)
    }

    fn read_within(&self, bytes: usize) -> ReadCalls {
        let directory = Path::new("/nonexistent");
        CallReader::new(directory, bytes).read(&self.lines[..]).expect("read")
    }

    #[track_caller]
    fn trajectory(&self) -> AtifTrajectory {
        let made = trajectory(&agent(), &self.read()).expect("a trajectory");
        for one in std::iter::once(&made).chain(&made.subagent_trajectories) {
            assert_valid(one);
        }
        made
    }
}

fn agent() -> TrajectoryAgent {
    TrajectoryAgent {
        name: "a".to_owned(),
        version: "1".to_owned(),
        model: None,
        session: "exec".to_owned(),
    }
}

/// The rules of the format that types do not express.
#[track_caller]
fn assert_valid(trajectory: &AtifTrajectory) {
    assert!(!trajectory.steps.is_empty());
    for (number, step) in (1..).zip(&trajectory.steps) {
        assert_eq!(step.step_id, number);
        if step.source != AtifSource::Agent {
            assert!(step.tool_calls.is_empty() && step.metrics.is_none(), "{step:?}");
            assert!(step.model_name.is_none() && step.reasoning_content.is_none(), "{step:?}");
        }
        let ids: Vec<_> = step.tool_calls.iter().map(|call| &call.tool_call_id).collect();
        for result in step.observation.iter().flat_map(|observation| &observation.results) {
            assert!(result.source_call_id.as_ref().is_none_or(|id| ids.contains(&id)), "{step:?}");
        }
    }
}

/// Events without names as a stream.
fn stream(events: &[Value]) -> String {
    events.iter().map(|event| format!("data: {event}\n\n")).collect()
}

/// Sources and messages of steps.
fn messages(steps: &[AtifStep]) -> Vec<(AtifSource, &str)> {
    steps.iter().map(|step| (step.source, step.message.as_str())).collect()
}
