use super::*;

#[test]
fn message_digest_ignores_what_clients_change() {
    let reply = json!({"role": "assistant", "content": "", "tool_calls": [
        {"id": "c", "type": "function",
            "function": {"name": "sh", "arguments": "{\"a\":1,\"b\":2}"}}]});
    let sent_back = json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": [
        {"id": "c", "index": 0, "type": "function",
            "function": {"name": "sh", "arguments": "{\"b\": 2, \"a\": 1}"}}]});
    assert_eq!(digest(&reply), digest(&sent_back));
    let reply = json!({"role": "assistant", "content": [
        {"type": "thinking", "thinking": "…"}, {"type": "text", "text": "hey"},
        {"type": "tool_use", "id": "t", "name": "sh", "input": {"a": 1}}]});
    let sent_back = json!({"role": "assistant", "content": [
        {"type": "text", "text": "hey", "cache_control": {"type": "ephemeral"}},
        {"type": "tool_use", "id": "t", "name": "sh", "input": {"a": 1},
            "cache_control": {"type": "ephemeral"}}]});
    assert_eq!(digest(&reply), digest(&sent_back));
    let other = json!({"role": "assistant", "content": "hey"});
    assert_ne!(digest(&reply), digest(&other));
    assert_eq!(
        digest(&other),
        digest(&json!({"role": "assistant",
        "content": [{"type": "text", "text": "he"}, {"type": "text", "text": "y"}]}))
    );
}

#[test]
fn request_messages_begin_with_system_text() {
    let body = br#"{"system":"s","messages":[{"role":"user","content":"u"}]}"#;
    let found = of_request(ModelEndpoint::Messages, body).expect("messages");
    assert_eq!(found.len(), 2);
    assert_eq!(found[1], digest(&json!({"role": "user", "content": "u"})));
    assert_eq!(of_request(ModelEndpoint::Completions, body), None);
    assert_eq!(of_request(ModelEndpoint::Messages, b"{}"), None);
}

#[test]
fn request_with_too_many_values_has_no_messages() {
    let body = |count: usize| format!(r#"{{"messages":[{}1]}}"#, "1,".repeat(count - 1));
    let of = |body: String| of_request(ModelEndpoint::ChatCompletions, body.as_bytes());
    assert_eq!(of(body(2)).map(|found| found.len()), Some(2));
    assert_eq!(of(body(REQUEST_VALUES + 1)), None);
    let nested =
        format!(r#"{{"messages":[{{"role":"user","content":{}}}]}}"#, body(REQUEST_VALUES));
    assert_eq!(of(nested), None);
}

#[test]
fn arguments_with_too_many_values_are_compared_as_text() {
    let call = |space: &str, count: usize| {
        let arguments = format!("[{space}{}1]", "1,".repeat(count));
        digest(&json!({"role": "assistant", "tool_calls": [
            {"function": {"name": "sh", "arguments": arguments}}]}))
    };
    assert_eq!(call(" ", 3), call("", 3));
    assert_ne!(call(" ", ARGUMENT_VALUES), call("", ARGUMENT_VALUES));
    assert_eq!(call("", ARGUMENT_VALUES), call("", ARGUMENT_VALUES));
}

#[test]
fn output_of_response_is_what_client_sends_back() {
    let output = [
        json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}),
        json!({"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
            "content": [{"type": "output_text", "text": "hey", "annotations": [], "logprobs": []}]}),
        json!({"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "c",
            "name": "sh", "arguments": "{\"a\":1,\"b\":2}"}),
        json!({"type": "custom_tool_call", "id": "ctc_1", "call_id": "d", "name": "patch",
            "input": "*** Begin"}),
    ];
    let request = json!({"model": "m", "instructions": "s", "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": "he"}, {"type": "output_text", "text": "y"}]},
        {"type": "function_call", "call_id": "c", "name": "sh", "arguments": "{\"b\": 2, \"a\": 1}"},
        {"type": "custom_tool_call", "call_id": "d", "name": "patch", "input": "*** Begin"},
        {"type": "function_call_output", "id": "fco_1", "call_id": "c", "output": "done"},
    ]});
    let reply = of_reply(ModelEndpoint::Responses, &output);
    assert_eq!(reply.len(), 3, "reasoning is left out");
    let of = |request: &Value| {
        of_request(ModelEndpoint::Responses, request.to_string().as_bytes()).expect("messages")
    };
    let found = of(&request);
    assert_eq!(found.len(), 6);
    assert_eq!(found[2..5], reply);
    let first = of(&json!({"instructions": "s", "input": "u"}));
    assert_eq!(found[..2], first, "a text is a message of the user");
    let stored = of(&json!({"input": "u", "previous_response_id": "resp_1"}));
    assert_ne!(stored[0], first[0]);
    assert_eq!(stored.len(), 2);
}

#[test]
fn items_of_responses_differ_by_content_and_call() {
    let of = |item: Value| of_reply(ModelEndpoint::Responses, &[item]);
    let call = |name: &str, space: Option<&str>| {
        of(json!({"type": "function_call", "name": name, "namespace": space, "arguments": "{}"}))
    };
    assert_ne!(call("a", None), call("b", None));
    assert_ne!(call("a", None), call("a", Some("n")));
    let output = |call: &str, output: Value| {
        of(json!({"type": "function_call_output", "call_id": call, "output": output}))
    };
    assert_ne!(output("a", json!("x")), output("b", json!("x")));
    assert_eq!(output("a", json!("x")), output("a", json!([{"type": "input_text", "text": "x"}])));
    let search = |id: &str, query: &str| {
        of(json!({"type": "web_search_call", "id": id, "status": "completed",
            "action": {"query": query}}))
    };
    assert_eq!(search("a", "q"), search("b", "q"));
    assert_ne!(search("a", "q"), search("a", "r"));
}

#[test]
fn content_of_gemini_is_what_client_sends_back() {
    let reply = json!({"role": "model", "parts": [
        {"text": "hm", "thought": true},
        {"text": "he"}, {"text": "y", "thoughtSignature": "x"},
        {"functionCall": {"id": "c", "name": "sh", "args": {"a": 1}}, "thoughtSignature": "y"},
    ]});
    let request = json!({
        "systemInstruction": {"parts": [{"text": "s"}]},
        "contents": [
            {"role": "user", "parts": [{"text": "u"}]},
            {"role": "model", "parts": [{"text": "hey"},
                {"functionCall": {"name": "sh", "args": {"a": 1}}, "thoughtSignature": "z"}]},
            {"role": "user", "parts": [
                {"functionResponse": {"id": "c", "name": "sh", "response": {"output": "1"}}}]},
        ],
    });
    let of = |request: &Value| {
        of_request(ModelEndpoint::GenerateContent, request.to_string().as_bytes())
            .expect("contents")
    };
    let found = of(&request);
    assert_eq!(found.len(), 4);
    assert_eq!(found[2..3], of_reply(ModelEndpoint::GenerateContent, &[reply]));
    let other = json!({
        "system_instruction": {"parts": [{"text": "s"}]},
        "contents": [{"parts": [{"text": "u"}]}, {"role": "model", "parts": [{"text": "hey"}]}],
    });
    assert_eq!(found[..2], of(&other)[..2], "the role of the user may be absent");
    assert_ne!(found[2], of(&other)[2]);
    assert_eq!(of_request(ModelEndpoint::GenerateContent, b"{}"), None);
}
