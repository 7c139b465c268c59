//! Records of calls, compared with the server's own log.

use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::model_calls::{assert_equal_log, lines, of_type};
use rollout_tests::model_server::{ModelAnswer, ModelServer};
use rollout_tests::project::Project;

use crate::gateway::DEADLINE;
use crate::gateway::fixture::{DIALECTS, project, start};

/// Calls of every endpoint, whole and as streams; a conversation of two calls and a branch.
const AGENT: &str = r#"
first = chat("héllo", max_tokens=3)
status, reply = call("one", first)
assert status == 200, reply
text = json.loads(reply)["choices"][0]["message"]["content"]
history = first["messages"] + [{"role": "assistant", "content": text}]
for number, more in enumerate(["yes", "no"]):
    body = {**first, "messages": history + [{"role": "user", "content": more}], "stream": True}
    status, reply = call("branch%d" % number, body)
    assert status == 200 and reply.endswith(b"data: [DONE]\n\n"), reply
status, reply = call("text", {"model": "m", "prompt": [7, 8], "stream": True}, "/completions")
assert status == 200, reply
for stream in [False, True]:
    body = {"model": "c", "max_tokens": 2, "stream": stream,
            "messages": [{"role": "user", "content": "hi"}]}
    status, reply = call("claude%d" % stream, body, "/v1/messages?beta=true", CLAUDE, KEY, "x-api-key")
    assert status == 200, reply

def events(reply):
    lines = reply.decode().replace("\r", "").split("\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]

# A tool call and its result: the history is what the model said, as these clients send it back.
body = {"model": "r", "instructions": "be brief", "stream": True,
        "tools": [{"type": "function", "name": "shell"}], "input": [{"role": "user", "content": "hi"}]}
status, reply = call("responses0", body, "/responses")
output = [event["item"] for event in events(reply) if event["type"] == "response.output_item.done"]
assert [item["type"] for item in output] == ["reasoning", "message", "function_call"], output
result = {"type": "function_call_output", "call_id": output[2]["call_id"], "output": "done"}
status, reply = call("responses1", {**body, "stream": False, "input":
    body["input"] + output[1:] + [result]}, "/responses")
assert status == 200 and json.loads(reply)["status"] == "completed", reply

body = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}],
        "tools": [{"functionDeclarations": [{"name": "shell"}]}],
        "systemInstruction": {"parts": [{"text": "be brief"}]}}
path = "/v1beta/models/gemini-x:"
status, reply = call("gemini0", body, path + "streamGenerateContent?alt=sse", GEMINI, KEY, "x-goog-api-key")
parts = [part for event in events(reply) for part in event["candidates"][0]["content"]["parts"]]
said = [part for part in parts if not part.get("thought")]
assert "functionCall" in said[0], said
answer = {"functionResponse": {"name": "shell", "response": {"output": "done"}}}
body["contents"] += [{"role": "model", "parts": said}, {"role": "user", "parts": [answer]}]
status, reply = call("gemini1", body, path + "generateContent?key=" + KEY, GEMINI, "", "x-none")
assert status == 200, reply
"#;

#[test]
fn records_equal_log_of_server_call_by_call_in_sandbox() {
    for network in ["host", "none"] {
        let server = ModelServer::start(Duration::from_millis(1));
        let environment = format!(", network: {network}");
        let more = ", capture: tokens, prices: {input: 1000000, output: 2000000}";
        let project = project(&server, AGENT, more, &environment);
        let _ended = start(&project).wait(DEADLINE).expect_code(ExitCode::Success);
        let trial = project.results("calls").trial("caller", "t");
        let lines = lines(&trial);
        assert_equal_log(&lines, &server.calls());
        let ended = of_type(&lines, "ended");
        assert_replies(&ended);
        assert_summary(&trial, &ended);
        assert_trajectories(&trial);
        assert_records_are_printed_by_name_only(&project);
    }
}

/// Fails unless `rollout logs` prints the records of calls only if they are named.
#[track_caller]
fn assert_records_are_printed_by_name_only(project: &Project) {
    let printed = |more: &[&str]| {
        let words = [&["logs", "jobs/calls", "caller"], more].concat();
        project.rollout(&words).wait(DEADLINE).expect_code(ExitCode::Success)
    };
    let output = printed(&[]);
    // Neither the agent nor the tests print: there is no header of an empty file.
    assert_eq!(output.stdout, "");
    assert!(output.stderr.contains("note: nothing was printed\n"), "{}", output.stderr);
    let hint = "not printed: `rollout logs jobs/calls caller --list` lists them";
    assert!(output.stderr.contains(hint), "{}", output.stderr);
    assert!(printed(&["--list"]).stdout.contains("gateway/calls.jsonl"));
    let calls = printed(&["gateway/calls.jsonl"]).stdout;
    assert!(calls.lines().count() > 1, "{calls}");
}

