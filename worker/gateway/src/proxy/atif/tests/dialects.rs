//! A conversation with a tool in each dialect: the same steps.

use super::*;

/// The trajectory of two calls: a tool call in a stream, and a text after the result.
#[track_caller]
fn assert_steps(records: &Records, tool_call_id: &str) {
    let made = records.trajectory();
    assert_eq!(made.steps.len(), 4, "{made:#?}");
    assert_eq!(
        messages(&made.steps),
        [
            (AtifSource::System, "be brief"),
            (AtifSource::User, "list"),
            (AtifSource::Agent, "I look."),
            (AtifSource::Agent, "done"),
        ]
    );
    let step = serde_json::to_value(&made.steps[2]).expect("JSON");
    assert_eq!(step["reasoning_content"], "hm", "{step:#}");
    assert_eq!(
        step["tool_calls"],
        json!([{"tool_call_id": tool_call_id, "function_name": "sh", "arguments": {"a": 1}}])
    );
    assert_eq!(
        step["observation"],
        json!({"results": [{"source_call_id": tool_call_id, "content": "file"}]})
    );
    assert_eq!(step["model_name"], "m-1");
    let metrics = &step["metrics"];
    assert_eq!(metrics["prompt_tokens"], 12, "{metrics}");
    assert_eq!((&metrics["completion_tokens"], &metrics["cached_tokens"]), (&5.into(), &4.into()));
    let tools = &made.agent.tool_definitions;
    let parameters = json!({"type": "object"});
    let expected = json!({"type": "function",
        "function": {"name": "sh", "description": "runs", "parameters": parameters}});
    assert_eq!(tools, &[expected]);
    assert!(made.subagent_trajectories.is_empty(), "one conversation");
    let sums = made.final_metrics.expect("sums");
    assert_eq!((sums.total_prompt_tokens, sums.total_completion_tokens), (Some(24), Some(10)));
    assert_eq!((sums.total_steps, sums.total_cost_usd), (Some(4), Some(10.0)));
    assert_eq!(sums.extra["calls_without_step"]["calls"], 0);
}

#[test]
fn chat_completions_become_steps() {
    let tools = json!([{"type": "function", "function":
        {"name": "sh", "description": "runs", "parameters": {"type": "object"}}}]);
    let usage = json!({"prompt_tokens": 12, "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4}});
    let mut messages = vec![
        json!({"role": "system", "content": "be brief"}),
        json!({"role": "user", "content": [{"type": "text", "text": "list"}]}),
    ];
    let mut records = Records::default();
    let delta = |delta: Value| json!({"model": "m-1", "choices": [{"index": 0, "delta": delta}]});
    let reply = stream(&[
        delta(json!({"role": "assistant", "reasoning_content": "h"})),
        delta(json!({"reasoning_content": "m", "content": "I "})),
        delta(json!({"content": "look.", "tool_calls": [{"index": 0, "id": "c1",
            "function": {"name": "sh", "arguments": "{\"a\""}}]})),
        delta(json!({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]})),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
        json!({"choices": [], "usage": usage}),
    ]) + "data: [DONE]\n\n";
    let request = |messages: &[Value]| json!({"model": "m", "messages": messages, "tools": tools});
    let endpoint = ModelEndpoint::ChatCompletions;
    records.call(endpoint, &request(&messages), &reply);
    messages.push(json!({"role": "assistant", "content": "I look.", "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "sh", "arguments": "{\"a\": 1}"}}]}));
    messages.push(json!({"role": "tool", "tool_call_id": "c1", "content": "file"}));
    let reply = json!({"model": "m-1", "usage": usage, "choices": [
        {"message": {"role": "assistant", "content": "done"}, "finish_reason": "stop"}]});
    records.call(endpoint, &request(&messages), &reply.to_string());
    assert_steps(&records, "c1");
}

