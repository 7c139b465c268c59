//! Periodic check of the providers that work on this host.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use rollout_base::common_times::next_time;
use rollout_environment::{FailureKind, Provider};
use rollout_protocol::limits;
use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::wire::heartbeat::EnvironmentCapacity;
use rollout_worker::service::WorkerProfile;
use tokio::sync::watch;
use tokio::time::Instant;

/// Time between two probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(30);

/// How long a provider may take to report its capacity.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Providers by kind.
pub(super) type ProviderMap = BTreeMap<ProviderKind, Arc<dyn Provider>>;

/// Probes the providers periodically and logs changes.
#[derive(Debug)]
pub(super) struct ProviderProbe {
    providers: ProviderMap,
    profile: watch::Sender<WorkerProfile>,
    /// Last reported capacities and their times.
    last_capacities: BTreeMap<ProviderKind, (Instant, EnvironmentCapacity)>,
}

/// Result of a probe.
#[derive(Debug, Default)]
struct ProbeResult {
    usable: BTreeMap<ProviderKind, EnvironmentCapacity>,
    unavailable: Vec<(ProviderKind, String)>,
}

impl ProviderProbe {
    /// Runs the first probe.
    pub(super) async fn start(providers: ProviderMap, variables: BTreeSet<String>) -> Self {
        let profile = watch::Sender::new(WorkerProfile { providers: BTreeMap::new(), variables });
        let mut probe = Self { providers, profile, last_capacities: BTreeMap::new() };
        let ProbeResult { usable, unavailable } = probe.probe().await;
        for (kind, reason) in unavailable {
            tracing::warn!("cannot run trials in `{kind}` for now: {reason}");
        }
        probe.profile.send_modify(|profile| profile.providers = usable);
        probe
    }

    pub(super) fn profile(&self) -> watch::Receiver<WorkerProfile> {
        self.profile.subscribe()
    }

    /// Probes forever.
    pub(super) async fn run(mut self) -> Infallible {
        loop {
            tokio::time::sleep_until(next_time(PROBE_INTERVAL)).await;
            let ProbeResult { usable: found, unavailable } = self.probe().await;
            let known = self.profile.borrow().providers.clone();
            for kind in found.keys().filter(|kind| !known.contains_key(kind)) {
                tracing::info!("trials in `{kind}` can run now");
            }
            for (kind, reason) in unavailable.iter().filter(|(kind, _)| known.contains_key(kind)) {
                tracing::warn!("cannot run trials in `{kind}` for now: {reason}");
            }
            self.profile.send_if_modified(|profile| {
                let changed = profile.providers != found;
                profile.providers = found;
                changed
            });
        }
    }

    /// Probes every provider. One that does not answer keeps its last capacity for as long as
    /// trials wait for it, so that offered items wait here instead of counting as unplaceable.
    async fn probe(&mut self) -> ProbeResult {
        let queries = self.providers.iter().map(async |(kind, provider)| {
            (*kind, tokio::time::timeout(PROBE_TIMEOUT, provider.capacity()).await)
        });
        let mut found = ProbeResult::default();
        for (kind, answer) in join_all(queries).await {
            let (no_answer, reason) = match answer {
                Ok(Ok(capacity)) => {
                    self.last_capacities.insert(kind, (Instant::now(), capacity));
                    found.usable.insert(kind, capacity);
                    continue;
                }
                Ok(Err(failure)) => (failure.kind == FailureKind::Unreachable, failure.chain()),
                Err(_) => (true, format!("no answer within {PROBE_TIMEOUT:?}")),
            };
            match self.last_capacities.get(&kind) {
                Some((at, capacity)) if no_answer && at.elapsed() < limits::MAX_PARK => {
                    found.usable.insert(kind, *capacity);
                }
                _ => found.unavailable.push((kind, reason)),
            }
        }
        found
    }
}