/// Fails unless the calls with tools say what their servers said.
#[track_caller]
fn assert_replies(ended: &[&serde_json::Value]) {
    let model = |call: usize| ended[call]["model"].as_str().expect("a model");
    assert_eq!(["r", "r", "gemini-x", "gemini-x"], [6, 7, 8, 9].map(model));
    let output = "w0 w1 w2 w3 ".len();
    for (call, reason, thoughts) in
        [(6, "completed", 0), (7, "completed", 0), (8, "STOP", 2), (9, "STOP", 2)]
    {
        assert_eq!(ended[call]["finish_reasons"], serde_json::json!([reason]));
        let usage = &ended[call]["usage"];
        assert_eq!(usage["output"], output + thoughts, "{usage}");
        assert_eq!((&usage["reasoning"], &usage["cached_input"]), (&2.into(), &1.into()));
    }
}

/// Fails unless the figures of the trial are those of its calls.
#[track_caller]
fn assert_summary(trial: &rollout_tests::results::TrialDirectory, ended: &[&serde_json::Value]) {
    let sum = |key: &str| -> u64 {
        ended.iter().map(|line| line["usage"][key].as_u64().expect("usage")).sum()
    };
    let gateway = &trial.result["gateway"];
    assert_eq!(gateway["calls"], ended.len(), "{gateway:#}");
    assert_eq!((&gateway["failed_calls"], &gateway["cut_calls"]), (&0.into(), &0.into()));
    assert_eq!(gateway["usage"]["input"], sum("input"));
    assert_eq!(gateway["usage"]["output"], sum("output"));
    let cost = sum("input") as f64 + 2.0 * sum("output") as f64;
    assert!((gateway["cost"].as_f64().expect("a cost") - cost).abs() < 1e-6, "{gateway:#}");
    assert!((trial.result["cost"].as_f64().expect("a cost") - cost).abs() < 1e-6);
}

/// Fails unless the two branches and the other calls are trajectories with masks.
#[track_caller]
fn assert_trajectories(trial: &rollout_tests::results::TrialDirectory) {
    let text = trial.text("gateway/trajectories.jsonl").expect("trajectories");
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let calls: Vec<_> = lines.iter().map(|line| line["calls"].to_string()).collect();
    assert_eq!(calls, ["[1,2]", "[1,3]", "[4]", "[5]", "[6]", "[7,8]", "[9,10]"]);
    assert_eq!(lines[0]["by"], "tokens");
    assert_eq!(lines[3]["by"], "messages");
    let list = |name: &str| lines[0][name].as_array().cloned().expect("a list");
    let (ids, mask, logprobs) = (list("ids"), list("mask"), list("logprobs"));
    assert_eq!((ids.len(), mask.len()), (mask.len(), logprobs.len()));
    for ((id, mask), logprob) in ids.iter().zip(&mask).zip(&logprobs) {
        let expected = (*mask == 1).then(|| -id.as_f64().expect("an id") / 128.0);
        assert_eq!(logprob.as_f64(), expected);
    }
    assert_eq!(mask.iter().filter(|bit| **bit == 1).count(), "w0 w1 w2 ".len() + "w0 w1 w2 ".len());
}

/// Calls a model twice, and notes more calls than that in files of its own.
const NOTED: &str = r#"
for name in ["one", "two"]:
    assert call(name, chat(name, max_tokens=3))[0] == 200
os.makedirs("/logs/agent/mine", exist_ok=True)
with open("/logs/agent/mine/session.jsonl", "w") as file:
    for number in [1, 1, 2, 3]:
        usage = {"in": 100, "cached": 10, "out": number}
        file.write(json.dumps({"id": number, "usage": usage}) + "\n")
for number in range(FILES):
    open("/logs/agent/%d" % number, "w").close()
"#;

#[test]
fn calls_in_session_of_agent_are_counted_unless_logs_are_cut_in_sandbox() {
    for (files, is_counted) in [(0, true), (20_000, false)] {
        let server = ModelServer::start(Duration::ZERO);
        let project = project(&server, &NOTED.replace("FILES", &files.to_string()), "", "");
        let job = std::fs::read_to_string(project.path().join("job.yaml")).expect("a job");
        let session = "session_calls: {files: 'mine/*.jsonl', id: /id, \
                       input_tokens: [/usage/in, /usage/cached], output_tokens: [/usage/out]}";
        let job = job.replace("  - name: caller\n", &format!("  - name: caller\n    {session}\n"));
        project.write_file("job.yaml", &job);
        let _ended = start(&project).wait(DEADLINE).expect_code(ExitCode::Success);
        let trial = project.results("calls").trial("caller", "t");
        assert_eq!(trial.result["gateway"]["calls"], 2, "{:#}", trial.result);
        let text = trial.text("gateway/trajectory.json").expect("a trajectory");
        let trajectory: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let (in_record, in_trajectory) = (
            &trial.result["gateway"]["session"],
            &trajectory["final_metrics"]["extra"]["agent_session"],
        );
        if is_counted {
            let tokens = serde_json::json!({"calls": 3, "input": 330, "output": 6});
            assert_eq!(*in_record, tokens);
            assert_eq!(in_trajectory["prompt_tokens"], 330, "{in_trajectory:#}");
        } else {
            assert!(in_record.is_null() && in_trajectory.is_null(), "{in_record} {in_trajectory}");
        }
    }
}