#[test]
fn responses_become_steps() {
    let tools = json!([{"type": "function", "name": "sh", "description": "runs",
        "parameters": {"type": "object"}, "strict": false}]);
    let usage = json!({"input_tokens": 12, "output_tokens": 5,
        "input_tokens_details": {"cached_tokens": 4}});
    let user = json!({"type": "message", "role": "user",
        "content": [{"type": "input_text", "text": "list"}]});
    let output = json!([
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "id": "x", "status": "completed",
            "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "id": "y", "call_id": "c1", "name": "sh", "arguments": "{\"a\":1}"},
    ]);
    let response = |output: &Value| {
        json!({"type": "response.completed",
            "response": {"model": "m-1", "status": "completed", "output": output, "usage": usage}})
    };
    let request = |input: Value| {
        json!({"model": "m", "instructions": "be brief", "input": input, "tools": tools,
            "reasoning": {"effort": "high"}})
    };
    let (mut records, endpoint) = (Records::default(), ModelEndpoint::Responses);
    records.call(endpoint, &request(json!([user])), &stream(&[response(&output)]));
    let history = json!([user, output[0], output[1],
        {"type": "function_call", "call_id": "c1", "name": "sh", "arguments": "{\"a\": 1}"},
        {"type": "function_call_output", "call_id": "c1", "output": "file"}]);
    let done = json!([{"type": "message", "role": "assistant",
        "content": [{"type": "output_text", "text": "done"}]}]);
    records.call(endpoint, &request(history), &stream(&[response(&done)]));
    assert_steps(&records, "c1");
    assert_eq!(records.trajectory().steps[2].reasoning_effort.as_deref(), Some("high"));
}

#[test]
fn anthropic_messages_become_steps() {
    let tools = json!([{"name": "sh", "description": "runs", "input_schema": {"type": "object"}}]);
    let usage = json!({"input_tokens": 8, "cache_read_input_tokens": 4, "output_tokens": 5});
    let begin = json!({"type": "message_start",
        "message": {"model": "m-1", "content": [], "usage": usage}});
    let block = |index: u64, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let delta = |index: u64, delta: Value| json!({"type": "content_block_delta", "index": index, "delta": delta});
    let reply = stream(&[
        begin,
        block(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
        delta(0, json!({"type": "thinking_delta", "thinking": "h"})),
        delta(0, json!({"type": "thinking_delta", "thinking": "m"})),
        block(1, json!({"type": "text", "text": ""})),
        delta(1, json!({"type": "text_delta", "text": "I look."})),
        block(2, json!({"type": "tool_use", "id": "t1", "name": "sh", "input": {}})),
        delta(2, json!({"type": "input_json_delta", "partial_json": "{\"a\":1}"})),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}}),
        json!({"type": "message_stop"}),
    ]);
    let request = |messages: Value| {
        json!({"model": "m", "system": [{"type": "text", "text": "be brief"}], "tools": tools,
            "messages": messages})
    };
    let (mut records, endpoint) = (Records::default(), ModelEndpoint::Messages);
    let user = json!({"role": "user", "content": "list"});
    records.call(endpoint, &request(json!([user])), &reply);
    let history = json!([user,
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "x"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "sh", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1",
            "content": [{"type": "text", "text": "file"}], "cache_control": {}}]}]);
    let reply = json!({"model": "m-1", "usage": usage, "stop_reason": "end_turn",
        "content": [{"type": "text", "text": "done"}]});
    records.call(endpoint, &request(history), &reply.to_string());
    assert_steps(&records, "t1");
}

#[test]
fn contents_of_gemini_become_steps() {
    let tools = json!([{"functionDeclarations": [
        {"name": "sh", "description": "runs", "parametersJsonSchema": {"type": "object"}}]}]);
    let usage = json!({"promptTokenCount": 12, "candidatesTokenCount": 5,
        "cachedContentTokenCount": 4});
    let part = |parts: Value, reason: Option<&str>| {
        json!({"modelVersion": "m-1", "usageMetadata": usage, "candidates": [
            {"content": {"role": "model", "parts": parts}, "finishReason": reason}]})
    };
    let call = json!({"functionCall": {"name": "sh", "args": {"a": 1}}});
    let reply = stream(&[
        part(json!([{"text": "h", "thought": true}]), None),
        part(json!([{"text": "m", "thought": true}, {"text": "I "}]), None),
        part(json!([{"text": "look."}, call]), Some("STOP")),
    ]);
    let request = |contents: Value| {
        json!({"systemInstruction": {"parts": [{"text": "be brief"}]}, "contents": contents,
            "tools": tools})
    };
    let (mut records, endpoint) = (Records::default(), ModelEndpoint::GenerateContent);
    let user = json!({"role": "user", "parts": [{"text": "list"}]});
    records.call(endpoint, &request(json!([user])), &reply);
    let history = json!([user,
        {"role": "model", "parts": [{"text": "I look."}, call]},
        {"role": "user", "parts": [
            {"functionResponse": {"id": "sh-7", "name": "sh", "response": {"output": "file"}}}]}]);
    let reply = part(json!([{"text": "done"}]), Some("STOP"));
    records.call(endpoint, &request(history), &reply.to_string());
    // Neither the call nor its result has the id of the other.
    assert_steps(&records, "call_1_1");
}

