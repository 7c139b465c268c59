//! Searches whose ideas, changes and reviews come from the agent `shell` and a scripted model.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::docker::DockerEngine;
use rollout_tests::ignored::report_ignored;
use rollout_tests::leak_check;
use rollout_tests::model_calls::{self, REAL_KEY, assert_equal_log, assert_key_is_in_no_file};
use rollout_tests::model_server::{LoggedCall, ModelAnswer, ModelServer, ScriptedTask};
use rollout_tests::project::Project;
use rollout_tests::results::json;
use serde_json::Value;

use crate::tree::small_search::SmallSearch;
use crate::tree::{DEADLINE, project};

/// Writes ideas: the second of a node is the better one.
const IDEAS: &str =
    "for i in 1 2; do echo \"- add $i to node $ROLLOUT_NODE_ID\" >$ROLLOUT_IDEAS_DIR/$i.md; done";

/// Adds the idea to the program.
const IMPLEMENT: &str = "cat $ROLLOUT_IDEA_FILE >>x.txt";

/// Approves every change but that of the first idea of node 0001.
const REVIEW: &str = "if grep -q '1 to node 0001' $ROLLOUT_IDEA_FILE; then echo 'reject: too small'; else echo approve; fi >$ROLLOUT_DECISION_FILE";

/// The same as a script.
const REVIEW_SCRIPT: &str = "! grep -q '1 to node 0001' $ROLLOUT_IDEA_FILE";

/// Measures the program: the sum of what the ideas add.
const SWEEP: &str = "v=1; for n in $(cut -d' ' -f3 x.txt); do v=$((v + n)); done\n      \
    (echo config_id,status,v,w; for i in 0 1 2; do echo $i,ok,$v,$v; done) >\"$ROLLOUT_RESULTS_CSV\"";

/// Price of a million input tokens.
const INPUT_PRICE: f64 = 3.0;

/// Price of a million output tokens.
const OUTPUT_PRICE: f64 = 15.0;

/// A search of two depths with these commands.
fn search(keys: &str, commands: &[(&str, String)]) -> Project {
    let commands: String =
        commands.iter().map(|(name, text)| format!("  {name}:\n{text}")).collect();
    let text = format!(
        "tree_run_id: small\nrepository: program\nroot_baseline_csv: baseline.csv\n\
         ideas_per_node: 2\nmax_depth: 2\nsweep_config_limit: 3\nkeep_failed_artifacts: true\n{keys}\
         profile: {{name: speed, primary: {{column: v}}, metrics: [{{column: v, weight: 1}}]}}\n\
         environment: {{type: process}}\ncommands:\n{commands}  sweep:\n    run: |\n      {SWEEP}\n"
    );
    project()
        .write("tree.yaml", &text)
        .write("program/x.txt", "- add 0\n")
        .write("baseline.csv", "config_id,status,v,w\n0,ok,1,1\n1,ok,1,1\n2,ok,1,1\n")
        .commit()
}

fn script(text: &str) -> String {
    format!("    run: |\n      {text}\n")
}

fn agent(more: &str) -> String {
    format!("    agent: shell\n    model: lab/scripted\n{more}")
}

/// A search whose ideas, changes and reviews come from the agent `shell`.
fn agent_search(server: &ModelServer, dialect: &str) -> Project {
    let version = if dialect == "openai" { "/v1" } else { "" };
    let keys = format!(
        "gateway: {{upstreams: [{{name: lab, dialect: {dialect}, url: '{}{version}', \
         key_env: MODEL_KEY, prices: {{input: {INPUT_PRICE}, output: {OUTPUT_PRICE}}}}}]}}\n",
        server.origin()
    );
    let commands = ["ideas", "implement", "review"].map(|name| (name, agent("")));
    search(&keys, &commands)
}

/// A model whose commands are those of the scripts.
fn model() -> ModelServer {
    let command = format!(
        "case $ROLLOUT_STAGE in ideas) {IDEAS};; implement) {IMPLEMENT};; review) {REVIEW};; esac"
    );
    let task = ScriptedTask::new("/tmp/done", "1");
    ModelServer::start_scripted(ScriptedTask { commands: vec![command], ..task })
}

fn run(project: &Project, code: ExitCode) -> Value {
    let mut command = project.command(&SmallSearch::run(&[]));
    command.env("MODEL_KEY", REAL_KEY);
    let _ended = project.start(command).wait(DEADLINE).expect_code(code);
    json(&SmallSearch::directory(project).join("manifest.json")).expect("a manifest")
}

