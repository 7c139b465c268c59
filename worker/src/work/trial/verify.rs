//! Verification: fresh directories, the tests, the test script.

use std::sync::Arc;

use rollout_environment::{CommandExit, Environment, Upload};
use rollout_gateway::agents::bash;
use rollout_protocol::spec::task::{StepSpec, TestExit};
use rollout_protocol::spec::timeout::seconds;

use super::TrialContext;
use super::setup;
use crate::executor::errors::ScriptError;
use crate::executor::{COPY_LIMIT, Capture, NormalExit, TaskFiles, with_timeout};
use crate::verifier::{TEST_SCRIPT, TESTS_DIR, fresh_logs};
use crate::work::agent::{PlannedScript, ScriptEnv, ScriptFailure, ScriptWork, run_script};

/// Places `uploads` and then a step's tests, and runs the tests.
pub(super) async fn run_tests(
    ctx: &TrialContext,
    files: &TaskFiles,
    (environment, step): (&dyn Environment, &StepSpec),
    mut uploads: Vec<Upload>,
    env: ScriptEnv,
    capture: Arc<Capture>,
) -> Result<CommandExit, ScriptFailure> {
    uploads.extend(fresh_logs());
    let mut tests = None;
    if let Some(blob) = &step.files.tests
        && !setup::has_tests_in_image(step)
    {
        let part =
            tests.insert(files.archive("the tests", blob).await.map_err(ScriptError::Files)?);
        let tar = part.path().to_owned();
        uploads.push(Upload::Archive { path: TESTS_DIR.to_owned(), tar });
    }
    let placed = with_timeout(COPY_LIMIT, "placing the tests", environment.copy_to(uploads));
    placed.await.map_err(|failure| ScriptError::Place { what: "the tests", failure })?;
    drop(tests);
    let tests = PlannedScript {
        work: ScriptWork::Command(bash(TEST_SCRIPT.to_owned())),
        env,
        workdir: None,
        user: step.verifier.user.clone(),
        limit: seconds(step.verifier.timeout_sec),
        normal: match ctx.task.rules.test_exit {
            TestExit::MustBeZero => NormalExit::Zero,
            TestExit::Ignored => NormalExit::AnyCode,
        },
        keep_processes: false,
        clock: None,
        told: None,
    };
    run_script(environment, tests, capture).await
}