/// Calls with a compressed body, and one with a compression that the gateway does not know.
const COMPRESSED: &str = r#"
import gzip
def send(encoding, body):
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding,
               "Authorization": "Bearer " + KEY}
    request = urllib.request.Request(BASE + "/chat/completions", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Accept-Encoding"]
body = json.dumps(chat("hello", max_tokens=3, stream=True)).encode()
# A frame of zstd with one block that is not compressed.
frame = b"\x28\xb5\x2f\xfd\x20" + bytes([len(body)]) + (len(body) << 3 | 1).to_bytes(3, "little") + body
for encoding, sent in [("gzip", gzip.compress(body)), ("zstd", frame)]:
    status, reply = send(encoding, sent)
    assert status == 200 and "data: [DONE]" in reply and "usage" not in reply, reply
assert send("br", body) == (415, "gzip, zstd")
assert send("gzip", body)[0] == 400
"#;

#[test]
fn compressed_request_is_recorded_and_sent_decompressed_in_sandbox() {
    let server = ModelServer::start(Duration::ZERO);
    let more = ", models: [m], prices: {input: 1, output: 1}";
    let project = project(&server, COMPRESSED, more, "");
    let _ended = start(&project).wait(DEADLINE).expect_code(ExitCode::Success);
    let trial = project.results("calls").trial("caller", "t");
    assert_eq!(trial.reward(), Some(1.0), "{:#}", trial.result);
    let lines = lines(&trial);
    assert_equal_log(&lines, &server.calls());
    for call in server.calls() {
        let request = String::from_utf8_lossy(&call.request);
        assert!(request.contains("hello") && request.contains("include_usage"), "{request}");
    }
    assert_eq!(of_type(&lines, "begun").len(), 2);
    assert!(of_type(&lines, "ended").iter().all(|line| line["usage"]["output"].as_u64() > Some(0)));
}

#[test]
fn reply_that_breaks_off_is_recorded_and_seen_as_cut_in_sandbox() {
    let server = ModelServer::start(Duration::ZERO);
    let agent = r#"
for dialect in DIALECTS:
    try:
        ask(dialect, "cut", "x", stream=True)
    except Exception as error:
        print("broke off:", type(error).__name__)
    else:
        print("whole")
    status, reply = ask(dialect, "again", "x", stream=True)
    assert status == 200
"#;
    // Every second call is cut.
    server.command(DIALECTS.iter().flat_map(|_| [ModelAnswer::Cut(2), ModelAnswer::Usual]));
    let project = project(&server, agent, "", "");
    let _ended = start(&project).wait(DEADLINE).expect_code(ExitCode::Success);
    let trial = project.results("calls").trial("caller", "t");
    let output = trial.text("command/stdout.txt").expect("output");
    assert_eq!(output.lines().count(), DIALECTS.len());
    assert!(output.lines().all(|line| line.starts_with("broke off:")), "{output}");
    let lines = lines(&trial);
    let (begun, ended) = (of_type(&lines, "begun"), of_type(&lines, "ended"));
    for first in (0..ended.len()).step_by(2) {
        let (cut, again) = (ended[first], ended[first + 1]);
        assert_eq!((&cut["end"], &again["end"]), (&"cut".into(), &"complete".into()), "{cut}");
        let repeated = first + 1;
        assert_eq!(begun[repeated]["repeats"], repeated, "the second call repeats the first");
        let reply = cut["reply"]["text"].as_str().map(str::as_bytes);
        assert_eq!(reply, Some(&*server.calls()[first].reply));
    }
    assert_eq!(trial.result["gateway"]["cut_calls"], DIALECTS.len());
}

#[test]
fn reply_is_forwarded_byte_for_byte_without_capture_and_reduced_with_it_in_sandbox() {
    let agent = r#"
status, plain = call("plain", chat("x", stream=True))
status, whole = call("whole", chat("x"))
assert b'"logprobs":null' in plain and b"token_ids" not in plain + whole, plain
print(plain.decode() + whole.decode(), end="")
"#;
    for capture in ["as_is", "tokens"] {
        let server = ModelServer::start(Duration::ZERO);
        let project = project(&server, agent, &format!(", capture: {capture}"), "");
        let _ended = start(&project).wait(DEADLINE).expect_code(ExitCode::Success);
        let trial = project.results("calls").trial("caller", "t");
        let calls = server.calls();
        let asked = calls[0].request.windows(13).any(|part| part == b"include_usage");
        assert_eq!(asked, capture == "tokens");
        let seen = trial.text("command/stdout.txt").expect("output");
        let sent: Vec<u8> = calls.iter().flat_map(|call| call.reply.clone()).collect();
        assert_eq!(seen.as_bytes() == sent, capture == "as_is", "{seen}");
        if capture == "tokens" {
            let lines = lines(&trial);
            let begun = of_type(&lines, "begun");
            let added: Vec<_> = begun[0]["added"].as_array().expect("added").clone();
            assert_eq!(added, ["stream_options.include_usage", "logprobs", "return_token_ids"]);
        }
    }
}
