//! Executors of trials: the contract suite on a run of this process and on a mock, and runs of plans
//! by references.

use std::path::Path;
use std::sync::Arc;

use rollout_coordinator::executor::{RunExecutor, TrialExecutor as _, run_plan, write_tables};
use rollout_protocol::executor::StartTrial;
use rollout_protocol::record::ItemOutcome;
use rollout_protocol::wire::control::StopLevel;
use rollout_store::MemoryStore;
use rollout_tests::executor::mock::MockExecutor;
use rollout_tests::executor::{self, WAITS, WRITES, contract};
use rollout_tests::project::Project;
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_rollout-under-test");

fn project() -> Project {
    executor::write_job(Project::new(PROGRAM))
}

async fn open(project: &Project) -> RunExecutor {
    let store = project.path().join("store");
    let request = executor::request(project, PROGRAM, &store, None);
    RunExecutor::open(request).await.expect("an executor")
}

/// The rows of a table.
fn rows(tables: &Path, name: &str) -> Vec<Value> {
    let path = tables.join(format!("{name}.jsonl"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).expect("a row")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_executor_passes_contract() {
    let project = project();
    let executor = open(&project).await;
    let (run, plan) = (executor.run(), Arc::clone(executor.plan()));
    let trials = contract::run_all(&executor, &plan).await;
    let outcome = executor.finish().await.expect("finished");
    assert!(!outcome.cancelled, "every trial of the plan is settled");
    let out = project.path().join("out");
    write_tables(run, &plan, &trials, &out).expect("tables");
    let own = outcome.run_dir.join("tables");
    for table in ["trials", "tries", "metrics_long", "event_counts_by_trial", "agent_summary"] {
        assert_eq!(rows(&out, table), rows(&own, table), "{table}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn executor_opened_again_has_results_of_earlier_session() {
    let project = project();
    let executor = open(&project).await;
    let planned = |agent: &str, executor: &RunExecutor| {
        let trial = executor.plan().trials().find(|trial| trial.name.agent == agent);
        let trial = trial.expect("a planned trial");
        StartTrial { trial: trial.name, spec: trial.trial_ref }
    };
    let (writes, waits) = (planned(WRITES, &executor), planned(WAITS, &executor));
    for start in [&writes, &waits] {
        executor.start_trial(start.clone()).await.expect("started");
    }
    let mut end = executor.trial_events(writes.item(), 0);
    assert!(futures_util::StreamExt::next(&mut end).await.is_none());
    let settled = executor.trial_status(writes.item()).await.expect("started");
    let outcome = executor.stop(StopLevel::Kill).await.expect("stopped");
    assert!(outcome.cancelled);

    let executor = open(&project).await;
    assert_eq!(executor.trial_status(writes.item()).await.expect("known"), settled);
    executor.start_trial(writes.clone()).await.expect("it is settled");
    executor.start_trial(waits.clone()).await.expect("started again");
    executor.cancel_trial(waits.item()).await.expect("cancelled");
    let outcome = executor.finish().await.expect("finished");
    assert!(outcome.cancelled, "a trial of the plan was never started");
    assert_eq!(outcome.report.tally.settled(), 2);
}

#[tokio::test]
async fn mock_executor_passes_contract() {
    let (project, store) = (project(), MemoryStore::default());
    let plan = executor::plan(&project, Arc::new(store.clone())).await;
    let trials = plan.trials().map(|trial| (trial.name, trial.trial_ref));
    let executor = MockExecutor::new(store, trials);
    contract::run_all(&executor, &plan).await;
}

#[tokio::test]
async fn plan_on_mock_gives_tables_by_references_alone() {
    let (project, store) = (project(), MemoryStore::default());
    let plan = executor::plan(&project, Arc::new(store.clone())).await;
    let trials = plan.trials().map(|trial| (trial.name, trial.trial_ref));
    let executor = MockExecutor::new(store, trials).ending_all();
    let trials = run_plan(&executor, &plan, 8).await.expect("every trial ends");
    let outcomes: Vec<_> = trials.iter().map(|t| t.settlement.verdict.outcome).collect();
    use ItemOutcome::{Cancelled, Completed};
    assert_eq!(outcomes, [Completed, Completed, Cancelled]);
    assert_eq!(trials.iter().map(|trial| trial.events).collect::<Vec<_>>(), [0, 3, 0]);
    assert!(trials[0].output.is_some() && trials[2].output.is_none());

    let out = project.path().join("out");
    write_tables(executor.run(), &plan, &trials, &out).expect("tables");
    assert_eq!(executor.reads(), 0, "tables need no content");
    assert!(!project.path().join("jobs").exists(), "there is no run directory");
    let rows = rows(&out, "trials");
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[1]["outcome"], "completed", "{:#}", rows[1]);
    assert_eq!(rows[1]["run_id"], executor.run().to_string().as_str(), "{:#}", rows[1]);
}
