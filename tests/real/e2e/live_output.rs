//! Output that is followed while its trial runs.

use rollout_protocol::exit::ExitCode;
use rollout_tests::live_output::{assert_followed, write_talking_job};
use rollout_tests::wait;

use crate::e2e::{DEADLINE, project};

const SECRET: &str = "swordfish-77";

#[test]
fn output_of_running_trial_is_followed_without_secrets() {
    let project = project();
    write_talking_job(&project);
    let mut command = project.command(&["run", "job.yaml", "-q"]);
    command.env("TOKEN", SECRET);
    let mut run = project.start(command);
    let plan = project.results("talks").path().join("plan.json");
    wait::until(DEADLINE, "the plan", || plan.exists());
    let follow = |more: &[&str]| {
        project.rollout(&[&["logs", "jobs/talks", "talker"], more, &["--follow"]].concat())
    };
    let (mut all, verifier) = (follow(&[]), follow(&["logs/verifier"]));
    wait::until(DEADLINE, "output", || all.stdout().contains("line 9 of"));
    assert!(!run.has_ended() && !all.has_ended(), "printed while the trial runs");
    let _ended = run.wait(DEADLINE).expect_code(ExitCode::Success);
    let printed = all.wait(DEADLINE).expect_code(ExitCode::Success).stdout;
    assert_followed(&printed, "[redacted:TOKEN]");
    assert!(!printed.contains(SECRET), "{printed}");
    let printed = verifier.wait(DEADLINE).expect_code(ExitCode::Success).stdout;
    assert!(printed.contains("tested") && !printed.contains("line"), "{printed}");
    // Afterwards it prints what is recorded.
    let again = follow(&[]).wait(DEADLINE).expect_code(ExitCode::Success).stdout;
    assert_followed(&again, "[redacted:TOKEN]");
}
