//! The fake's environments.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::Arc;

use async_trait::async_trait;
use rollout_protocol::record::LimitsHeld;
use rollout_protocol::spec::task::NetworkPolicy;

use super::{Call, FakeProvider, LIMITS, Life, Place, can_hold, shell};
use crate::dependency::Dependency;
use crate::environment::{
    ByteStream, Command, Environment, Exit, Failure, FailureKind, Output, Upload,
};

/// An environment in memory.
#[derive(Debug)]
pub(super) struct FakeEnvironment {
    provider: FakeProvider,
    id: String,
    workdir: String,
    services: BTreeMap<String, FakeEnvironment>,
}

impl FakeEnvironment {
    pub(super) fn new(
        provider: FakeProvider,
        id: String,
        workdir: String,
        services: &[String],
    ) -> Self {
        let beside = |name: &String| {
            let id = format!("{id}/{name}");
            (name.clone(), Self::new(provider.clone(), id, workdir.clone(), &[]))
        };
        let services = services.iter().map(beside).collect();
        Self { provider, id, workdir, services }
    }

    /// Ends the environment and its services.
    fn end(&self, life: Life) {
        let mut state = self.provider.lock();
        let below = format!("{}/", self.id);
        let places = state.environments.iter_mut();
        let ours = places.filter(|(id, _)| **id == self.id || id.starts_with(&below));
        ours.for_each(|(_, place)| place.end(life));
    }

    /// Runs `work` on the environment, which must not be gone.
    fn with<T>(&self, work: impl FnOnce(&mut Place) -> Result<T, Failure>) -> Result<T, Failure> {
        let mut state = self.provider.lock();
        match state.environments.get_mut(&self.id) {
            Some(place) if place.life != Life::Gone => work(place),
            _ => Err(Failure::new(FailureKind::Gone, format!("{} is gone", self.id))),
        }
    }

    async fn run(&self, command: Command, output: &dyn Output) -> Result<Exit, Failure> {
        let killed = self.with(|place| {
            place.commands.push(command.clone());
            if let Some(user) = command.user.as_ref().filter(|user| user.starts_with("no-such")) {
                let text = format!("there is no user `{user}`");
                return Err(Failure::new(FailureKind::Refused, text));
            }
            if place.life == Life::Up {
                place.running += 1;
                Ok(place.kills.subscribe())
            } else {
                Err(Failure::new(FailureKind::NotStarted, "the environment is stopped"))
            }
        })?;
        let _running = Running(self);
        let place: shell::OnPlace<'_> = &|work| {
            self.with(|place| {
                work(place);
                Ok(())
            })
        };
        let world = shell::World { place, output };
        shell::run(&world, command, killed).await
    }
}

/// Counts a command as running while it lives.
struct Running<'a>(&'a FakeEnvironment);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Ok(mut state) = self.0.provider.state.lock()
            && let Some(place) = state.environments.get_mut(&self.0.id)
        {
            place.running -= 1;
        }
    }
}

#[async_trait]
impl Environment for FakeEnvironment {
    fn dependency(&self) -> Option<&Dependency> {
        self.provider.engine.as_deref()
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn workdir(&self) -> &str {
        &self.workdir
    }

    fn limits(&self) -> LimitsHeld {
        LIMITS
    }

    async fn copy_to(&self, uploads: Vec<Upload>) -> Result<(), Failure> {
        let work = async { self.with(|place| place.files.apply(&uploads)) };
        self.provider.call(Call::CopyTo, work).await
    }

    async fn copy_from(&self, path: &str) -> Result<Option<ByteStream>, Failure> {
        let work = async {
            let tar = self.with(|place| Ok(place.files.archive(path)))?;
            let hostile = self.provider.lock().hostile.clone();
            if let Some(stream) = hostile.and_then(|hostile| hostile(path)) {
                return Ok(stream);
            }
            Ok(tar.map(|bytes| Box::new(Cursor::new(bytes)) as ByteStream))
        };
        self.provider.call(Call::CopyFrom, work).await
    }

    async fn exec(&self, command: Command, output: Arc<dyn Output>) -> Result<Exit, Failure> {
        self.provider.call(Call::Exec, self.run(command, output.as_ref())).await
    }

    async fn kill_processes(&self) -> Result<(), Failure> {
        let work = async {
            self.with(|place| {
                place.kill();
                Ok(())
            })
        };
        self.provider.call(Call::Kill, work).await
    }

    async fn set_network(&self, policy: &NetworkPolicy) -> Result<(), Failure> {
        let work = async {
            self.with(|place| {
                can_hold(policy)?;
                place.networks.push(policy.clone());
                Ok(())
            })
        };
        self.provider.call(Call::SetNetwork, work).await
    }

    fn service(&self, name: &str) -> Option<&dyn Environment> {
        self.services.get(name).map(|service| service as &dyn Environment)
    }

    async fn oom_killed(&self) -> bool {
        let work = async { self.with(|place| Ok(place.oom_killed)) };
        self.provider.call(Call::OomKilled, work).await.unwrap_or(false)
    }

    async fn stop(&self) -> Result<(), Failure> {
        let work = async {
            self.with(|_| Ok(()))?;
            self.end(Life::Stopped);
            Ok(())
        };
        self.provider.call(Call::Stop, work).await
    }

    async fn destroy(&self) -> Result<(), Failure> {
        let work = async {
            self.end(Life::Gone);
            Ok(())
        };
        self.provider.call(Call::Destroy, work).await
    }

    async fn preserve(&self) -> Result<String, Failure> {
        let work = async {
            self.with(|place| {
                place.preserved = true;
                Ok(format!("fake attach {}", self.id))
            })
        };
        self.provider.call(Call::Preserve, work).await
    }
}
