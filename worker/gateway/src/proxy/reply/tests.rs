use rollout_protocol::record::ChoiceTokens;
use serde_json::json;

use super::*;

fn streamed(endpoint: ModelEndpoint, events: &[Value]) -> ParsedReply {
    let mut parser = ReplyParser::new(endpoint);
    for event in events {
        parser.event(&event.to_string());
    }
    parser.finish()
}

fn whole(endpoint: ModelEndpoint, body: &Value) -> ParsedReply {
    let mut parser = ReplyParser::new(endpoint);
    parser.whole(body.to_string().as_bytes());
    parser.finish()
}

#[test]
fn chat_stream_equals_whole_reply() {
    let usage = json!({"prompt_tokens": 2, "completion_tokens": 3});
    let call = |arguments: &str| {
        json!([{"index": 0, "id": "c1", "type": "function",
            "function": {"name": "sh", "arguments": arguments}}])
    };
    let logprob = |value: f64| json!({"content": [{"token": "x", "logprob": value}]});
    let mut stream = streamed(
        ModelEndpoint::ChatCompletions,
        &[
            json!({"model": "m", "prompt_token_ids": [1, 2],
                "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}),
            json!({"model": "m", "choices": [{"index": 0, "delta": {"content": "he"},
                "token_ids": [3], "logprobs": logprob(-0.5)}]}),
            json!({"choices": [{"index": 0, "delta": {"content": "y", "tool_calls": call("{\"a\"")},
                "token_ids": [4, 5], "logprobs": logprob(-0.25)}]}),
            json!({"choices": [{"index": 0, "delta": {"tool_calls": [
                {"index": 0, "function": {"arguments": ":1}"}}]}, "finish_reason": null}]}),
            json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
            json!({"choices": [], "usage": usage}),
        ],
    );
    let body = json!({
        "model": "m", "prompt_token_ids": [1, 2], "usage": usage,
        "choices": [{"index": 0, "finish_reason": "tool_calls", "token_ids": [3, 4, 5],
            "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -0.25}]},
            "message": {"role": "assistant", "content": "hey", "tool_calls": call("{\"a\":1}")}}],
    });
    assert!(stream.finished);
    stream.finished = true;
    assert_eq!(stream, whole(ModelEndpoint::ChatCompletions, &body));
    assert_eq!(stream.finish_reasons, ["tool_calls"]);
}

#[test]
fn completions_stream_keeps_ids_of_prompt_from_first_part() {
    let reply = streamed(
        ModelEndpoint::Completions,
        &[
            json!({"choices": [{"index": 0, "text": "a", "prompt_token_ids": [9], "token_ids": [1],
                "logprobs": {"token_logprobs": [-1.0]}}]}),
            json!({"choices": [{"index": 0, "text": "b", "token_ids": [2],
                "logprobs": {"token_logprobs": [null]}, "finish_reason": "stop"}]}),
        ],
    );
    let choice = ChoiceTokens {
        index: 0,
        ids: Some(vec![1, 2]),
        logprobs: Some(vec![Some(-1.0), None]),
        ..ChoiceTokens::default()
    };
    let tokens =
        CallTokens { prompt_ids: Some(vec![9]), choices: vec![choice], ..CallTokens::default() };
    assert_eq!(reply.tokens, Some(tokens));
    assert_eq!(reply.messages, [json!({"role": "assistant", "content": "ab"})]);
}

#[test]
fn anthropic_stream_equals_whole_reply() {
    let usage = json!({"input_tokens": 5, "output_tokens": 9});
    let stream = streamed(
        ModelEndpoint::Messages,
        &[
            json!({"type": "message_start", "message": {"model": "m", "content": [],
                "usage": {"input_tokens": 5, "output_tokens": 1}}}),
            json!({"type": "content_block_start", "index": 0,
                "content_block": {"type": "text", "text": ""}}),
            json!({"type": "ping"}),
            json!({"type": "content_block_delta", "index": 0,
                "delta": {"type": "text_delta", "text": "hey"}}),
            json!({"type": "content_block_start", "index": 1,
                "content_block": {"type": "tool_use", "id": "t", "name": "sh", "input": {}}}),
            json!({"type": "content_block_delta", "index": 1,
                "delta": {"type": "input_json_delta", "partial_json": "{\"a\""}}),
            json!({"type": "content_block_delta", "index": 1,
                "delta": {"type": "input_json_delta", "partial_json": ":1}"}}),
            json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"},
                "usage": {"output_tokens": 9}}),
            json!({"type": "message_stop"}),
        ],
    );
    let body = json!({"model": "m", "usage": usage, "stop_reason": "tool_use", "content": [
        {"type": "text", "text": "hey"},
        {"type": "tool_use", "id": "t", "name": "sh", "input": {"a": 1}},
    ]});
    assert_eq!(stream, whole(ModelEndpoint::Messages, &body));
    assert!(stream.finished && stream.usage.is_some());
}

