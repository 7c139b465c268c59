//! One environment of an execution, from its request to its removal. Whether it is being created,
//! running or removed is known on every path.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use rollout_base::supervise::{self, Task, TaskPanic};
use rollout_environment::egress::RefusedHosts;
use rollout_environment::{CreateRequest, Environment, Failure, FailureKind, Provider};
use rollout_protocol::record::EnvironmentRecord;
use rollout_protocol::spec::environment::EnvironmentRates;
use rollout_protocol::spec::resources::Resources;
use rollout_protocol::spec::task::NetworkPolicy;
use tokio::time::Instant;

use super::allowlist::AllowlistAccess;
use super::context::with_timeout;
use super::sidecars::{Sidecar, Sidecars};
use super::teardown;

/// Extra time to wait for a late environment, to remove it.
const LATE_LIMIT: Duration = Duration::from_secs(60);

/// Longest time to stop an environment with unkillable processes.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// Longest time to change the network policy: a few system calls, the start of a process beside the
/// environment, or twice the time in which a cluster applies a policy.
const NETWORK_LIMIT: Duration = Duration::from_secs(300);

/// State of an environment.
#[derive(Default)]
enum ManagedEnvironmentState {
    #[default]
    None,
    /// It must be waited for and removed, whatever happens meanwhile.
    Creating(Task<Result<Box<dyn Environment>, Failure>>),
    Up(Box<dyn Environment>),
}

/// An environment, or none yet. Dropping it removes nothing: [`ManagedEnvironment::remove`] must be
/// called on every path.
#[derive(Default)]
pub struct ManagedEnvironment {
    state: ManagedEnvironmentState,
    /// Its sidecar services.
    sidecars: Sidecars,
    /// When it was created.
    created_at: Option<Instant>,
    /// When it was stopped.
    stopped_at: Option<Instant>,
    resources: Resources,
    /// The network policy in force, as far as known.
    network: Option<NetworkPolicy>,
    /// Its access to the hosts of an allowlist.
    allowlist: AllowlistAccess,
    /// Its part of the execution's record.
    pub(crate) record: Option<EnvironmentRecord>,
    /// Processes may still be alive: nothing more is run or read.
    pub(crate) tainted: bool,
}

/// Why an environment was not created.
#[derive(Debug)]
pub enum CreationFailure {
    /// The provider failed, or did not answer in time.
    Failed(Failure),
    /// The provider panicked with this message.
    Panicked(String),
}

/// The result of a removal.
#[derive(Debug, Default)]
pub struct RemovalOutcome {
    /// Why an environment that was still being created failed.
    pub not_created: Option<CreationFailure>,
    /// Why something may be left behind.
    pub failure: Option<Failure>,
}

impl ManagedEnvironmentState {
    fn running(&self) -> Option<&dyn Environment> {
        match self {
            Self::Up(environment) => Some(environment.as_ref()),
            Self::None | Self::Creating(_) => None,
        }
    }
}

impl ManagedEnvironment {
    /// Creates the environment and waits for it. May be cancelled at any moment.
    ///
    /// # Errors
    /// [`CreationFailure`].
    pub async fn create(
        &mut self,
        provider: Arc<dyn Provider>,
        request: CreateRequest,
    ) -> Result<(), CreationFailure> {
        self.create_beside(provider, request, Vec::new()).await
    }

    /// Starts services, creates the environment beside them, and waits until all are ready. May be
    /// cancelled at any moment.
    ///
    /// # Errors
    /// [`CreationFailure`].
    pub async fn create_beside(
        &mut self,
        provider: Arc<dyn Provider>,
        mut request: CreateRequest,
        services: Vec<Box<dyn Sidecar>>,
    ) -> Result<(), CreationFailure> {
        let created = match self.prepare_beside(provider.as_ref(), services, &mut request).await {
            Ok(()) => self.create_alone(provider, request).await,
            Err(failure) => Err(CreationFailure::Failed(failure)),
        };
        if let ManagedEnvironmentState::Up(environment) = &self.state {
            created?;
            return self.sidecars.ready(&**environment).await.map_err(CreationFailure::Failed);
        }
        if matches!(self.state, ManagedEnvironmentState::None)
            && let Some(failure) = self.sidecars.stop().await
        {
            tracing::warn!("cannot stop a service yet: {}", failure.chain());
        }
        created
    }