/// The commits of the nodes, and the decision on every eval.
fn decisions(manifest: &Value) -> BTreeMap<String, String> {
    let entries = |key: &str| manifest[key].as_object().cloned().unwrap_or_default();
    let nodes = entries("nodes").into_iter().map(|(id, node)| {
        (format!("node {id}"), format!("{} {}", node["commit"], node["idea_chain"]))
    });
    let evals = entries("evaluations").into_iter().map(|(id, eval)| {
        let decision = &eval["decision"];
        (
            format!("eval {id}"),
            format!("{} {}", decision["promotion_reason"], eval["candidate_commit"]),
        )
    });
    nodes.chain(evals).collect()
}

/// The bill of the server, in millionths of its currency.
fn bill(calls: &[LoggedCall]) -> f64 {
    let cost = calls.iter().map(|call| {
        let (input, output) = model_calls::tokens(&call.reply);
        input as f64 * INPUT_PRICE + output as f64 * OUTPUT_PRICE
    });
    cost.sum()
}

/// The records of the model calls below a directory.
fn recorded_calls(directory: &Path) -> Vec<Value> {
    let files = model_calls::files(directory);
    let files = files.into_iter().filter(|file| file.ends_with("gateway/calls.jsonl"));
    let mut lines = Vec::new();
    for file in files {
        // Numbers of calls are unique in a file only.
        let offset = lines.len() as u64 * 1000;
        let text = std::fs::read_to_string(file).expect("calls");
        lines.extend(text.lines().map(|line| {
            let mut line: Value = serde_json::from_str(line).expect("JSON");
            line["call"] = (line["call"].as_u64().unwrap_or_default() + offset).into();
            line
        }));
    }
    lines
}

fn assert_bill(project: &Project, manifest: &Value, server: &ModelServer) {
    let shown = project.rollout(&["tree", "show", "runs/small", "--json"]).wait(DEADLINE);
    let shown = shown.expect_code(ExitCode::Success).stdout;
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    let (calls, micro) = (server.calls(), |cost: &Value| cost.as_f64().expect("a cost") * 1e6);
    let expected = bill(&calls);
    let is_equal = |cost: f64| (cost - expected).abs() < 1e-3;
    assert!(is_equal(micro(&shown["spending"]["cost"])), "{expected} {:#}", shown["spending"]);
    let counted = shown["spending"]["calls"].as_array().expect("calls").iter();
    let counted: u64 = counted.filter_map(|calls| calls["calls"].as_u64()).sum();
    assert_eq!(counted, calls.len() as u64);
    for parts in ["spending_by_depth", "spending_by_node"] {
        let parts = match &shown[parts] {
            Value::Array(parts) => parts.clone(),
            parts => parts.as_object().expect("parts").values().cloned().collect(),
        };
        assert!(is_equal(parts.iter().map(|part| micro(&part["cost"])).sum()), "{parts:#?}");
    }
    let evals = manifest["evaluations"].as_object().expect("evals").values();
    let nodes = manifest["nodes"].as_object().expect("nodes").values();
    let costs = evals.map(|eval| &eval["cost"]).chain(nodes.map(|node| &node["ideas_cost"]));
    assert!(is_equal(costs.filter(|cost| !cost.is_null()).map(micro).sum()));
}

#[test]
fn search_by_agents_decides_as_scripts_and_costs_what_server_bills() {
    let scripts = [("ideas", IDEAS), ("implement", IMPLEMENT), ("review", REVIEW_SCRIPT)];
    let scripts = scripts.map(|(name, text)| (name, script(text)));
    let scripted = search("", &scripts);
    let expected = decisions(&run(&scripted, ExitCode::Success));
    assert_eq!(expected.len(), 3 + 4, "two promotions among four evals: {expected:#?}");
    for dialect in ["openai", "anthropic", "gemini"] {
        let server = model();
        let project = agent_search(&server, dialect);
        let manifest = run(&project, ExitCode::Success);
        assert_eq!(decisions(&manifest), expected, "{dialect}");
        assert_bill(&project, &manifest, &server);
        let directory = SmallSearch::directory(&project);
        assert_equal_log(&recorded_calls(&directory), &server.calls());
        assert_key_is_in_no_file(project.path());
        let rejected = &manifest["evaluations"]["0002"]["error"];
        let message = "review: the review did not approve the change: too small";
        assert_eq!(rejected["message"], message, "{rejected:#}");
        let summary = std::fs::read_to_string(directory.join("TREE_SUMMARY.md")).expect("reports");
        assert!(summary.contains("\n## Cost\n") && summary.contains("node 0001, review"));
        let valid = project.rollout(&["tree", "validate", "runs/small"]).wait(DEADLINE);
        let _valid = valid.expect_code(ExitCode::Success);
        leak_check::assert_no_leaks(&project);
    }
}

