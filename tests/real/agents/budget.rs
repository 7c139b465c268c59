//! Budgets of model calls, with the agent `shell` in sandboxes.

use rollout_protocol::exit::ExitCode;
use rollout_tests::model_calls::{self, REAL_KEY};
use rollout_tests::model_server::{LoggedCall, ModelServer};
use rollout_tests::project::Project;
use rollout_tests::results;
use serde_json::{Value, json};

use crate::agents::DEADLINE;
use crate::agents::fixture::{AgentRun, task};

/// Price of a token of any kind in these jobs.
const PRICE: f64 = 0.001;

/// Attempts of the run that has no money for all of them.
const ATTEMPTS: u64 = 100;

/// Budget of a try: more than an attempt uses and its second call reserves.
const TRY_COST: f64 = 1.0;

/// Prices of the model server, in the job file.
const PRICES: &str = ", prices: {input: 1000, output: 1000}";

/// A job whose model server has prices.
fn job(server: &ModelServer, attempts: u64, budget: &str) -> String {
    let url = format!("{}/v1", server.origin());
    format!(
        "environment: {{type: process, provider_config: {{ignore_dockerfile: true}}}}\n\
         n_attempts: {attempts}\nn_concurrent_trials: 4\n\
         agents: [{{name: shell, model: lab/scripted}}]\n\
         gateway: {{upstreams: [{{name: lab, url: '{url}', key_env: MODEL_KEY{PRICES}}}]}}\n\
         budget: {budget}\n"
    )
}

fn project(job: &str) -> Project {
    let job = job.to_owned();
    AgentRun { agent: "shell", dialect: "openai", job, options: Vec::new() }.project()
}

fn run(project: &Project, code: ExitCode) -> Value {
    let mut command = project.command(&["run", "job.yaml", "-q"]);
    command.env("MODEL_KEY", REAL_KEY);
    let _ended = project.start(command).wait(DEADLINE).expect_code(code);
    results::json(&project.path().join("jobs/solve/result.json")).expect("a result")
}

/// The server's own bill: the tokens of all its replies.
fn bill(calls: &[LoggedCall]) -> f64 {
    let tokens = |call: &LoggedCall| {
        let reply: Value = serde_json::from_slice(&call.reply).expect("a whole reply");
        let count = |name: &str| reply["usage"][name].as_u64().expect("a count");
        count("prompt_tokens") + count("completion_tokens")
    };
    calls.iter().map(tokens).sum::<u64>() as f64 * PRICE
}

#[track_caller]
fn assert_cost_is_billed(result: &Value, server: &ModelServer) {
    let (cost, bill) = (result["total_cost"].as_f64().expect("a cost"), bill(&server.calls()));
    assert!((cost - bill).abs() < 1e-9, "{cost} of {bill}");
}

#[test]
fn run_stops_within_its_budget_to_the_cent_and_goes_on_with_a_larger_one_in_sandbox() {
    let server = ModelServer::start_scripted(task());
    let text = |run: f64| {
        let budget =
            format!("{{try: {{cost: {TRY_COST}}}, run: {{cost: {run}}}, output_reserve: 20}}");
        job(&server, ATTEMPTS, &budget)
    };
    let project = project(&text(9.0));
    let result = run(&project, ExitCode::OverBudget);
    assert_cost_is_billed(&result, &server);
    let spent = bill(&server.calls());
    assert!(spent <= 9.0 && spent > 9.0 - TRY_COST, "{spent}: another trial would have fitted");
    let count = |result: &Value, name: &str| result[name].as_u64().expect("a count");
    let completed = count(&result, "completed_trials");
    assert_eq!(completed + count(&result, "skipped_trials"), ATTEMPTS, "{result:#}");
    assert_eq!(server.calls().len() as u64, 2 * completed, "no call of a skipped trial");

    let head = "name: solve\nretry: {max_attempts: 1}\ndatasets: [{path: tasks}]\n";
    project.write_file("job.yaml", &format!("{head}{}", text(1000.0)));
    let result = run(&project, ExitCode::Success);
    assert_eq!(count(&result, "completed_trials"), ATTEMPTS, "{result:#}");
    assert_cost_is_billed(&result, &server);
    model_calls::assert_key_is_in_no_file(project.path());
}

#[test]
fn try_over_its_budget_fails_as_its_agent_and_has_no_reward_in_sandbox() {
    let server = ModelServer::start_scripted(task());
    let project = project(&job(&server, 1, "{try: {calls: 1}}"));
    run(&project, ExitCode::Success);
    let trial = project.results("solve").trial("shell", "t");
    let error = &trial.result["error"];
    assert_eq!((&error["code"], &error["class"]), (&json!("budget_exceeded"), &json!("agent")));
    assert!(trial.message().contains("2 of 1 calls"), "{error:#}");
    assert_eq!(trial.reward(), None, "{:#}", trial.result);
    assert_eq!(server.calls().len(), 1, "the second call was not sent");
    let lines = model_calls::lines(&trial);
    let refused = model_calls::of_type(&lines, "ended")[1];
    assert_eq!((&refused["status"], &refused["attempts"]), (&json!(403), &json!([])));
}

#[test]
fn budget_in_money_needs_a_price_of_the_model() {
    let server = ModelServer::start_scripted(task());
    let project = project(&job(&server, 1, "{try: {cost: 1}}").replace(PRICES, ""));
    let mut command = project.command(&["run", "job.yaml"]);
    command.env("MODEL_KEY", REAL_KEY);
    let ended = project.start(command).wait(DEADLINE).expect_code(ExitCode::Config);
    assert!(ended.stderr.contains("the model `scripted` without a price"), "{}", ended.stderr);
    assert!(server.calls().is_empty());
}
