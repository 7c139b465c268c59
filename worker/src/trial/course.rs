//! The phases up to verification: setup, install, execute, verify.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use rollout_protocol::error::{ErrorType, TrialError};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::EnvironmentRecord;
use rollout_protocol::spec::timeout::seconds;
use tokio::time::Instant;

use super::execute::{self, Unwell};
use super::failure::{self, ScriptError, SetupError, Stage};
use super::run::{Place, Run, killed};
use super::{setup, verify};
use crate::agent::{INSTRUCTION_VARIABLE, Plan};
use crate::environment::{CreateRequest, Environment, Failure, FailureKind, Provider};
use crate::exec::Capture;
use crate::supervise::{self, Panicked, panic_message};

/// Longest that creating and starting an environment may take. Docker needs a fifth of a second,
/// and a minute when sixty start at once.
const START_LIMIT: Duration = Duration::from_secs(600);

/// How far the phases up to verification came.
pub(super) enum Course {
    /// To their end, or to the first error.
    Ran,
    /// To the end of a phase that was not the last.
    Drained,
    /// As far as they had come.
    Killed,
}

/// Why the phases do not go on.
enum Halt {
    Failed(TrialError),
    Drained,
}

impl From<TrialError> for Halt {
    fn from(error: TrialError) -> Self {
        Self::Failed(error)
    }
}

