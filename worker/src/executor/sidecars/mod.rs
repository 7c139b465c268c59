//! Services beside an environment: started before it, ready before any script runs, and stopped
//! after it is gone, on every path.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use rollout_base::supervise::panic_message;
use rollout_environment::{CreateRequest, Environment, Failure, FailureKind};

use super::context::with_timeout;

/// Longest time for a service to start, and again to become ready.
const START_LIMIT: Duration = Duration::from_secs(600);

/// Longest time for a service to stop.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// A service beside an environment. Every call may be cancelled at any moment; [`Sidecar::stop`]
/// follows in every case, also after a failed start.
///
/// A service that the provider itself runs only changes the request. Its files are found by
/// [`Environment::service`].
#[async_trait]
pub trait Sidecar: Send + Sync + fmt::Debug {
    /// Its name, for messages.
    fn name(&self) -> &str;

    /// Starts the service, and adds to the request what its environment needs for it.
    ///
    /// # Errors
    /// [`Failure`]: the environment is not created then.
    async fn start(&mut self, request: &mut CreateRequest) -> Result<(), Failure>;

    /// Waits until scripts in the environment can use the service.
    ///
    /// # Errors
    /// [`Failure`]: nothing runs in the environment then.
    async fn ready(&mut self, environment: &dyn Environment) -> Result<(), Failure> {
        let _ready_with_it = environment;
        Ok(())
    }

    /// Variables of the scripts that use the service. They replace others of the same names.
    fn env(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// Stops the service, if it runs.
    ///
    /// # Errors
    /// [`Failure`] when something may be left; it is stopped again then.
    async fn stop(&mut self) -> Result<(), Failure> {
        Ok(())
    }
}

/// The services beside one environment, in the order in which they start.
#[derive(Debug, Default)]
pub(super) struct Sidecars {
    services: Vec<Box<dyn Sidecar>>,
}

impl Sidecars {
    /// Starts services one after the other. Those started before a failure keep running until they
    /// are stopped.
    pub(super) async fn start(
        &mut self,
        services: Vec<Box<dyn Sidecar>>,
        request: &mut CreateRequest,
    ) -> Result<(), Failure> {
        for service in services {
            self.services.push(service);
            let Some(service) = self.services.last_mut() else { continue };
            let action = format!("starting the service `{}`", service.name());
            with_timeout(START_LIMIT, &action, service.start(request)).await?;
        }
        Ok(())
    }

    /// Waits until every service is ready.
    pub(super) async fn ready(&mut self, environment: &dyn Environment) -> Result<(), Failure> {
        for service in &mut self.services {
            let action = format!("waiting for the service `{}`", service.name());
            with_timeout(START_LIMIT, &action, service.ready(environment)).await?;
        }
        Ok(())
    }

    /// The variables of all services; of equal names, the last service wins.
    pub(super) fn env(&self) -> BTreeMap<String, String> {
        self.services.iter().flat_map(|service| service.env()).collect()
    }

    /// Stops all services, the last first. Those that may still run are kept, to be stopped again.
    /// Returns the first failure.
    pub(super) async fn stop(&mut self) -> Option<Failure> {
        let mut first = None;
        for index in (0..self.services.len()).rev() {
            let service = &mut self.services[index];
            let action = format!("stopping the service `{}`", service.name());
            let stopping = with_timeout(STOP_LIMIT, &action, service.stop());
            let failure = match AssertUnwindSafe(stopping).catch_unwind().await {
                Ok(stopped) => stopped.err(),
                Err(panic) => Some(Failure::new(FailureKind::Bug, panic_message(panic.as_ref()))),
            };
            match failure {
                None => drop(self.services.remove(index)),
                Some(failure) => first = first.or(Some(failure)),
            }
        }
        first
    }

    /// Whether no service is left to stop.
    pub(super) fn is_empty(&self) -> bool {
        self.services.is_empty()
    }
}

#[cfg(test)]
mod tests;
