//! Several model servers of one dialect.

use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::model_calls::{lines, of_type};
use rollout_tests::model_server::{ModelAnswer, ModelServer};
use serde_json::Value;

use crate::gateway::DEADLINE;
use crate::gateway::fixture::{project_with, start};

#[test]
fn call_goes_to_server_that_takes_its_model_in_sandbox() {
    let [small, large] = [(); 2].map(|()| ModelServer::start(Duration::ZERO));
    let mut upstreams = Vec::new();
    for (dialect, version) in [("openai", "/v1"), ("anthropic", ""), ("gemini", "")] {
        for (name, server, models, price) in [
            ("small", &small, "'small-*', tiny", 1_000_000),
            ("large", &large, "'large-*'", 5_000_000),
        ] {
            upstreams.push(format!(
                "- {{name: {dialect}-{name}, dialect: {dialect}, url: '{}{version}', \
                 key_env: MODEL_KEY, models: [{models}], prices: {{output: {price}}}}}",
                server.origin()
            ));
        }
    }
    let agent = r#"
for dialect in DIALECTS:
    for model in ["small-1", "large-1", "tiny"]:
        status, reply = ask(dialect, "x", "x", model=model)
        assert status == 200, reply
    status, reply = ask(dialect, "x", "x", model="other")
    assert status == 404 and b"`other`" in reply, reply
request = urllib.request.Request(BASE + "/models", headers={"Authorization": "Bearer " + KEY})
listed = json.loads(urllib.request.urlopen(request).read())
assert [model["id"] for model in listed["data"]] == ["tiny"], listed
"#;
    let project = project_with(&upstreams.join("\n  "), agent, "");
    let _ended = start(&project).wait(DEADLINE).expect_code(ExitCode::Success);
    assert_eq!((small.calls().len(), large.calls().len()), (8, 4));
    let trial = project.results("calls").trial("caller", "t");
    let lines = lines(&trial);
    let begun = of_type(&lines, "begun");
    let names: Vec<_> = begun.iter().map(|line| line["upstream"].as_str().expect("one")).collect();
    let of = |dialect: &str| ["small", "large", "small"].map(|name| format!("{dialect}-{name}"));
    assert_eq!(names, ["openai", "openai", "anthropic", "gemini"].map(of).concat());
    let output = |of: &str| -> u64 {
        let calls = of_type(&lines, "ended").into_iter().zip(&names);
        let calls = calls.filter(|(_, name)| name.ends_with(of));
        calls.map(|(line, _)| line["usage"]["output"].as_u64().expect("usage")).sum()
    };
    let cost = (output("small") + 5 * output("large")) as f64;
    let found = trial.result["gateway"]["cost"].as_f64().expect("a cost");
    assert!((found - cost).abs() < 1e-6, "each server has its prices: {found} {cost}");
}

#[test]
fn exhausted_server_falls_back_to_next_one_of_the_model_in_sandbox() {
    let [refusing, usual] = [(); 2].map(|()| ModelServer::start(Duration::ZERO));
    refusing.command([ModelAnswer::Status(429, Some(600))]);
    let gone = ModelServer::start(Duration::ZERO);
    let keys = "key_env: MODEL_KEY, hold_sec: 1, max_retries: 0";
    let upstreams = format!(
        "- {{name: gone, url: '{}/v1', models: ['g*'], fallback: true, {keys}}}\n  \
         - {{name: refusing, url: '{}/v1', models: ['r*'], fallback: true, {keys}}}\n  \
         - {{name: usual, url: '{}/v1', {keys}, prices: {{output: 1000000}}}}",
        gone.origin(),
        refusing.origin(),
        usual.origin()
    );
    drop(gone);
    let agent = r#"
for model in ["g", "r", "other"]:
    for stream in [False, True]:
        status, reply = ask("chat", "x", "x" + model, stream, model=model)
        assert status == 200, reply
"#;
    let project = project_with(&upstreams, agent, "");
    let _ended = start(&project).wait(DEADLINE).expect_code(ExitCode::Success);
    let trial = project.results("calls").trial("caller", "t");
    let lines = lines(&trial);
    let (begun, ended) = (of_type(&lines, "begun"), of_type(&lines, "ended"));
    let first: Vec<_> = begun.iter().map(|line| line["upstream"].as_str().expect("one")).collect();
    assert_eq!(first, ["gone", "gone", "refusing", "refusing", "usual", "usual"]);
    for (ended, first) in ended.iter().zip(&first) {
        let other = if *first == "usual" { Value::Null } else { "usual".into() };
        assert_eq!((&ended["end"], &ended["upstream"]), (&"complete".into(), &other));
        let last = ended["attempts"].as_array().and_then(|all| all.last()).expect("an attempt");
        assert_eq!((&last["status"], &last["upstream"]), (&200.into(), &other));
    }
    assert_eq!(ended[2]["attempts"][0]["status"], 429);
    // The first refusal lasts: the second call is not sent there.
    assert_eq!((refusing.calls().len(), usual.calls().len()), (1, 6));
    let output = ended.iter().filter_map(|line| line["usage"]["output"].as_u64()).sum::<u64>();
    assert!(
        (trial.result["gateway"]["cost"].as_f64().expect("a cost") - output as f64).abs() < 1e-6
    );
}
