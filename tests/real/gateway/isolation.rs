//! The reach of an agent through the gateway, and the places of keys.

use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::model_calls::{REAL_KEY, assert_key_is_in_no_file, lines, of_type};
use rollout_tests::model_server::{ModelAnswer, ModelServer};

use crate::gateway::DEADLINE;
use crate::gateway::fixture::{project, start};

const AGENT: &str = r#"
origin = BASE[:-len("/openai/v1")]
def status(path, key=KEY, method="POST", more={}):
    request = urllib.request.Request(origin + path, b"{}" if method == "POST" else None,
        {"Authorization": "Bearer " + key, **more}, method=method)
    try:
        return urllib.request.urlopen(request, timeout=30).status
    except urllib.error.HTTPError as error:
        return error.code
print(status("/openai/v1/chat/completions", "rollout-wrong"))
print(status("/openai/v1/chat/completions", ""))
print(status("/openai/v1/embeddings"))
print(status("/openai/v1/../../etc/passwd"))
print(status("/openai/v1/chat/completions", method="GET"))
print(status("/anthropic/v1/chat/completions"))
print(status("/gemini/v1beta/models/..:generateContent"))
print(status("/gemini/v1beta/models/a%2fb:generateContent"))
print(status("/openai/v1/responses", method="GET"))
print(status("/openai/v1/responses", method="GET", more={"Upgrade": "websocket"}))
print(status("/openai/v1/models", "rollout-wrong", "GET"))
for path in ["/openai/v1/models", "/anthropic/v1/models", "/gemini/v1beta/models", "/api/hello"]:
    for method in ["GET", "HEAD"]:
        print(status(path, method=method))
print(call("redirect", chat("x"))[0])
print(status("/openai/v1/chat/completions"))
print("\n".join(sorted(os.environ)))
"#;

#[test]
fn agent_reaches_only_endpoints_of_its_job_and_real_key_is_in_no_file_in_sandbox() {
    let server = ModelServer::start(Duration::ZERO);
    server.command([ModelAnswer::Redirect("http://127.0.0.1:1/".to_owned())]);
    let leaking = format!("{AGENT}\nassert '{}' not in str(dict(os.environ))\n", &REAL_KEY[8..]);
    let project = project(&server, &leaking, "", "");
    let mut run = start(&project);
    rollout_tests::wait::until(DEADLINE, "the end", || run.has_ended());
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Success);
    let trial = project.results("calls").trial("caller", "t");
    let output = trial.text("command/stdout.txt").expect("output");
    let statuses: Vec<_> = output.lines().take(21).collect();
    let refused = ["401", "401", "404", "404", "404", "404", "404", "404", "404", "426", "401"];
    assert_eq!(statuses[..11], refused);
    assert_eq!(statuses[11..19], ["200"; 8], "probes");
    assert_eq!(statuses[19..], ["502", "200"]);
    let lines = lines(&trial);
    let ended = of_type(&lines, "ended");
    assert_eq!(ended.len(), 2, "refused requests are no calls");
    assert_eq!(ended[0]["end"], "unanswered");
    assert_eq!(server.calls().len(), 2);
    assert_key_is_in_no_file(project.path());
}

#[test]
fn error_of_server_that_quotes_the_key_is_masked_for_agent_in_sandbox() {
    let server = ModelServer::start(Duration::ZERO);
    let agent = "print(*call('e', chat('x')))\n";
    let project = project(&server, agent, ", max_retries: 0", "");
    server.command([ModelAnswer::Status(400, None)]);
    let _ended = start(&project).wait(DEADLINE).expect_code(ExitCode::Success);
    let trial = project.results("calls").trial("caller", "t");
    let output = trial.text("command/stdout.txt").expect("output");
    let masked = "400 b'{\"error\":{\"message\":\"refused Bearer [redacted:MODEL_KEY]\"}}'\n";
    assert_eq!(output, masked);
    let sent = String::from_utf8(server.calls()[0].reply.clone()).expect("UTF-8");
    assert!(sent.contains(REAL_KEY), "{sent}");
    assert_eq!(trial.result["gateway"]["failed_calls"], 1);
}
