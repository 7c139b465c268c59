//! Tests of conversations.

use serde_json::json;

use super::*;

fn session(dialect: ModelDialect, max_turns: u32) -> ShellSession {
    let spec = ShellSpec { max_turns, ..ShellSpec::default() };
    ShellSession::new(&spec, "m", dialect, "write x", None, None)
}

#[test]
fn skills_are_in_the_system_prompt() {
    let spec = ShellSpec::default();
    let list = "/skills/pdf/SKILL.md\nname: pdf\n";
    for dialect in [ModelDialect::Openai, ModelDialect::Anthropic, ModelDialect::Gemini] {
        let mut session = ShellSession::new(&spec, "m", dialect, "write x", Some(list), None);
        let request = session.next_request().expect("a turn");
        let text = String::from_utf8_lossy(&request.body).into_owned();
        assert!(text.contains("The task has skills") && text.contains("/skills/pdf/SKILL.md"));
    }
}

#[test]
fn resumed_conversation_keeps_messages_and_has_all_turns() {
    let done = json!({"choices": [{"message": {"role": "assistant", "content": "done"}}]});
    let mut session = session(ModelDialect::Openai, 1);
    body(&mut session);
    read(&mut session, &done);
    assert!(session.next_request().is_none());
    session.resume(&ShellSpec { max_turns: 1, ..ShellSpec::default() }, "write y");
    let messages = &body(&mut session)["messages"];
    let roles: Vec<_> = messages.as_array().expect("a list").iter().map(|m| &m["role"]).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user"]);
    assert_eq!(messages[3]["content"], "write y");
}

fn body(session: &mut ShellSession) -> Value {
    let request = session.next_request().expect("a turn is left");
    serde_json::from_slice(&request.body).expect("JSON")
}

fn read(session: &mut ShellSession, reply: &Value) -> ShellStep {
    session.read_reply(reply.to_string().as_bytes()).expect("a known reply")
}

#[test]
fn chat_conversation_sends_calls_and_outputs_back() {
    let mut session = session(ModelDialect::Openai, 9);
    let first = body(&mut session);
    assert_eq!(first["messages"][0]["role"], "system");
    assert_eq!(first["messages"][1], json!({"role": "user", "content": "write x"}));
    assert_eq!(first["tools"][0]["function"]["name"], TOOL);
    let call = json!({"id": "c", "type": "function",
        "function": {"name": "bash", "arguments": "{\"command\": \"echo\"}"}});
    let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    let step = read(&mut session, &json!({"choices": [{"message": message}]}));
    let command = ShellCommand { id: "c".into(), command: Some("echo".into()) };
    assert_eq!(step, ShellStep::Run { text: String::new(), commands: vec![command] });
    session.add_outputs(&[("c".to_owned(), "exit code 0\n".to_owned())]);
    let second = body(&mut session);
    assert_eq!(second["messages"][2], message);
    let output = json!({"role": "tool", "tool_call_id": "c", "content": "exit code 0\n"});
    assert_eq!(second["messages"][3], output);
    let done = json!({"choices": [{"message": {"role": "assistant", "content": "done"}}]});
    assert_eq!(read(&mut session, &done), ShellStep::Done("done".to_owned()));
}

#[test]
fn anthropic_conversation_sends_calls_and_outputs_back() {
    let mut session = session(ModelDialect::Anthropic, 9);
    let first = body(&mut session);
    assert_eq!(first["messages"], json!([{"role": "user", "content": "write x"}]));
    assert!(first["system"].is_string() && first["max_tokens"].is_number());
    let content = json!([{"type": "text", "text": "hm"},
        {"type": "tool_use", "id": "t", "name": "bash", "input": {"command": "ls"}},
        {"type": "tool_use", "id": "u", "name": "edit", "input": {}}]);
    let step = read(&mut session, &json!({"content": content}));
    let commands = vec![
        ShellCommand { id: "t".into(), command: Some("ls".into()) },
        ShellCommand { id: "u".into(), command: None },
    ];
    assert_eq!(step, ShellStep::Run { text: "hm".into(), commands });
    session.add_outputs(&[("t".into(), "a".into()), ("u".into(), "b".into())]);
    let second = body(&mut session);
    assert_eq!(second["messages"][1], json!({"role": "assistant", "content": content}));
    assert_eq!(second["messages"][2]["content"][1]["tool_use_id"], "u");
    let done = json!({"content": [{"type": "text", "text": "done"}]});
    assert_eq!(read(&mut session, &done), ShellStep::Done("done".to_owned()));
}

#[test]
fn gemini_conversation_sends_calls_and_outputs_back() {
    let mut session = session(ModelDialect::Gemini, 9);
    let request = session.next_request().expect("a turn is left");
    assert_eq!(request.path, "/v1beta/models/m:generateContent");
    let first: Value = serde_json::from_slice(&request.body).expect("JSON");
    assert_eq!(first["contents"], json!([{"role": "user", "parts": [{"text": "write x"}]}]));
    assert_eq!(first["tools"][0]["functionDeclarations"][0]["name"], TOOL);
    let parts = json!([{"text": "a thought", "thought": true}, {"text": "hm"},
        {"functionCall": {"name": "bash", "args": {"command": "ls"}}, "thoughtSignature": "s"}]);
    let reply = json!({"candidates": [{"content": {"role": "model", "parts": parts}}]});
    let command = ShellCommand { id: String::new(), command: Some("ls".into()) };
    let step = read(&mut session, &reply);
    assert_eq!(step, ShellStep::Run { text: "hm".into(), commands: vec![command] });
    session.add_outputs(&[(String::new(), "a".into())]);
    let second = body(&mut session);
    assert_eq!(second["contents"][1], json!({"role": "model", "parts": parts}));
    let response = json!({"name": "bash", "response": {"output": "a"}});
    assert_eq!(second["contents"][2]["parts"][0]["functionResponse"], response);
}