#[test]
fn reply_of_garbage_has_no_content() {
    for body in ["", "[]", "\"x\"", "{\"choices\":5}", "{\"choices\":[7,null]}"] {
        for endpoint in [
            ModelEndpoint::ChatCompletions,
            ModelEndpoint::Responses,
            ModelEndpoint::Messages,
            ModelEndpoint::GenerateContent,
        ] {
            let mut parser = ReplyParser::new(endpoint);
            parser.whole(body.as_bytes());
            parser.event(body);
            let reply = parser.finish();
            assert_eq!((reply.usage, reply.tokens), (None, None), "{body}");
        }
    }
}

#[test]
fn responses_stream_equals_whole_reply() {
    let usage = json!({"input_tokens": 5, "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 2}});
    let items = [
        json!({"type": "message", "role": "assistant",
            "content": [{"type": "output_text", "text": "hey"}]}),
        json!({"type": "function_call", "call_id": "c", "name": "sh", "arguments": "{}"}),
    ];
    let response = |status: &str, output: &[Value]| {
        json!({"model": "m", "status": status, "output": output, "usage": usage,
            "incomplete_details": {"reason": "max_output_tokens"}})
    };
    let stream = |last: &str, output: &[Value]| {
        streamed(
            ModelEndpoint::Responses,
            &[
                json!({"type": "response.created", "response": {"model": "m", "output": []}}),
                json!({"type": "response.output_text.delta", "delta": "hey"}),
                json!({"type": "response.output_item.done", "output_index": 1, "item": items[1]}),
                json!({"type": "response.output_item.done", "output_index": 0, "item": items[0]}),
                json!({"type": format!("response.{last}"), "response": response(last, output)}),
            ],
        )
    };
    let expected = whole(ModelEndpoint::Responses, &response("completed", &items));
    assert_eq!(expected.messages, items);
    assert_eq!(stream("completed", &items), expected);
    assert_eq!(stream("completed", &[]), expected, "the items came before");
    assert_eq!(expected.finish_reasons, ["completed"]);
    let expected =
        TokenUsage { input: 5, cached_input: 0, written_input: 0, output: 9, reasoning: 2 };
    let incomplete = stream("incomplete", &items);
    assert_eq!((incomplete.usage, incomplete.finished), (Some(expected), true));
    assert_eq!(incomplete.finish_reasons, ["max_output_tokens"]);
    let failed = stream("failed", &items[..1]);
    assert_eq!((failed.finished, failed.messages.len()), (true, 0));
    assert_eq!(failed.finish_reasons, ["failed"]);
}

#[test]
fn gemini_stream_equals_whole_reply_and_list() {
    let usage = |output: u64| json!({"promptTokenCount": 5, "candidatesTokenCount": output});
    let part = |parts: Value, reason: Option<&str>, output: u64| {
        json!({"modelVersion": "m", "usageMetadata": usage(output), "candidates": [
            {"index": 0, "content": {"role": "model", "parts": parts}, "finishReason": reason}]})
    };
    let call = json!({"functionCall": {"name": "sh", "args": {"a": 1}}});
    let parts = [
        part(json!([{"text": "hm", "thought": true}]), None, 1),
        part(json!([{"text": "hey"}]), Some("FINISH_REASON_UNSPECIFIED"), 2),
        part(json!([call]), Some("STOP"), 3),
    ];
    let stream = streamed(ModelEndpoint::GenerateContent, &parts);
    let all = json!([{"text": "hm", "thought": true}, {"text": "hey"}, call]);
    assert_eq!(stream, whole(ModelEndpoint::GenerateContent, &part(all, Some("STOP"), 3)));
    assert_eq!(stream, whole(ModelEndpoint::GenerateContent, &json!(parts)));
    assert!(stream.finished && stream.messages.len() == 1);
    assert_eq!(stream.finish_reasons, ["STOP"]);
    assert_eq!(stream.usage.map(|usage| usage.output), Some(3));
    assert!(!streamed(ModelEndpoint::GenerateContent, &parts[..2]).finished);
}

#[test]
fn gemini_stream_ends_when_all_candidates_or_the_prompt_ended() {
    let mut parser = ReplyParser::new(ModelEndpoint::GenerateContent);
    let candidate = |index: u64, reason: Option<&str>| {
        json!({"candidates": [{"index": index, "finishReason": reason}]}).to_string()
    };
    assert!(!parser.event(&candidate(0, None)));
    assert!(!parser.event(&candidate(1, None)));
    assert!(!parser.event(&candidate(1, Some("STOP"))));
    assert!(parser.event(&candidate(0, Some("MAX_TOKENS"))));
    assert!(parser.event("{\"usageMetadata\":{}}"), "nothing begins anew");
    let reply = parser.finish();
    assert_eq!(reply.finish_reasons, ["MAX_TOKENS", "STOP"]);
    assert_eq!(reply.messages, Vec::<Value>::new());
    let mut parser = ReplyParser::new(ModelEndpoint::GenerateContent);
    assert!(parser.event("{\"promptFeedback\":{\"blockReason\":\"SAFETY\"}}"));
    let reply = parser.finish();
    assert_eq!((reply.finished, reply.finish_reasons), (true, vec!["SAFETY".to_owned()]));
}

#[test]
fn terminal_event_is_recognised_by_dialect() {
    let is_last = |endpoint, data: &str| ReplyParser::new(endpoint).event(data);
    assert!(is_last(ModelEndpoint::ChatCompletions, "[DONE]"));
    assert!(is_last(ModelEndpoint::Messages, r#"{"type": "message_stop"}"#));
    assert!(!is_last(ModelEndpoint::Messages, r#"{"text": "message_stop"}"#));
    assert!(!is_last(ModelEndpoint::ChatCompletions, r#"{"choices":[]}"#));
    for last in ["completed", "incomplete", "failed"] {
        let data = format!("{{\"type\":\"response.{last}\"}}");
        assert!(is_last(ModelEndpoint::Responses, &data));
    }
    assert!(!is_last(ModelEndpoint::Responses, r#"{"type":"response.in_progress"}"#));
    assert!(!is_last(ModelEndpoint::CountTokens, "[DONE]"));
}

#[test]
fn stream_and_whole_reply_without_a_count_of_the_output_have_no_usage() {
    let chat = |usage: Value| {
        json!({"model": "m", "choices": [{"index": 0, "finish_reason": "stop",
        "delta": {"content": "a"}, "message": {"role": "assistant", "content": "a"}}],
        "usage": usage})
    };
    for usage in
        [json!({"prompt_tokens": 9}), json!({"prompt_tokens": 9, "completion_tokens": null})]
    {
        let reply = chat(usage);
        let stream = streamed(ModelEndpoint::ChatCompletions, std::slice::from_ref(&reply));
        assert_eq!((stream.finished, stream.usage), (true, None), "{reply}");
        assert_eq!(whole(ModelEndpoint::ChatCompletions, &reply).usage, None, "{reply}");
    }
    let start = json!({"type": "message_start", "message": {"model": "m", "content": [],
        "usage": {"input_tokens": 5, "output_tokens": 1}}});
    let delta = json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"},
        "usage": {"output_tokens": null}});
    let stream =
        streamed(ModelEndpoint::Messages, &[start, delta, json!({"type": "message_stop"})]);
    assert_eq!((stream.finished, stream.usage), (true, None));
    let body = json!({"model": "m", "stop_reason": "end_turn", "content": [],
        "usage": {"input_tokens": 5, "output_tokens": null}});
    assert_eq!(whole(ModelEndpoint::Messages, &body).usage, None);
    let gemini = json!({"modelVersion": "m",
        "usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": null},
        "candidates": [{"index": 0, "content": {"parts": [{"text": "a"}]}, "finishReason": "STOP"}]});
    let stream = streamed(ModelEndpoint::GenerateContent, std::slice::from_ref(&gemini));
    assert_eq!((stream.finished, stream.usage), (true, None));
    assert_eq!(whole(ModelEndpoint::GenerateContent, &gemini).usage, None);
}