#[test]
fn search_file_of_init_runs_in_a_repository_of_its_own() {
    let server = model();
    let project = project().write("program/x.txt", "- add 0\n").commit();
    let (url, sweep) = (format!("{}/v1", server.origin()), SWEEP.replace('\n', ";"));
    let of_model = ["-m", "lab/scripted", "--base-url", &url, "--key-env", "MODEL_KEY"];
    let of_sweep = ["--metric", "v", "--sweep", &sweep];
    let init = |dir: &str| {
        let dir = [&["tree", "init", dir, "--repository", "program"][..], &of_model].concat();
        project.rollout(&[&dir, &of_sweep[..]].concat()).wait(DEADLINE)
    };
    let inside = init("program/search").expect_code(ExitCode::Config).stderr;
    assert!(inside.contains("a search refuses uncommitted files"), "{inside}");
    assert!(!project.path().join("program/search").exists());
    let hints = init("search").expect_code(ExitCode::Success).stderr;
    let measure = hints.split_once("the present commit: ").expect("a command").1;
    let measured = Command::new("bash").args(["-c", measure.lines().next().expect("it")]).status();
    assert!(measured.expect("bash").success(), "{hints}");
    let mut command = project.command(&["tree", "run", "tree.yaml", "--tree-run-id", "mine"]);
    command.env("MODEL_KEY", REAL_KEY).current_dir(project.path().join("search"));
    let ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Success);
    let calls = server.calls().len();
    assert!(ended.stdout.contains("0001") && calls > 3 * 2, "{calls}: {}", ended.stdout);
    let again = init("search").expect_code(ExitCode::Config).stderr;
    assert!(again.contains("tree.yaml exists"), "{again}");
}

#[test]
fn failing_model_server_is_no_verdict_on_idea() {
    let refused = (401, "a model server refuses the key");
    let unanswered = (500, "a model server does not answer");
    let stages = ["ideas", "implement", "review"];
    let cases = stages.iter().flat_map(|stage| [(*stage, refused), (*stage, unanswered)]);
    for (stage, (status, said)) in cases {
        let server = model();
        // Calls of the steps before the one that fails: three of an agent.
        let before = match stage {
            "ideas" => 0,
            "implement" => 3,
            _ => 6,
        };
        server.command(vec![ModelAnswer::Scripted; before]);
        server.command(vec![ModelAnswer::Status(status, None); 1000]);
        let project = agent_search(&server, "openai");
        let tree = std::fs::read_to_string(project.path().join("tree.yaml")).expect("a search");
        let tree = tree.replace("ideas_per_node: 2", "ideas_per_node: 1");
        project.write_file("tree.yaml", &tree);
        let mut command = project.command(&SmallSearch::run(&[]));
        command.env("MODEL_KEY", REAL_KEY);
        let ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Failure);
        assert!(ended.stderr.contains(said), "{stage}, {status}: {}", ended.stderr);
        let manifest = json(&SmallSearch::directory(&project).join("manifest.json"));
        let evals = manifest.expect("a manifest")["evaluations"].clone();
        let settled = evals.as_object().expect("evals").values();
        assert!(settled.into_iter().all(|eval| eval["error"].is_null()), "{stage}: {evals:#}");
    }
}

/// Adds a budget to a search.
fn add_budget(project: &Project, budget: &str) {
    let tree = std::fs::read_to_string(project.path().join("tree.yaml")).expect("a search");
    project.write_file("tree.yaml", &format!("{tree}budgets: {budget}\n"));
}