    /// Starts services, and makes present what the creation needs for those that the provider runs. The
    /// creation itself cannot be interrupted, and this may take long.
    async fn prepare_beside(
        &mut self,
        provider: &dyn Provider,
        services: Vec<Box<dyn Sidecar>>,
        request: &mut CreateRequest,
    ) -> Result<(), Failure> {
        self.sidecars.start(services, request).await?;
        let action = "making the images of services present";
        with_timeout(provider.start_limit(), action, provider.prepare_services(request)).await
    }

    async fn create_alone(
        &mut self,
        provider: Arc<dyn Provider>,
        request: CreateRequest,
    ) -> Result<(), CreationFailure> {
        let image = request.image.clone();
        self.resources = request.resources;
        self.network = Some(request.network.clone());
        self.allowlist.is_denied = request.settings.denies_network();
        self.allowlist.is_guarded = request.settings.guards_hosts();
        let (kind, in_memory) = (provider.kind(), provider.is_in_memory());
        let limit = provider.start_limit();
        let mut creating = Box::pin(async move { provider.create(request).await });
        // Only a creation that waits needs a task, which can be waited for on every path.
        match in_memory.then(|| creating.as_mut().now_or_never()).flatten() {
            Some(created) => self.finish_creation(Ok(created))?,
            None => {
                let task = supervise::spawn("environment creation", creating);
                self.state = ManagedEnvironmentState::Creating(task);
                self.wait_for_creation(limit).await?;
            }
        }
        if let (ManagedEnvironmentState::Up(environment), false) = (&self.state, in_memory) {
            self.record = Some(EnvironmentRecord {
                provider: kind.to_string(),
                id: environment.id().to_owned(),
                image: image.reference,
                image_made: image.made,
                image_build: image.build,
                limits: environment.limits(),
                start_wait: None,
                preserved: None,
            });
        }
        if let (ManagedEnvironmentState::Up(environment), Some(policy)) =
            (&self.state, &self.network)
        {
            let opened = self.allowlist.open(policy, environment.as_ref()).await;
            opened.map_err(CreationFailure::Failed)?;
        }
        Ok(())
    }

    /// Waits for the environment that is being created, if there is one.
    async fn wait_for_creation(&mut self, limit: Duration) -> Result<(), CreationFailure> {
        let ManagedEnvironmentState::Creating(creating) = &mut self.state else { return Ok(()) };
        match tokio::time::timeout(limit, creating).await {
            Ok(ended) => self.finish_creation(ended),
            Err(_) => {
                let message = format!("the environment was not created within {limit:?}");
                Err(CreationFailure::Failed(Failure::new(FailureKind::TimedOut, message)))
            }
        }
    }

    fn finish_creation(
        &mut self,
        ended: Result<Result<Box<dyn Environment>, Failure>, TaskPanic>,
    ) -> Result<(), CreationFailure> {
        self.state = ManagedEnvironmentState::None;
        match ended {
            Ok(Ok(environment)) => {
                self.created_at = Some(Instant::now());
                self.state = ManagedEnvironmentState::Up(environment);
                Ok(())
            }
            Ok(Err(failure)) => Err(CreationFailure::Failed(failure)),
            Err(panicked) => Err(CreationFailure::Panicked(panicked.message)),
        }
    }

    /// The environment, if it is running.
    pub fn running(&self) -> Option<&dyn Environment> {
        self.state.running()
    }

    /// The environment, which must be running.
    pub(crate) fn expect_running(&self) -> &dyn Environment {
        self.running().expect("it was created")
    }