#[test]
fn session_ends_after_its_turns() {
    let mut session = session(ModelDialect::Openai, 2);
    assert!(session.next_request().is_some() && session.next_request().is_some());
    assert_eq!(session.next_request(), None);
}

#[test]
fn reply_of_another_form_is_unknown() {
    for dialect in [ModelDialect::Openai, ModelDialect::Anthropic, ModelDialect::Gemini] {
        for reply in [
            "",
            "{",
            "[]",
            "{\"error\": {}}",
            "{\"choices\": []}",
            "{\"content\": 1}",
            "{\"candidates\": []}",
        ] {
            let found = session(dialect, 1).read_reply(reply.as_bytes());
            assert_eq!(found, Err(UnknownReply(dialect)), "{reply}");
        }
    }
}

#[test]
fn long_output_keeps_its_beginning_and_its_end() {
    let mut output = BoundedOutput::new(OUTPUT_BYTES);
    output.push(b"short");
    assert_eq!(output.text(), "short");
    for piece in 0..10_000 {
        output.push(format!("{piece:05}\n").as_bytes());
    }
    let text = output.text();
    assert!(text.starts_with("short00000\n") && text.ends_with("09999\n"), "{text}");
    let left_out = 60_005 - OUTPUT_BYTES;
    assert!(text.contains(&format!("\n[{left_out} bytes left out]\n")), "{text}");
    let mut whole = BoundedOutput::new(OUTPUT_BYTES);
    whole.push(&[b'x'; 3 * OUTPUT_BYTES]);
    assert!(whole.text().len() < OUTPUT_BYTES + 64);
}

/// A conversation that begins with a reply, which runs two commands.
fn prior() -> PriorConversation {
    let document = json!({"steps": [
        {"source": "agent", "message": "I look", "tool_calls": [
            {"tool_call_id": "a b", "function_name": "bash", "arguments": {"command": "ls"}},
            {"tool_call_id": "c", "function_name": "bash", "arguments": {"command": "pwd"}}],
         "observation": {"results": [{"source_call_id": "a b", "content": "file"}]}},
        {"source": "agent", "message": "done"},
    ]});
    PriorConversation::parse(document.to_string().as_bytes()).expect("a conversation")
}

#[test]
fn earlier_conversation_stands_before_the_instruction_in_the_form_of_each_dialect() {
    let spec = ShellSpec::default();
    let messages = |dialect| {
        let mut session = ShellSession::new(&spec, "m", dialect, "go on", None, Some(&prior()));
        let request = session.next_request().expect("a turn");
        let body: Value = serde_json::from_slice(&request.body).expect("JSON");
        match dialect {
            ModelDialect::Openai => json!(body["messages"].as_array().expect("messages")[1..]),
            ModelDialect::Anthropic => body["messages"].clone(),
            ModelDialect::Gemini => body["contents"].clone(),
        }
    };
    let call = |id: &str, command: &str| {
        let arguments = json!({"command": command}).to_string();
        json!({"id": id, "type": "function", "function": {"name": "bash", "arguments": arguments}})
    };
    let expected = json!([
        {"role": "user", "content": PRIOR_PROMPT},
        {"role": "assistant", "content": "I look",
         "tool_calls": [call("prior_1", "ls"), call("prior_2", "pwd")]},
        {"role": "tool", "tool_call_id": "prior_1", "content": "file"},
        {"role": "tool", "tool_call_id": "prior_2", "content": ""},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": "go on"},
    ]);
    assert_eq!(messages(ModelDialect::Openai), expected);
    let expected = json!([
        {"role": "user", "content": PRIOR_PROMPT},
        {"role": "assistant", "content": [
            {"type": "text", "text": "I look"},
            {"type": "tool_use", "id": "prior_1", "name": "bash", "input": {"command": "ls"}},
            {"type": "tool_use", "id": "prior_2", "name": "bash", "input": {"command": "pwd"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "prior_1", "content": "file"},
            {"type": "tool_result", "tool_use_id": "prior_2", "content": ""}]},
        {"role": "assistant", "content": [{"type": "text", "text": "done"}]},
        {"role": "user", "content": "go on"},
    ]);
    assert_eq!(messages(ModelDialect::Anthropic), expected);
    let found = messages(ModelDialect::Gemini);
    assert_eq!(found[1]["parts"][1]["functionCall"]["args"]["command"], "ls", "{found:#}");
    assert_eq!(found[2]["parts"][0]["functionResponse"]["response"]["output"], "file");
    assert_eq!(found[4]["parts"][0]["text"], "go on");
}
