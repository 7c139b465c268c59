//! Limits, damaged records, and files.

use rollout_protocol::record::{CallTokens, ChoiceTokens};

use super::*;
use crate::proxy::token_file::TokenFile;

fn message(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

#[test]
fn calls_beyond_the_bytes_are_left_out_and_named() {
    let mut records = Records::default();
    let reply = json!({"role": "assistant", "content": "y".repeat(100)});
    records.chat(&json!([message(&"x".repeat(100))]), &reply);
    records.chat(&json!([message(&"z".repeat(100))]), &reply);
    let calls = records.read_within(250);
    assert_eq!((calls.nodes.len(), calls.left_out, calls.other_calls), (1, 1, 1));
    assert_eq!((calls.all.input, calls.others.input), (20, 10));
    let made = trajectory(&agent(), &calls).expect("a trajectory");
    assert!(made.notes.expect("notes").contains("1 calls are left out"));
    let none = records.read_within(50);
    assert_eq!((none.nodes.len(), none.left_out), (0, 2));
    assert!(trajectory(&agent(), &none).is_none());
}

#[test]
fn bytes_of_calls_that_fail_are_given_back() {
    let mut records = Records::default();
    let endpoint = ModelEndpoint::ChatCompletions;
    let request = json!({"messages": [message(&"x".repeat(100))]});
    for _ in 0..5 {
        let call = records.begin(endpoint, "/", &request);
        let failed = CallEnded { end: CallEnd::Unanswered, status: Some(502), ..ended(call) };
        records.line(&ModelCallLine::Ended(Box::new(failed)));
    }
    records.chat(&request["messages"], &json!({"role": "assistant", "content": "y"}));
    assert_eq!(records.read_within(150).nodes.len(), 1);
}

#[test]
fn damaged_lines_and_bodies_are_no_error() {
    let mut records = Records::default();
    records.lines.extend(b"{\"type\":\"other\"}\nnot JSON\n\n");
    let endpoint = ModelEndpoint::ChatCompletions;
    for (request, reply) in [
        (json!({"messages": 7}), "{}"),
        (json!({"messages": [7, null, {"role": 1, "content": {"a": 1}}]}), "{\"choices\":7}"),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [7, {"id": 1}]}], "tools": 7}),
            "data: x\n\n",
        ),
        (json!([]), "{}"),
    ] {
        records.call(endpoint, &request, reply);
    }
    records.lines.extend(b"{\"type\":\"begun\"");
    let calls = records.read();
    assert_eq!(calls.all_calls, 4);
    assert!(trajectory(&agent(), &calls).is_none_or(|made| made.steps.len() > 1));
}

#[tokio::test]
async fn file_has_token_ids_from_the_binary_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let choice = ChoiceTokens {
        ids: Some(vec![7, 8]),
        logprobs: Some(vec![Some(-0.5), Some(-0.25)]),
        ..ChoiceTokens::default()
    };
    let mut tokens = CallTokens {
        prompt_ids: Some((0..5000).collect()),
        choices: vec![choice],
        ..CallTokens::default()
    };
    TokenFile::new(directory.path()).pack_call(&mut tokens).expect("packed");
    let mut records = Records::default();
    let call = records.begin(
        ModelEndpoint::ChatCompletions,
        "/",
        &json!({"messages": [
        message("u")]}),
    );
    let reply = json!({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]});
    records.line(&ModelCallLine::Ended(Box::new(CallEnded {
        tokens: Some(tokens),
        reply: body(&reply.to_string()),
        ..ended(call)
    })));
    fs::write(directory.path().join(CALLS_FILE), &records.lines).expect("records");
    let path = write(directory.path().to_owned(), agent(), None).await.expect("written");
    let text = fs::read_to_string(path.expect("a file")).expect("text");
    let made: AtifTrajectory = serde_json::from_str(&text).expect("the form");
    let metrics = made.steps[1].metrics.as_ref().expect("metrics");
    assert_eq!(metrics.prompt_token_ids.as_ref().map(Vec::len), Some(5000));
    assert_eq!(metrics.completion_token_ids, Some(vec![7, 8]));
    assert_eq!(metrics.logprobs, Some(vec![-0.5, -0.25]));
    assert_eq!(metrics.cost_usd, None);
    let missing = write(directory.path().join("none"), agent(), None).await;
    assert!(missing.is_err());
}