#[test]
fn agent_over_the_budget_of_a_step_fails_its_eval() {
    let server = model();
    let project = agent_search(&server, "openai");
    // Each step of the scripted agent takes three calls.
    add_budget(&project, "{step: {calls: 2}}");
    let mut command = project.command(&SmallSearch::run(&[]));
    command.env("MODEL_KEY", REAL_KEY);
    let ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Failure);
    let expected = "ideas: the model calls of the agent exceeded its budget: the next call may lead \
                    to 3 of 2 calls";
    assert!(ended.stderr.contains(expected), "{}", ended.stderr);
    assert_eq!(server.calls().len(), 2);

    let server = model();
    let scripts = [("ideas", script(IDEAS)), ("implement", agent(""))];
    let keys = format!(
        "gateway: {{upstreams: [{{name: lab, dialect: openai, url: '{}/v1', key_env: MODEL_KEY}}]}}\n\
         eval_retries: 2\n",
        server.origin()
    );
    let project = search(&keys, &scripts);
    add_budget(&project, "{step: {calls: 2}}");
    let manifest = run(&project, ExitCode::NothingMeasured);
    let evals = manifest["evaluations"].as_object().expect("evals");
    assert_eq!(evals.len(), 2, "no node was promoted");
    for eval in evals.values() {
        let message = eval["error"]["message"].as_str().expect("a message");
        assert!(
            message.starts_with("implement: the model calls of the agent exceeded"),
            "{eval:#}"
        );
    }
    assert_eq!(server.calls().len(), 4, "no second attempt");
}

#[test]
fn depth_costs_at_most_its_budget() {
    let server = model();
    let project = agent_search(&server, "openai");
    // The step costs about 0.003: of two ideas of a depth, the budget covers one with its review.
    let budget = "{depth_cost: 0.5, step: {cost: 0.15}}";
    add_budget(&project, budget);
    let manifest = run(&project, ExitCode::Success);
    let evals = manifest["evaluations"].as_object().expect("evals");
    let of_depth = |depth: u64| evals.values().filter(|eval| eval["depth"] == depth).count();
    assert_eq!((of_depth(0), of_depth(1)), (1, 1), "{evals:#?}");
    let left_out = manifest["events"].as_array().expect("events").iter();
    let left_out: Vec<_> = left_out.filter(|event| event["type"] == "ideas_left_out").collect();
    assert_eq!(left_out.len(), 2, "{:#}", manifest["events"]);
    assert_bill(&project, &manifest, &server);
}

/// Longest duration of a search whose agent is installed from its registry.
const INSTALL_DEADLINE: Duration = Duration::from_secs(1200);

#[test]
fn program_of_catalogue_implements_idea_on_docker() {
    let selection = std::env::var("ROLLOUT_TEST_AGENTS").unwrap_or_default();
    if !["all", "gemini-cli"].contains(&selection.as_str()) {
        return report_ignored("needs ROLLOUT_TEST_AGENTS=gemini-cli, which installs it");
    }
    if DockerEngine::available().is_none() {
        return;
    }
    let commands = vec!["cat /idea/idea.md >>x.txt".to_owned()];
    let task = ScriptedTask { commands, ..ScriptedTask::new("/tmp/done", "1") };
    let server = ModelServer::start_scripted(task);
    let keys = format!(
        "gateway: {{upstreams: [{{name: lab, dialect: gemini, url: '{}', key_env: MODEL_KEY, \
         prices: {{input: {INPUT_PRICE}, output: {OUTPUT_PRICE}}}}}]}}\n",
        server.origin()
    );
    let implement = "    agent: gemini-cli\n    model: lab/scripted\n    \
                     install_timeout_sec: 1100\n";
    let commands = [("ideas", script(IDEAS)), ("implement", implement.to_owned())];
    let project = search(&keys, &commands);
    project.write_agent_image("image");
    let tree = std::fs::read_to_string(project.path().join("tree.yaml")).expect("a search");
    let tree = tree.replace("{type: process}", "{type: docker, context: image}");
    project.write_file("tree.yaml", &tree.replace("max_depth: 2", "max_depth: 1"));
    let mut command = project.command(&SmallSearch::run(&[]));
    command.env("MODEL_KEY", REAL_KEY);
    let _ended = project.start(command).wait(INSTALL_DEADLINE).expect_code(ExitCode::Success);
    let directory = SmallSearch::directory(&project);
    let manifest = json(&directory.join("manifest.json")).expect("a manifest");
    assert_eq!(manifest["evaluations"]["0001"]["decision"]["promoted_to_node_id"], "0001");
    assert_equal_log(&recorded_calls(&directory), &server.calls());
    assert_key_is_in_no_file(project.path());
}