impl Run<'_> {
    /// Runs the phases up to verification.
    pub(super) async fn course(&mut self, plan: Plan) -> Course {
        let stop = self.ctx.stop.clone();
        let ended = tokio::select! {
            biased;
            () = killed(stop) => return Course::Killed,
            ended = AssertUnwindSafe(self.phases(plan)).catch_unwind() => ended,
        };
        let course = match ended {
            Ok(Ok(())) => Course::Ran,
            Ok(Err(Halt::Drained)) => Course::Drained,
            Ok(Err(Halt::Failed(error))) => {
                let unexpected = error.kind == ErrorType::InternalError;
                let phase = if unexpected { self.timing.phase() } else { error.phase };
                self.fail(error.in_phase(phase));
                Course::Ran
            }
            Err(panic) => {
                self.panicked(&panic_message(panic.as_ref()));
                Course::Ran
            }
        };
        self.timing.leave();
        course
    }

    pub(super) fn panicked(&mut self, message: &str) {
        let error = failure::panicked(message, self.timing.phase(), &self.redactor);
        self.fail(error);
    }

    async fn phases(&mut self, mut plan: Plan) -> Result<(), Halt> {
        let (install, execute) = (plan.install.take(), plan.execute.take());
        self.go_on()?;
        self.enter(Phase::EnvironmentSetup);
        self.setup(&plan).await?;
        self.go_on()?;
        self.enter(Phase::AgentSetup);
        let limit = seconds(self.ctx.task.install_sec);
        self.script(Stage::Install, install, limit).await?;
        self.go_on()?;
        self.enter(Phase::AgentExecution);
        let limit = self.ctx.step().agent.timeout_sec.map_or(Duration::MAX, seconds);
        self.script(Stage::Execute, execute, limit).await?;
        if self.ctx.settings.verifier.disable {
            return Ok(());
        }
        self.go_on()?;
        self.enter(Phase::Verification);
        self.verify().await?;
        self.verified = true;
        Ok(())
    }

    /// Between two phases: stops here when the run is drained.
    fn go_on(&mut self) -> Result<(), Halt> {
        self.timing.leave();
        if self.ctx.stop.borrow().is_some() { Err(Halt::Drained) } else { Ok(()) }
    }

    async fn setup(&mut self, plan: &Plan) -> Result<(), TrialError> {
        let expanded =
            self.services.variables.expand(&self.ctx.task.environment.env, &self.ctx.agent.env);
        let expanded =
            expanded.map_err(|unset| SetupError::Unset(unset).into_error(&self.redactor))?;
        self.redactor = expanded.redactor;
        (self.agent_env, self.verifier_env) = (expanded.agent, expanded.verifier);
        for env in [&mut self.agent_env, &mut self.verifier_env] {
            let instruction = self.ctx.settings.instruction_path.clone();
            env.insert(INSTRUCTION_VARIABLE.to_owned(), instruction);
        }
        let ready = self.ready(plan).await;
        let (provider, request) = ready.map_err(|error| error.into_error(&self.redactor))?;
        self.create(provider, request).await
    }

    /// Prepares everything that the environment is created from.
    async fn ready(
        &mut self,
        plan: &Plan,
    ) -> Result<(Arc<dyn Provider>, CreateRequest), SetupError> {
        let (ctx, files) = (self.ctx, &self.services.files);
        let provider = setup::provider(ctx, self.services)?;
        if !provider.is_in_memory() {
            ctx.create_scratch().await.map_err(SetupError::Disk)?;
        }
        let (source, part) = setup::source(&ctx.task, &ctx.settings, files).await?;
        self.parts.extend(part);
        self.outputs.building = true;
        let log = self.outputs.build_log();
        let image = setup::image(ctx, provider.as_ref(), &source, log).await?;
        self.outputs.building = false;
        let creation = setup::creation(ctx, files, plan, source, image).await?;
        self.parts.extend(creation.parts);
        Ok((provider, creation.request))
    }

    async fn create(
        &mut self,
        provider: Arc<dyn Provider>,
        request: CreateRequest,
    ) -> Result<(), TrialError> {
        let image = request.image.clone();
        let (kind, in_memory) = (provider.kind(), provider.is_in_memory());
        let mut creating = Box::pin(async move { provider.create(request).await });
        // Only a creation that waits needs a task, to be waited for whatever happens meanwhile.
        match in_memory.then(|| creating.as_mut().now_or_never()).flatten() {
            Some(created) => self.arrived(Ok(created))?,
            None => {
                let task = supervise::spawn("environment creation", creating);
                self.place = Place::Creating(task);
                self.arrive(START_LIMIT).await?;
            }
        }
        if let (Place::Up(environment), false) = (&self.place, in_memory) {
            self.environment = Some(EnvironmentRecord {
                provider: kind.to_string(),
                id: environment.id().to_owned(),
                image: image.reference,
                image_made: image.made,
                limits: environment.limits(),
                preserved: None,
            });
        }
        Ok(())
    }

    /// Waits for the environment that is being created, if there is one.
    pub(super) async fn arrive(&mut self, limit: Duration) -> Result<(), TrialError> {
        let Place::Creating(creating) = &mut self.place else { return Ok(()) };
        match tokio::time::timeout(limit, creating).await {
            Ok(ended) => self.arrived(ended),
            Err(_) => {
                let message = format!("the environment was not there after {limit:?}");
                let late = Failure::new(FailureKind::TimedOut, message);
                Err(SetupError::Create(late).into_error(&self.redactor))
            }
        }
    }

    fn arrived(
        &mut self,
        ended: Result<Result<Box<dyn Environment>, Failure>, Panicked>,
    ) -> Result<(), TrialError> {
        self.place = Place::None;
        match ended {
            Ok(Ok(environment)) => {
                self.created = Some(Instant::now());
                self.place = Place::Up(environment);
                Ok(())
            }
            Ok(Err(failure)) => Err(SetupError::Create(failure).into_error(&self.redactor)),
            Err(panicked) => {
                let phase = Phase::EnvironmentSetup;
                Err(failure::panicked(&panicked.message, phase, &self.redactor))
            }
        }
    }

    fn up(&self) -> &dyn Environment {
        match &self.place {
            Place::Up(environment) => environment.as_ref(),
            Place::None | Place::Creating(_) => unreachable!("setup ended well"),
        }
    }

    fn capture(&mut self, stage: Stage) -> Arc<Capture> {
        self.outputs.capture(stage, &self.redactor)
    }

    async fn script(
        &mut self,
        stage: Stage,
        argv: Option<Vec<String>>,
        limit: Duration,
    ) -> Result<(), TrialError> {
        let Some(argv) = argv else { return Ok(()) };
        let (capture, env) = (self.capture(stage), self.agent_env.clone());
        let ended = execute::script(self.up(), argv, env, limit, capture).await;
        self.judge(stage, ended)
    }

    async fn verify(&mut self) -> Result<(), TrialError> {
        let (capture, env) = (self.capture(Stage::Verify), self.verifier_env.clone());
        let files = &self.services.files;
        let ended = verify::verify(self.ctx, files, self.up(), env, capture).await;
        self.judge(Stage::Verify, ended)
    }

    fn judge(&mut self, stage: Stage, ended: Result<(), Unwell>) -> Result<(), TrialError> {
        let Err(Unwell { error, left }) = ended else { return Ok(()) };
        // What the agent left running lives on, and the error itself says so.
        self.tainted |= matches!(error, ScriptError::Left(_));
        if let Some(failure) = left {
            self.tainted = true;
            let phase = self.timing.phase();
            self.later.push(failure::processes_left(&failure, phase, &self.redactor));
        }
        Err(error.into_error(stage, &self.redactor))
    }
}
