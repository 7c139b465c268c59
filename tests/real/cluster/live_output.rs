//! Output of a trial on a worker, followed over NATS.

use rollout_protocol::exit::ExitCode;
use rollout_tests::live_output::{assert_followed, write_talking_job};
use rollout_tests::wait;

use crate::cluster::{DEADLINE, assert_no_leaks, cluster};

#[test]
fn output_of_trial_on_worker_is_followed_over_nats() {
    let Some(cluster) = cluster() else { return };
    let project = &cluster.project;
    write_talking_job(project);
    let worker = cluster.worker("a", 1).started();
    let mut coordinator = cluster.coordinator("job.yaml").started();
    let directory = project.results("talks").path().display().to_string();
    let plan = project.results("talks").path().join("plan.json");
    wait::until(DEADLINE, "the plan", || plan.exists());
    let mut follower = cluster.command(&["logs", &directory, "talker", "--follow"]);
    wait::until(DEADLINE, "output", || follower.stdout().contains("line 9 of"));
    assert!(coordinator.is_running() && !follower.has_ended(), "printed while the trial runs");
    let alone = project.rollout(&["logs", &directory, "talker", "--follow"]).wait(DEADLINE);
    assert!(alone.stderr.contains("name the server"), "{}", alone.stderr);
    let _ended = coordinator.wait(DEADLINE).expect_code(ExitCode::Success);
    let printed = follower.wait(DEADLINE).expect_code(ExitCode::Success).stdout;
    assert_followed(&printed, "none");
    assert_no_leaks(&cluster, &["talks"], [worker]);
}