    /// Whether it was ever created.
    pub(crate) fn was_created(&self) -> bool {
        self.created_at.is_some()
    }

    /// Whether there is nothing to keep or remove.
    pub fn is_empty(&self) -> bool {
        matches!(self.state, ManagedEnvironmentState::None) && self.sidecars.is_empty()
    }

    /// Variables for scripts that use its sidecar services, and those of [`Self::network_env`].
    pub(crate) fn sidecar_env(&self) -> BTreeMap<String, String> {
        let mut env = self.sidecars.env();
        env.extend(self.network_env());
        env
    }

    /// Variables that lead scripts to the hosts of the allowlist in force, if one is.
    pub(crate) fn network_env(&self) -> BTreeMap<String, String> {
        self.allowlist.env()
    }

    /// Why this process did not serve the hosts of the allowlist in force, for a cause of its own.
    pub(crate) fn access_fault(&self) -> Option<String> {
        self.allowlist.fault()
    }

    /// The same for any allowlist of the execution so far, also one that is no longer in force.
    pub(crate) fn any_access_fault(&self) -> Option<String> {
        self.allowlist.any_fault()
    }

    /// Lets the proxy of its allowed hosts fail.
    #[cfg(test)]
    pub(crate) fn fail_access(&self, why: &str) {
        self.allowlist.fail(why);
    }

    /// The hosts that were refused in it.
    pub(crate) const fn refused_hosts(&self) -> &Arc<RefusedHosts> {
        &self.allowlist.refused
    }

    /// Counts the hosts that are refused in it, and faults of its access to others, with those of another
    /// environment.
    pub(crate) fn share_access(&mut self, other: &Self) {
        self.allowlist.share(&other.allowlist);
    }

    /// The cost of the time in which it held host resources.
    pub(crate) fn cost(&self, rates: &EnvironmentRates) -> f64 {
        let Some(created) = self.created_at else { return 0.0 };
        let stopped = self.stopped_at.unwrap_or_else(Instant::now);
        let lived = stopped.saturating_duration_since(created);
        rates.cost(&self.resources, lived.as_secs_f64())
    }

    /// Sets the network policy, unless it is in force already.
    pub(crate) async fn set_network(&mut self, policy: &NetworkPolicy) -> Result<(), Failure> {
        if self.network.as_ref() != Some(policy) {
            // Unknown until the change is done.
            self.network = None;
            self.allowlist.close();
            let action = "changing the network policy";
            with_timeout(NETWORK_LIMIT, action, self.expect_running().set_network(policy)).await?;
        }
        let running = self.state.running().expect("it was created");
        self.allowlist.open(policy, running).await?;
        self.network = Some(policy.clone());
        Ok(())
    }

    /// Kills everything that runs in it; files stay readable.
    pub(crate) async fn stop(&mut self) -> Result<(), Failure> {
        let stopping = self.expect_running().stop();
        with_timeout(STOP_LIMIT, "stopping the environment", stopping).await?;
        self.stopped_at = Some(Instant::now());
        Ok(())
    }

    /// Removes the environment, including one that is still being created.
    pub async fn remove(&mut self) -> RemovalOutcome {
        self.tear_down(false).await
    }

    /// Keeps or removes the environment, including one that is still being created. It is not kept
    /// while processes may still be alive in it.
    pub(crate) async fn tear_down(&mut self, keep: bool) -> RemovalOutcome {
        // Other environments of the execution share it.
        self.allowlist.keep_fault();
        let not_created = self.wait_for_creation(LATE_LIMIT).await.err();
        let (preserved, failure) = match &self.state {
            ManagedEnvironmentState::None => (None, None),
            ManagedEnvironmentState::Creating(_) => {
                let message = "the environment is still being created: the reaper removes it later";
                (None, Some(Failure::new(FailureKind::LeftBehind, message)))
            }
            ManagedEnvironmentState::Up(environment) => {
                let torn = teardown::teardown(environment.as_ref(), keep && !self.tainted).await;
                (torn.preserved, torn.failure)
            }
        };
        if let Some(record) = &mut self.record {
            record.preserved = preserved;
        }
        let failure = failure.or(self.sidecars.stop().await);
        RemovalOutcome { not_created, failure }
    }
}

