//! Access of an environment to the hosts of an allowlist: a proxy of this process that listens on the
//! environment's own loopback interface, its only one.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use rollout_environment::egress::{AllowedHosts, EgressNames, EgressProxy, RefusedHosts};
use rollout_environment::{Environment, Failure, FailureKind, ListenerRoute};
use rollout_protocol::spec::task::NetworkPolicy;

/// The access of one environment.
#[derive(Debug, Default)]
pub(super) struct AllowlistAccess {
    /// The job denies every network, whatever a task allows.
    pub(super) is_denied: bool,
    /// Only public addresses are allowed, whatever a task lists.
    pub(super) is_guarded: bool,
    /// The hosts that were refused.
    pub(super) refused: Arc<RefusedHosts>,
    /// The first fault of a proxy that is closed.
    past_fault: Arc<OnceLock<String>>,
    /// Addresses that stand for names in all phases.
    names: EgressNames,
    /// The proxy of the list in force.
    proxy: Option<EgressProxy>,
}

impl AllowlistAccess {
    /// Ends the access, and all connections to hosts.
    pub(super) fn close(&mut self) {
        self.keep_fault();
        self.proxy = None;
    }

    /// Counts refused hosts and faults with those of another environment.
    pub(super) fn share(&mut self, other: &Self) {
        self.refused = Arc::clone(&other.refused);
        self.past_fault = Arc::clone(&other.past_fault);
    }

    /// Opens the access if `policy` is an allowlist. If it is open, it is made reachable again: the
    /// environment may have been restarted.
    pub(super) async fn open(
        &mut self,
        policy: &NetworkPolicy,
        environment: &dyn Environment,
    ) -> Result<(), Failure> {
        let NetworkPolicy::Allowlist(rules) = policy else { return Ok(()) };
        if self.is_denied {
            return Ok(());
        }
        let ListenerRoute::OwnLoopback(socket) = environment.listener_route().await? else {
            let text = "single hosts cannot be allowed: the worker cannot listen in the \
                        environment; run the worker as root on the engine's host";
            return Err(Failure::new(FailureKind::Unsupported, text));
        };
        let allowed = AllowedHosts::parse(rules).map_err(|error| {
            Failure::new(FailureKind::Refused, format!("cannot use the allowlist: {error}"))
        })?;
        let allowed = if self.is_guarded { allowed.guarded() } else { allowed };
        let refused = || Arc::clone(&self.refused);
        let names = || self.names.clone();
        let proxy = self
            .proxy
            .get_or_insert_with(|| EgressProxy::of_environment(allowed, refused(), names()));
        let cannot =
            |error| Failure::local(FailureKind::Service, "cannot serve the allowed hosts", error);
        proxy.listen(socket).map_err(cannot)?;
        match environment.lead_connections(&proxy.networks()).await? {
            Some(sockets) => proxy.lead(sockets).map_err(cannot),
            // Programs must use the proxy.
            None => Ok(()),
        }
    }

    /// Why this process did not serve the hosts of the list in force, for a cause of its own, if it did not.
    pub(super) fn fault(&self) -> Option<String> {
        self.proxy.as_ref().and_then(EgressProxy::fault)
    }

    /// The same for any list that was in force.
    pub(super) fn any_fault(&self) -> Option<String> {
        self.past_fault.get().cloned().or_else(|| self.fault())
    }

    /// Keeps a fault of the list in force, which may end.
    pub(super) fn keep_fault(&self) {
        if let Some(fault) = self.fault() {
            let _first = self.past_fault.set(fault);
        }
    }

    /// Lets the proxy in force fail, or a past one if there is none.
    #[cfg(test)]
    pub(super) fn fail(&self, why: &str) {
        match &self.proxy {
            Some(proxy) => proxy.fail(why),
            None => self.past_fault.set(why.to_owned()).expect("the first fault"),
        }
    }

    /// Variables of scripts.
    pub(super) fn env(&self) -> BTreeMap<String, String> {
        self.proxy.as_ref().map(EgressProxy::env).unwrap_or_default()
    }
}
