//! The wait between the creation of an environment and its first command, for all kinds of work: for a
//! healthcheck, of the task or of the image, or for the programs that it runs by itself.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rollout_base::dependency;
use rollout_environment::{
    Environment, Failure, FailureKind, OutputSink, OutputStream, OwnHealthcheck, start,
};
use rollout_protocol::record::{StartWait, StartWaitEnd};
use rollout_protocol::spec::task::TaskEnvironment;
use rollout_protocol::spec::timeout::seconds;
use tokio::time::Instant;

use super::health::{self, HealthProbe};
use crate::executor::errors::SetupError;
use crate::executor::{self, Capture, ManagedEnvironment, NormalExit, ScriptEnd};

/// Looks at an environment in which no command could be started, and the time between two.
const LOOKS_AFTER_REFUSAL: u32 = 6;
const LOOK_INTERVAL: Duration = Duration::from_millis(300);

/// Most bytes of an observation that are kept.
const MAX_PRINTED: usize = 1024;

/// The hints for a healthcheck of an image that fails: a search has none of its own.
const TASK_HINT: &str = "; the CMD of the image does not run here: a healthcheck or a \
    start_grace_sec of the task replaces this wait; a program of its ENTRYPOINT runs";
const SEARCH_HINT: &str = "; the CMD of the image does not run here: a start_grace_sec of the \
    environment replaces this wait; a program of its ENTRYPOINT runs";

/// The description of an environment that is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) enum DeclaredStart<'a> {
    /// By a task.
    Task(&'a TaskEnvironment),
    /// By a search.
    Search(&'a TaskEnvironment),
}

impl<'a> DeclaredStart<'a> {
    const fn environment(self) -> &'a TaskEnvironment {
        match self {
            Self::Task(environment) | Self::Search(environment) => environment,
        }
    }

    /// The hint for a healthcheck of the image that fails.
    const fn image_hint(self) -> &'static str {
        match self {
            Self::Task(_) => TASK_HINT,
            Self::Search(_) => SEARCH_HINT,
        }
    }
}

/// Waits until an environment can be used, and records the wait.
pub(super) async fn wait_until_ready(
    environment: &mut ManagedEnvironment,
    declared: DeclaredStart<'_>,
    capture: impl Fn() -> Arc<Capture>,
) -> Result<(), SetupError> {
    let began = Instant::now();
    let mut waited = None;
    let without_observation = |until| StartWait {
        until,
        waited_sec: began.elapsed().as_secs_f64(),
        processes: None,
        sockets: None,
    };
    let TaskEnvironment { healthcheck, start_grace_sec, .. } = declared.environment();
    if let Some(check) = healthcheck {
        health::wait_until_healthy(environment, &HealthProbe::from(check), capture).await?;
        waited = Some(without_observation(StartWaitEnd::Healthcheck));
    } else if let Some(grace) = *start_grace_sec {
        if grace > 0.0 {
            tokio::time::sleep(seconds(grace)).await;
            if environment.expect_running().has_own_programs() {
                check_running(environment.expect_running()).await?;
            }
            waited = Some(without_observation(StartWaitEnd::Grace));
        }
    } else if let Some(check) = environment.expect_running().own_healthcheck() {
        let mut wait = without_observation(StartWaitEnd::Healthcheck);
        wait.waited_sec = match check {
            OwnHealthcheck::Awaited(before) => before.as_secs_f64(),
            OwnHealthcheck::OfImage(check) => {
                let check = HealthProbe::of_image(&check, declared.image_hint());
                wait_for_image(environment, &check, capture).await?;
                began.elapsed().as_secs_f64()
            }
        };
        waited = Some(wait);
    } else if environment.expect_running().has_own_programs() {
        waited = observe(environment.expect_running()).await?;
    }
    if let Some(record) = &mut environment.record {
        record.start_wait = waited;
    }
    Ok(())
}

/// Waits for the healthcheck of the image, as long as services of a compose file are waited for.
async fn wait_for_image(
    environment: &ManagedEnvironment,
    check: &HealthProbe,
    capture: impl Fn() -> Arc<Capture>,
) -> Result<(), SetupError> {
    let (limit, hint) = (start::HEALTHY_WITHIN, check.hint);
    let engine = environment.expect_running().dependency();
    let waiting = health::wait_until_healthy(environment, check, capture);
    dependency::within(engine, limit, waiting).await.unwrap_or_else(|| {
        let message = format!("the {} did not succeed in {limit:?}{hint}", check.name);
        Err(SetupError::Create(Failure::new(FailureKind::Unusable, message)))
    })
}

/// Waits until the programs of an environment have settled. `None` if they cannot be observed: the
/// environment may have another shell.
async fn observe(environment: &dyn Environment) -> Result<Option<StartWait>, SetupError> {
    let printed = Arc::new(PrintedText::default());
    let ran = executor::run_command(
        environment,
        start::observation(),
        start::OBSERVED_WITHIN,
        printed.clone(),
        NormalExit::AnyCode,
    )
    .await;
    if let Some(left) = ran.processes_left {
        return Err(SetupError::Create(left));
    }
    // The observation ends with the environment, too, of which an engine may know a moment later.
    let looks = match ran.end {
        ScriptEnd::Failed(failure) if failure.kind != FailureKind::NotStarted => {
            return Err(SetupError::Create(failure));
        }
        ScriptEnd::Failed(_) => LOOKS_AFTER_REFUSAL,
        ScriptEnd::Exited(_) | ScriptEnd::TimedOut => 1,
    };
    let waited = start::observed(&printed.text());
    if waited.is_none() {
        for look in 0..looks {
            if look > 0 {
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
            check_running(environment).await?;
        }
        tracing::debug!(environment = environment.id(), "cannot observe its own programs");
    }
    Ok(waited)
}

async fn check_running(environment: &dyn Environment) -> Result<(), SetupError> {
    environment.check_running().await.map_err(SetupError::Create)
}

/// The beginning of the standard output of a command.
#[derive(Debug, Default)]
struct PrintedText(Mutex<Vec<u8>>);

impl PrintedText {
    fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl OutputSink for PrintedText {
    fn write(&self, stream: OutputStream, bytes: &[u8]) {
        if stream == OutputStream::Stdout {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let room = MAX_PRINTED.saturating_sub(kept.len());
            kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }
}
