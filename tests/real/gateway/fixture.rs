//! Jobs whose agents are Python programs that call models through the gateway.

use rollout_tests::model_calls::REAL_KEY;
use rollout_tests::model_server::ModelServer;
use rollout_tests::program::RunningProgram;
use rollout_tests::project::Project;
use serde_json::Value;

/// Functions of agents. `call` returns the reply of the model, and writes all that was seen of it to
/// `/logs/agent/<name>`, after its end `/logs/agent/<name>.whole`; `ask` calls in any of `DIALECTS`.
const CLIENT: &str = r#"
import json, os, sys, threading, urllib.error, urllib.request
BASE, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
CLAUDE, GEMINI = map(os.environ.get, ["ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"])
LAST = {"/chat/completions": b"data: [DONE]", "/completions": b"data: [DONE]",
        "/responses": b"event: response.completed", "/v1/messages": b"message_stop"}
DIALECTS = ["chat", "responses", "messages", "gemini"]

def call(name, body, path="/chat/completions", base=BASE, key=KEY, header="Authorization"):
    value = "Bearer " + key if header == "Authorization" else key
    request = urllib.request.Request(
        base + path, json.dumps(body).encode(),
        {"Content-Type": "application/json", header: value})
    is_stream = body.get("stream") or ":stream" in path
    seen = b""
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            status = reply.status
            with open("/logs/agent/" + name, "wb", buffering=0) as file:
                while True:
                    piece = reply.read1(65536)
                    if not piece:
                        break
                    file.write(piece)
                    seen += piece
        if is_stream and LAST.get(path.split("?")[0], b'"finishReason"') not in seen:
            raise ConnectionError("cut")
        os.rename("/logs/agent/" + name, "/logs/agent/" + name + ".whole")
    except urllib.error.HTTPError as error:
        status, seen = error.code, error.read()
    return status, seen

def chat(text, **more):
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}

def ask(dialect, name, text, stream=False, words=4, model="m"):
    if dialect == "gemini":
        method = "streamGenerateContent?alt=sse" if stream else "generateContent"
        body = {"contents": [{"role": "user", "parts": [{"text": text}]}],
                "generationConfig": {"maxOutputTokens": words}}
        return call(name, body, f"/v1beta/models/{model}:{method}", GEMINI, header="x-goog-api-key")
    if dialect == "responses":
        body = {"model": model, "input": text, "stream": stream, "max_output_tokens": words}
        return call(name, body, "/responses")
    body = {**chat(text, stream=stream, max_tokens=words), "model": model}
    if dialect == "messages":
        return call(name, body, "/v1/messages", CLAUDE, header="x-api-key")
    return call(name, body)
"#;

/// The dialects of the function `ask`.
pub(crate) const DIALECTS: [&str; 4] = ["chat", "responses", "messages", "gemini"];

/// The text that a call of the function `ask` has, in its request.
pub(crate) fn asked(request: &Value) -> Option<&str> {
    let paths = ["/input", "/messages/0/content", "/contents/0/parts/0/text"];
    paths.iter().find_map(|path| request.pointer(path)?.as_str())
}

/// A project whose one trial runs `agent` with the functions above, with further keys of its model
/// servers.
pub(crate) fn project(server: &ModelServer, agent: &str, more: &str, environment: &str) -> Project {
    let origin = server.origin();
    let upstreams = format!(
        "- {{name: main, url: '{origin}/v1', key_env: MODEL_KEY{more}}}\n  \
         - {{name: claude, dialect: anthropic, url: '{origin}', key_env: MODEL_KEY{more}}}\n  \
         - {{name: google, dialect: gemini, url: '{origin}', key_env: MODEL_KEY{more}}}"
    );
    project_with(&upstreams, agent, environment)
}

/// The same with these model servers, the items of a list of YAML.
pub(crate) fn project_with(upstreams: &str, agent: &str, environment: &str) -> Project {
    let project = Project::new(env!("CARGO_BIN_EXE_rollout-under-test"));
    let program = format!(
        "cat >/tmp/agent.py <<'PYTHON'\n{CLIENT}\n{agent}\nPYTHON\npython3 /tmp/agent.py\n"
    );
    let execute = Value::String(program);
    project.write_file(
        "job.yaml",
        &format!(
            "name: calls\n\
             environment: {{type: process, provider_config: {{ignore_dockerfile: true{environment}}}}}\n\
             gateway:\n  upstreams:\n  {upstreams}\n\
             retry: {{max_attempts: 1}}\n\
             agents:\n  - name: caller\n    execute: {execute}\n\
             datasets: [{{path: tasks}}]\n"
        ),
    );
    project.write_small_task("echo 1 >/logs/verifier/reward.txt\n");
    project
}

/// Starts the run.
pub(crate) fn start(project: &Project) -> RunningProgram {
    let mut command = project.command(&["run", "job.yaml", "-q"]);
    command.env("MODEL_KEY", REAL_KEY);
    project.start(command)
}
