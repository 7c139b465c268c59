//! Environments of the fake provider.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::Arc;

use async_trait::async_trait;
use rollout_base::dependency::Dependency;
use rollout_protocol::record::EnforcedLimits;
use rollout_protocol::spec::task::NetworkPolicy;

use super::{FakeCall, FakeEnvironmentState, FakeLifecycle, FakeProvider, LIMITS, shell};
use crate::{
    ByteStream, CommandExit, Environment, ExecCommand, Failure, FailureKind, ListenerRoute,
    OutputSink, OutputStream, OwnHealthcheck, Upload, start,
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
    fn end(&self, lifecycle: FakeLifecycle) {
        let mut state = self.provider.lock();
        let below = format!("{}/", self.id);
        let places = state.environments.iter_mut();
        let ours = places.filter(|(id, _)| **id == self.id || id.starts_with(&below));
        ours.for_each(|(_, place)| place.end(lifecycle));
    }

    /// Runs `work` on the environment, which must still exist.
    fn with<T>(
        &self,
        work: impl FnOnce(&mut FakeEnvironmentState) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut state = self.provider.lock();
        match state.environments.get_mut(&self.id) {
            Some(place) if place.lifecycle != FakeLifecycle::Gone => work(place),
            _ => Err(Failure::new(FailureKind::Gone, format!("{} no longer exists", self.id))),
        }
    }

    async fn run(
        &self,
        command: ExecCommand,
        output: &dyn OutputSink,
    ) -> Result<CommandExit, Failure> {
        let observed = self.provider.lock().own_programs.clone();
        if let Some(printed) = observed.filter(|_| command == start::observation()) {
            while let Some(at) = self.with(|place| Ok(place.start_service()))? {
                tokio::time::sleep_until(at).await;
            }
            output.write(OutputStream::Stdout, printed.as_bytes());
            return Ok(CommandExit { code: 0 });
        }
        let killed = self.with(|place| {
            let _later = place.start_service();
            place.commands.push(command.clone());
            if let Some(user) = command.user.as_ref().filter(|user| user.starts_with("no-such")) {
                let text = format!("there is no user `{user}`");
                return Err(Failure::new(FailureKind::Refused, text));
            }
            if place.lifecycle == FakeLifecycle::Up {
                place.running += 1;
                Ok(place.kills.subscribe())
            } else {
                Err(Failure::new(FailureKind::NotStarted, "the environment is stopped"))
            }
        })?;
        let _running = RunningCommandGuard(self);
        let place: shell::WithEnvironment<'_> = &|work| {
            self.with(|place| {
                work(place);
                Ok(())
            })
        };
        let world = shell::ShellContext { place, output };
        shell::run(&world, command, killed).await
    }
}

/// Counts a command as running for as long as it exists.
struct RunningCommandGuard<'a>(&'a FakeEnvironment);

impl Drop for RunningCommandGuard<'_> {
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

    fn limits(&self) -> EnforcedLimits {
        LIMITS
    }

    async fn copy_to(&self, uploads: Vec<Upload>) -> Result<(), Failure> {
        let work = async { self.with(|place| place.files.apply(&uploads)) };
        self.provider.call(FakeCall::CopyTo, work).await
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
        self.provider.call(FakeCall::CopyFrom, work).await
    }

    async fn exec(
        &self,
        command: ExecCommand,
        output: Arc<dyn OutputSink>,
    ) -> Result<CommandExit, Failure> {
        self.provider.call(FakeCall::Exec, self.run(command, output.as_ref())).await
    }

    async fn kill_processes(&self) -> Result<(), Failure> {
        let work = async {
            self.with(|place| {
                place.kill();
                Ok(())
            })
        };
        self.provider.call(FakeCall::Kill, work).await
    }

    async fn set_network(&self, policy: &NetworkPolicy) -> Result<(), Failure> {
        let work = async {
            self.with(|place| {
                place.networks.push(policy.clone());
                Ok(())
            })
        };
        self.provider.call(FakeCall::SetNetwork, work).await
    }

    fn service(&self, name: &str) -> Option<&dyn Environment> {
        self.services.get(name).map(|service| service as &dyn Environment)
    }

    async fn listener_route(&self) -> Result<ListenerRoute, Failure> {
        let loopback = (std::net::Ipv4Addr::LOCALHOST, 0);
        let policy =
            self.with(|place| Ok(place.networks.last().unwrap_or(&place.request.network).clone()))?;
        if policy.is_public() {
            return Ok(ListenerRoute::HostAddress(loopback.into()));
        }
        let listener = std::net::TcpListener::bind(loopback);
        let cannot = |error| Failure::local(FailureKind::Service, "cannot listen", error);
        listener.map(ListenerRoute::OwnLoopback).map_err(cannot)
    }

    fn has_own_programs(&self) -> bool {
        self.provider.lock().own_programs.is_some()
    }

    fn own_healthcheck(&self) -> Option<OwnHealthcheck> {
        self.provider.lock().own_healthcheck.clone()
    }

    async fn oom_killed(&self) -> bool {
        let work = async { self.with(|place| Ok(place.oom_killed)) };
        self.provider.call(FakeCall::OomKilled, work).await.unwrap_or(false)
    }

    async fn check_running(&self) -> Result<(), Failure> {
        let has_ended = self.provider.lock().own_programs_end;
        if has_ended {
            return Err(Failure::new(FailureKind::NotStarted, "its own programs have ended it"));
        }
        self.with(|_| Ok(()))
    }

    async fn check_exists(&self) -> Result<(), Failure> {
        self.with(|_| Ok(()))
    }

    async fn stop(&self) -> Result<(), Failure> {
        let work = async {
            self.with(|_| Ok(()))?;
            self.end(FakeLifecycle::Stopped);
            Ok(())
        };
        self.provider.call(FakeCall::Stop, work).await
    }

    async fn destroy(&self) -> Result<(), Failure> {
        let work = async {
            self.end(FakeLifecycle::Gone);
            Ok(())
        };
        self.provider.call(FakeCall::Destroy, work).await
    }

    async fn preserve(&self) -> Result<String, Failure> {
        let work = async {
            self.with(|place| {
                place.preserved = true;
                Ok(format!("fake attach {}", self.id))
            })
        };
        self.provider.call(FakeCall::Preserve, work).await
    }
}
