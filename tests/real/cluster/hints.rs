//! Hints of runs on workers that name a command: run as printed, each does what it says.

use rollout_protocol::exit::ExitCode;
use rollout_tests::live_counter::LiveCounter;
use rollout_tests::load::Load;
use rollout_tests::wait;

use crate::cluster::{DEADLINE, assert_no_leaks, assert_undisturbed, cluster};

#[test]
fn hint_of_run_on_workers_resumes_it_on_them() {
    for names_server in [true, false] {
        let Some(cluster) = cluster() else { return };
        let counter = LiveCounter::start();
        let load = Load { at_once: 2, ..Load::new("hinted", 8, (0.5, 1.0)) };
        load.write(&cluster.project, &counter);
        let worker = cluster.worker("a", 2).started();
        let coordinator = cluster.coordinator(&load.file());
        let mut coordinator = match names_server {
            true => coordinator.started(),
            false => {
                let coordinator = coordinator.without_option("--nats");
                coordinator.with_variable("ROLLOUT_NATS_URL", &cluster.server.url()).started()
            }
        };
        let results = cluster.project.results("hinted");
        wait::until(DEADLINE, "a result", || results.trial_count() > 0);
        let stopped = coordinator.terminate(DEADLINE).expect_code(ExitCode::Cancelled);
        let resumed = cluster.paste(&stopped.hinted_command()).wait(DEADLINE);
        let _ended = resumed.expect_code(ExitCode::Success);
        assert_undisturbed(&cluster, &load);
        assert_no_leaks(&cluster, &["hinted"], [worker]);
    }
}
