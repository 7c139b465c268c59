//! Verification: fresh directories, the tests, the test script.

use std::sync::Arc;

use rollout_protocol::spec::task::{StepSpec, TestExit};
use rollout_protocol::spec::timeout::seconds;

use super::TrialContext;
use super::execute::{Script, Unwell, script};
use super::setup;
use super::variables::Variables;
use crate::agents::bash;
use crate::environment::{Environment, CommandExit, Upload};
use crate::executor::errors::ScriptError;
use crate::executor::{COPY_LIMIT, Capture, Normal, TaskFiles, within};
use crate::verifier::{TEST_SCRIPT, TESTS_DIR, fresh_logs};

/// Places `uploads` and then a step's tests, and runs them.
pub(super) async fn verify(
    ctx: &TrialContext,
    files: &TaskFiles,
    (environment, step): (&dyn Environment, &StepSpec),
    mut uploads: Vec<Upload>,
    env: Variables,
    capture: Arc<Capture>,
) -> Result<CommandExit, Unwell> {
    uploads.extend(fresh_logs());
    let mut tests = None;
    if let Some(blob) = &step.files.tests
        && !setup::has_tests(step)
    {
        let part =
            tests.insert(files.archive("the tests", blob).await.map_err(ScriptError::Files)?);
        let tar = part.path().to_owned();
        uploads.push(Upload::Archive { path: TESTS_DIR.to_owned(), tar });
    }
    let placed = within(COPY_LIMIT, "placing the tests", environment.copy_to(uploads));
    placed.await.map_err(|failure| ScriptError::Place { what: "the tests", failure })?;
    drop(tests);
    let tests = Script {
        argv: bash(TEST_SCRIPT.to_owned()),
        env,
        user: step.verifier.user.clone(),
        limit: seconds(step.verifier.timeout_sec),
        normal: match ctx.task.rules.test_exit {
            TestExit::MustBeZero => Normal::Zero,
            TestExit::Ignored => Normal::AnyCode,
        },
        spares: false,
    };
    script(environment, tests, capture).await
}