#[test]
fn completions_continue_the_text_of_earlier_ones() {
    let (mut records, endpoint) = (Records::default(), ModelEndpoint::Completions);
    let reply = |text: &str| {
        json!({"model": "m-1", "choices": [{"text": text, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
    };
    for (prompt, text) in [("U: hi\nA:", " yes"), ("U: hi\nA: yes\nU: more\nA:", " no")] {
        let request = json!({"model": "m", "prompt": prompt});
        records.call(endpoint, &request, &reply(text).to_string());
    }
    let made = records.trajectory();
    let expected = [
        (AtifSource::User, "U: hi\nA:"),
        (AtifSource::Agent, " yes"),
        (AtifSource::User, "\nU: more\nA:"),
        (AtifSource::Agent, " no"),
    ];
    assert_eq!(messages(&made.steps), expected);
}

#[test]
fn document_has_the_form_of_the_format() {
    let mut records = Records::default();
    let call = json!([{"id": "c", "function": {"name": "sh", "arguments": "not JSON"}}]);
    let user = json!({"role": "user", "content": "hi"});
    let reply = json!({"role": "assistant", "content": null, "tool_calls": call});
    records.chat(&json!([user]), &reply);
    records.chat(
        &json!([user, reply, {"role": "tool", "tool_call_id": "c", "content": "no"}]),
        &json!({"role": "assistant", "content": "end"}),
    );
    let step = |call: u64, more: Value| {
        let mut step = json!({"source": "agent", "model_name": "m-1", "llm_call_count": 1,
            "timestamp": format!("1970-01-01T00:00:{}5.000000Z", call),
            "metrics": {"prompt_tokens": 10, "completion_tokens": 2, "cached_tokens": 0,
                "cost_usd": 2.0},
            "extra": {"call": call, "latency_sec": 5.0, "finish_reasons": ["stop"]}});
        step.as_object_mut().expect("an object").extend(more.as_object().expect("one").clone());
        step
    };
    let counts = |calls: u64| {
        json!({"calls": calls, "prompt_tokens": 10 * calls, "completion_tokens": 2 * calls,
            "cached_tokens": 0, "reasoning_tokens": 0})
    };
    let expected = json!({
        "schema_version": "ATIF-v1.8",
        "session_id": "exec",
        "trajectory_id": "exec",
        "agent": {"name": "a", "version": "1", "model_name": "m-1"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "hi",
                "timestamp": "1970-01-01T00:00:10.000000Z"},
            step(1, json!({"step_id": 2, "message": "",
                "tool_calls": [{"tool_call_id": "c", "function_name": "sh",
                    "arguments": {"input": "not JSON"}}],
                "observation": {"results": [{"source_call_id": "c", "content": "no"}]}})),
            step(2, json!({"step_id": 3, "message": "end"})),
        ],
        "notes": "Made from the records of the model gateway.",
        "final_metrics": {"total_prompt_tokens": 20, "total_completion_tokens": 4,
            "total_cached_tokens": 0, "total_cost_usd": 4.0, "total_steps": 3,
            "extra": {"all_calls": counts(2), "calls_without_step": counts(0)}},
    });
    let made = serde_json::to_value(records.trajectory()).expect("JSON");
    assert_eq!(made, expected, "{made:#}");
}
