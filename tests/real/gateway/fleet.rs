//! Limits of model servers that workers share.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use rollout_protocol::exit::ExitCode;
use rollout_tests::cluster::Cluster;
use rollout_tests::model_calls::REAL_KEY;
use rollout_tests::model_server::ModelServer;
use rollout_tests::wait;

use crate::gateway::DEADLINE;
use crate::gateway::fixture::project;

/// Calls at once of the whole run.
const LIMIT: usize = 3;

/// Trials, and calls of each.
const TRIALS: usize = 8;
const CALLS: usize = 3;

#[test]
fn workers_share_the_calls_at_once_of_a_server_in_sandbox() {
    let server = ModelServer::start(Duration::ZERO);
    server.hold_answers();
    let agent = format!(
        "for number in range({CALLS}):\n    status, reply = call('x%d' % number, chat('x'))\n    \
         assert status == 200, reply\n"
    );
    let project = project(&server, &agent, ", max_concurrent: 3, hold_sec: 200", "");
    let path = project.path().join("job.yaml");
    let job = fs::read_to_string(&path).expect("a job");
    let more = format!("n_attempts: {TRIALS}\nn_concurrent_trials: {TRIALS}\n");
    fs::write(&path, more + &job).expect("written");
    let Some(cluster) = Cluster::new(project) else { return };
    let slots = u32::try_from(TRIALS / 2).expect("a few");
    let key = ("MODEL_KEY", REAL_KEY);
    let mut workers = ["a", "b"].map(|id| {
        cluster
            .worker(id, slots)
            .with_option("--trial-env", key.0)
            .with_variable(key.0, key.1)
            .started()
    });
    let mut run = cluster.coordinator("job.yaml").with_variable(key.0, key.1).started();

    for answered in 0..TRIALS * CALLS {
        // The last trials make their calls one after the other.
        let open = if answered < TRIALS { LIMIT } else { 1 };
        wait::until(DEADLINE, "calls are open", || {
            let seen = server.calls().len();
            assert!(seen - answered <= LIMIT, "{seen} calls, {answered} of them answered");
            seen - answered >= open
        });
        server.answer(1);
    }
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Success);
    let trials = cluster.project.results("calls").trials();
    assert_eq!(trials.len(), TRIALS);
    let hosts: BTreeSet<_> =
        trials.iter().map(|trial| trial.result["worker"].to_string()).collect();
    assert_eq!(hosts.len(), 2, "both workers had calls");
    workers.iter_mut().for_each(|worker| drop(worker.terminate(DEADLINE)));
}