impl fmt::Debug for ManagedEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ManagedEnvironment").field(&self.running()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::path::PathBuf;

    use rollout_environment::fake::FakeProvider;
    use rollout_environment::{EnvironmentLabels, EnvironmentPurpose, Image, ImageSource, Owner};
    use rollout_protocol::id::{ExecId, ItemId, RunId, TryId};
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    fn request(hosts: Vec<String>) -> CreateRequest {
        CreateRequest {
            image: Image::found("an image"),
            source: ImageSource::Named("an image".to_owned()),
            resources: Resources::default(),
            env: BTreeMap::new(),
            workdir: None,
            network: NetworkPolicy::Allowlist(hosts),
            compose: None,
            uploads: Vec::new(),
            settings: FakeProvider::settings(),
            labels: EnvironmentLabels {
                run: RunId::from_bytes([1; 16]),
                item: ItemId::for_trial("agent", "dataset", "task", 1),
                try_id: TryId::first(1),
                exec: ExecId::from_bytes([7; 16]),
                worker: "w1".parse().expect("a token"),
                owner: Owner::current(PathBuf::from("/nowhere")),
            },
            purpose: EnvironmentPurpose::Agent,
        }
    }

    /// The first line of the answer to a request for a tunnel to a host.
    async fn asked(environment: &ManagedEnvironment, host: SocketAddr) -> String {
        let proxy = environment.network_env().remove("HTTP_PROXY").expect("a proxy");
        let address = proxy.strip_prefix("http://").expect("a URL");
        let mut stream = TcpStream::connect(address).await.expect("connected");
        let request = format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).await.expect("an answer");
        line
    }

    #[tokio::test]
    async fn fault_of_access_is_known_after_its_policy_and_its_environment() {
        for is_removed in [false, true] {
            let first = ManagedEnvironment::default();
            let mut environment = ManagedEnvironment::default();
            environment.share_access(&first);
            let request = request(vec!["a.example".to_owned()]);
            environment.create(Arc::new(FakeProvider::default()), request).await.expect("created");
            assert_eq!(environment.any_access_fault(), None);
            environment.fail_access("a bug");
            let known = Some("a bug".to_owned());
            assert_eq!(environment.access_fault(), known);
            assert_eq!(environment.any_access_fault(), known);
            if !is_removed {
                environment.set_network(&NetworkPolicy::Public).await.expect("set");
                assert_eq!(environment.access_fault(), None, "no list is in force");
                assert_eq!(environment.any_access_fault(), known);
            }
            let removed = environment.remove().await;
            assert!(removed.failure.is_none(), "{removed:?}");
            assert_eq!(first.any_access_fault(), known);
        }
    }

    #[tokio::test]
    async fn listed_address_of_this_host_is_reached_unless_hosts_are_guarded() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let host = listener.local_addr().expect("an address");
        for (is_guarded, status) in [(false, 200), (true, 403)] {
            let mut request = request(vec![host.to_string()]);
            if is_guarded {
                request.settings.set_build_guard(Some(&[]));
            }
            let mut environment = ManagedEnvironment::default();
            let provider = Arc::new(FakeProvider::default());
            environment.create(provider, request).await.expect("created");
            let line = asked(&environment, host).await;
            assert!(line.starts_with(&format!("HTTP/1.1 {status} ")), "{line}");
            let refused = environment.refused_hosts().summary();
            let reason = refused.map(|refused| refused.hosts[0].reason);
            assert_eq!(reason, is_guarded.then_some("internal_address"));
            let removed = environment.remove().await;
            assert!(removed.failure.is_none(), "{removed:?}");
        }
    }
}
