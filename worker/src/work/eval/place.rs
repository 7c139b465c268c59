//! The environment of one execution, from its creation to its removal.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::environment::{
    CreateRequest, Environment, Failure, FailureKind, Image, ImageRequest, Provider,
};
use crate::executor::teardown;
use crate::supervise::{self, Task};

/// Longest that creating and starting an environment may take. Docker needs a fifth of a second,
/// and a minute when sixty start at once.
const START_LIMIT: Duration = Duration::from_secs(600);

/// How much longer an environment that came too late is waited for, to be removed.
const LATE_LIMIT: Duration = Duration::from_secs(60);

/// How much later than the provider we give up on an image: it knows more about what went wrong.
const GRACE: Duration = Duration::from_secs(10);

/// Where an execution's environment is. It does not go by itself: [`Place::remove`] has to be
/// called, whatever happened.
#[derive(Default)]
pub struct Place {
    state: State,
    created: Option<Instant>,
}

#[derive(Default)]
enum State {
    #[default]
    None,
    /// On its way: it must be waited for and removed, whatever happens meanwhile.
    Creating(Task<Result<Box<dyn Environment>, Failure>>),
    Up(Box<dyn Environment>),
}

/// Why an environment is not there.
#[derive(Debug)]
pub enum NotThere {
    /// The provider's answer, or none in time.
    Failed(Failure),
    /// The provider has a defect, and said this.
    Panicked(String),
}

/// What came of a removal.
#[derive(Debug, Default)]
pub struct Removed {
    /// Why an environment that was still on its way did not come.
    pub not_there: Option<NotThere>,
    /// Why something may be left.
    pub failure: Option<Failure>,
}

/// Makes an image present, and gives up on a provider that does not answer.
///
/// # Errors
/// [`Failure`].
pub async fn prepare(provider: &dyn Provider, request: ImageRequest) -> Result<Image, Failure> {
    let limit = request.timeout.saturating_add(GRACE);
    let late = || Failure::new(FailureKind::TimedOut, "no answer in time");
    let prepared = tokio::time::timeout(limit, provider.prepare(request)).await;
    prepared.unwrap_or_else(|_| Err(late()))
}

impl Place {
    /// Creates the environment and waits for it. May be given up at any moment.
    ///
    /// # Errors
    /// [`NotThere`].
    pub async fn create(
        &mut self,
        provider: Arc<dyn Provider>,
        request: CreateRequest,
    ) -> Result<(), NotThere> {
        let creating = async move { provider.create(request).await };
        self.state = State::Creating(supervise::spawn("environment creation", creating));
        self.arrive(START_LIMIT).await
    }

    /// The environment, when it is there.
    pub fn up(&self) -> Option<&dyn Environment> {
        match &self.state {
            State::Up(environment) => Some(environment.as_ref()),
            State::None | State::Creating(_) => None,
        }
    }

    /// When it was there first.
    pub fn created(&self) -> Option<Instant> {
        self.created
    }

    /// Whether there is nothing to be removed.
    pub fn is_empty(&self) -> bool {
        matches!(self.state, State::None)
    }

    /// Waits for the environment that is being created, if there is one.
    async fn arrive(&mut self, limit: Duration) -> Result<(), NotThere> {
        let State::Creating(creating) = &mut self.state else { return Ok(()) };
        let Ok(ended) = tokio::time::timeout(limit, creating).await else {
            let message = format!("the environment was not there after {limit:?}");
            return Err(NotThere::Failed(Failure::new(FailureKind::TimedOut, message)));
        };
        self.state = State::None;
        match ended {
            Ok(Ok(environment)) => {
                self.created = Some(Instant::now());
                self.state = State::Up(environment);
                Ok(())
            }
            Ok(Err(failure)) => Err(NotThere::Failed(failure)),
            Err(panicked) => Err(NotThere::Panicked(panicked.message)),
        }
    }

    /// Removes the environment, also one that is still on its way.
    pub async fn remove(&mut self) -> Removed {
        let not_there = self.arrive(LATE_LIMIT).await.err();
        let failure = match &self.state {
            State::None => None,
            State::Creating(_) => {
                let message = "the environment is still being created: it is left to the reaper";
                Some(Failure::new(FailureKind::LeftBehind, message))
            }
            State::Up(environment) => teardown(environment.as_ref(), false).await.failure,
        };
        Removed { not_there, failure }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Place").field(&self.up()).finish()
    }
}
