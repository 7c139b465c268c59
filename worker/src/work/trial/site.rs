//! One environment of an execution, from its request to its end: whatever happens to the execution
//! meanwhile, it is known that the environment is coming, is there, or is gone.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use rollout_protocol::error::TrialError;
use rollout_protocol::phase::Phase;
use rollout_protocol::record::EnvironmentRecord;
use rollout_protocol::spec::resources::Resources;
use rollout_protocol::spec::task::NetworkPolicy;
use tokio::time::Instant;

use super::failure::{self, SetupError};
use crate::environment::{CreateRequest, Environment, Failure, FailureKind, Provider};
use crate::executor::{Torn, teardown, within};
use crate::secrets::Redactor;
use crate::supervise::{self, Panicked, Task};

/// Longest that creating and starting an environment may take. Docker needs a fifth of a second,
/// and a minute when sixty start at once.
pub(super) const START_LIMIT: Duration = Duration::from_secs(600);

/// How much longer an environment that came too late is waited for, to be removed.
const LATE_LIMIT: Duration = Duration::from_secs(60);

/// Longest a stop of an environment with unkillable processes may take.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// Longest a change of what an environment may reach may take: a few system calls, or the start of
/// a process beside it.
const NETWORK_LIMIT: Duration = Duration::from_secs(60);

/// Where an environment is.
#[derive(Default)]
enum Place {
    #[default]
    None,
    /// On its way: it must be waited for and removed, whatever happens meanwhile.
    Creating(Task<Result<Box<dyn Environment>, Failure>>),
    Up(Box<dyn Environment>),
}

/// An environment, or the place for one.
#[derive(Default)]
pub(super) struct Site {
    place: Place,
    /// When it came into being.
    created: Option<Instant>,
    /// When it was stopped.
    stopped: Option<Instant>,
    resources: Resources,
    /// What it may reach at present, as far as that is known.
    network: Option<NetworkPolicy>,
    pub(super) record: Option<EnvironmentRecord>,
    /// Processes may still be alive: nothing more runs, nothing is read.
    pub(super) tainted: bool,
}

impl Site {
    /// Creates the environment.
    pub(super) async fn create(
        &mut self,
        provider: Arc<dyn Provider>,
        request: CreateRequest,
        redactor: &Redactor,
    ) -> Result<(), TrialError> {
        let image = request.image.clone();
        self.resources = request.resources;
        self.network = Some(request.network.clone());
        let (kind, in_memory) = (provider.kind(), provider.is_in_memory());
        let mut creating = Box::pin(async move { provider.create(request).await });
        // Only a creation that waits needs a task, to be waited for whatever happens meanwhile.
        match in_memory.then(|| creating.as_mut().now_or_never()).flatten() {
            Some(created) => self.arrived(Ok(created), redactor)?,
            None => {
                let task = supervise::spawn("environment creation", creating);
                self.place = Place::Creating(task);
                self.arrive(START_LIMIT, redactor).await?;
            }
        }
        if let (Place::Up(environment), false) = (&self.place, in_memory) {
            self.record = Some(EnvironmentRecord {
                provider: kind.to_string(),
                id: environment.id().to_owned(),
                image: image.reference,
                image_made: image.made,
                image_build: image.build,
                limits: environment.limits(),
                preserved: None,
            });
        }
        Ok(())
    }

    /// Waits for the environment that is being created, if there is one.
    async fn arrive(&mut self, limit: Duration, redactor: &Redactor) -> Result<(), TrialError> {
        let Place::Creating(creating) = &mut self.place else { return Ok(()) };
        match tokio::time::timeout(limit, creating).await {
            Ok(ended) => self.arrived(ended, redactor),
            Err(_) => {
                let message = format!("the environment was not there after {limit:?}");
                let late = Failure::new(FailureKind::TimedOut, message);
                Err(SetupError::Create(late).into_error(redactor))
            }
        }
    }

    fn arrived(
        &mut self,
        ended: Result<Result<Box<dyn Environment>, Failure>, Panicked>,
        redactor: &Redactor,
    ) -> Result<(), TrialError> {
        self.place = Place::None;
        match ended {
            Ok(Ok(environment)) => {
                self.created = Some(Instant::now());
                self.place = Place::Up(environment);
                Ok(())
            }
            Ok(Err(failure)) => Err(SetupError::Create(failure).into_error(redactor)),
            Err(panicked) => {
                Err(failure::panicked(&panicked.message, Phase::EnvironmentSetup, redactor))
            }
        }
    }

    /// The environment, if it is there.
    pub(super) fn environment(&self) -> Option<&dyn Environment> {
        match &self.place {
            Place::Up(environment) => Some(environment.as_ref()),
            Place::None | Place::Creating(_) => None,
        }
    }

    /// The environment, which is there.
    pub(super) fn up(&self) -> &dyn Environment {
        self.environment().expect("it was created")
    }

    /// Whether it ever was there.
    pub(super) fn was_created(&self) -> bool {
        self.created.is_some()
    }

    /// How long it took a host's resources, and which.
    pub(super) fn used(&self) -> Option<(Resources, Duration)> {
        let (created, stopped) = (self.created?, self.stopped.unwrap_or_else(Instant::now));
        Some((self.resources, stopped.saturating_duration_since(created)))
    }

    /// Sets what it may reach, unless that is so already.
    pub(super) async fn reach(&mut self, policy: &NetworkPolicy) -> Result<(), Failure> {
        if self.network.as_ref() == Some(policy) {
            return Ok(());
        }
        // Until it is done, nobody knows.
        self.network = None;
        let what = "changing what the environment may reach";
        within(NETWORK_LIMIT, what, self.up().set_network(policy)).await?;
        self.network = Some(policy.clone());
        Ok(())
    }

    /// Ends everything that runs in it; files stay readable.
    pub(super) async fn stop(&mut self) -> Result<(), Failure> {
        let stopping = self.up().stop();
        within(STOP_LIMIT, "stopping the environment", stopping).await?;
        self.stopped = Some(Instant::now());
        Ok(())
    }

    /// Keeps or removes the environment, also one that is still on its way; the second answer is
    /// why that one never came. What has processes that may still be alive is not kept.
    pub(super) async fn teardown(
        &mut self,
        keep: bool,
        redactor: &Redactor,
    ) -> (Torn, Option<TrialError>) {
        let late = self.arrive(LATE_LIMIT, redactor).await.err();
        let torn = match &self.place {
            Place::None => Torn::default(),
            Place::Creating(_) => {
                let message = "the environment is still being created: it is left to the reaper";
                let failure = Some(Failure::new(FailureKind::LeftBehind, message));
                Torn { preserved: None, failure }
            }
            Place::Up(environment) => teardown(environment.as_ref(), keep && !self.tainted).await,
        };
        if let Some(record) = &mut self.record {
            record.preserved.clone_from(&torn.preserved);
        }
        (torn, late)
    }

    /// Whether there is nothing to keep or remove.
    pub(super) fn is_empty(&self) -> bool {
        matches!(self.place, Place::None)
    }
}
