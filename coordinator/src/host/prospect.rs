//! Which providers work on this host at present.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use rollout_protocol::spec::environment::ProviderKind;
use rollout_protocol::wire::hello::Capacity;
use rollout_worker::environment::Provider;
use rollout_worker::service::Profile;
use tokio::sync::watch;

/// How often it is looked.
const EVERY: Duration = Duration::from_secs(30);

/// How long a provider may take to say what it has.
const PATIENCE: Duration = Duration::from_secs(10);

/// Providers by kind.
pub(super) type Providers = BTreeMap<ProviderKind, Arc<dyn Provider>>;

/// Looks again and again, and says what changed.
#[derive(Debug)]
pub(super) struct Prospect {
    providers: Providers,
    profile: watch::Sender<Profile>,
}

impl Prospect {
    /// Looks for the first time.
    pub(super) async fn look(providers: Providers, variables: BTreeSet<String>) -> Self {
        let profile = watch::Sender::new(Profile { providers: BTreeMap::new(), variables });
        let prospect = Self { providers, profile };
        let (found, missing) = prospect.found().await;
        for (kind, reason) in missing {
            tracing::warn!("no trials in `{kind}` for now: {reason}");
        }
        prospect.profile.send_modify(|profile| profile.providers = found);
        prospect
    }

    pub(super) fn profile(&self) -> watch::Receiver<Profile> {
        self.profile.subscribe()
    }

    /// Looks again for ever.
    pub(super) async fn keep(self) -> Infallible {
        loop {
            tokio::time::sleep(EVERY).await;
            let (found, missing) = self.found().await;
            let known = self.profile.borrow().providers.clone();
            for kind in found.keys().filter(|kind| !known.contains_key(kind)) {
                tracing::info!("trials in `{kind}` are possible now");
            }
            for (kind, reason) in missing.iter().filter(|(kind, _)| known.contains_key(kind)) {
                tracing::warn!("no trials in `{kind}` for now: {reason}");
            }
            self.profile.send_if_modified(|profile| {
                let changed = profile.providers != found;
                profile.providers = found;
                changed
            });
        }
    }

    async fn found(&self) -> (BTreeMap<ProviderKind, Capacity>, Vec<(ProviderKind, String)>) {
        let looks = self.providers.iter().map(async |(kind, provider)| {
            (*kind, tokio::time::timeout(PATIENCE, provider.capacity()).await)
        });
        let (mut found, mut missing) = (BTreeMap::new(), Vec::new());
        for (kind, look) in join_all(looks).await {
            match look {
                Ok(Ok(capacity)) => drop(found.insert(kind, capacity)),
                Ok(Err(failure)) => missing.push((kind, failure.chain())),
                Err(_) => missing.push((kind, format!("no answer within {PATIENCE:?}"))),
            }
        }
        (found, missing)
    }
}
