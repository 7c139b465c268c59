//! Verification: fresh directories, the tests, the test script. The reward is read when `/logs` is
//! collected, in the same transfer.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollout_protocol::spec::timeout::seconds;

use super::TrialContext;
use super::execute::{Unwell, script};
use super::failure::ScriptError;
use super::files::TaskFiles;
use crate::agent::bash;
use crate::environment::{Environment, Upload};
use crate::exec::{self, Capture};
use crate::verifier::{TEST_SCRIPT, TESTS_DIR, VERIFIER_LOGS};

/// Runs the task's tests.
pub(super) async fn verify(
    ctx: &TrialContext,
    files: &TaskFiles,
    environment: &dyn Environment,
    env: BTreeMap<String, String>,
    capture: Arc<Capture>,
) -> Result<(), Unwell> {
    if ctx.settings.verifier.kill_agent_processes
        && let Some(failure) = exec::kill(environment).await
    {
        return Err(ScriptError::Left(failure).into());
    }
    let mut uploads = vec![Upload::FreshDir { path: VERIFIER_LOGS.to_owned() }];
    let mut tests = None;
    if let Some(blob) = &ctx.step().files.tests {
        let part =
            tests.insert(files.archive("the tests", blob).await.map_err(ScriptError::Files)?);
        let tar = part.path().to_owned();
        uploads.push(Upload::Archive { path: TESTS_DIR.to_owned(), tar });
    }
    let placed =
        super::within(super::COPY_LIMIT, "placing the tests", environment.copy_to(uploads));
    placed.await.map_err(ScriptError::Place)?;
    drop(tests);
    let limit = seconds(ctx.step().verifier.timeout_sec);
    script(environment, bash(TEST_SCRIPT.to_owned()), env, limit, capture).await
}
