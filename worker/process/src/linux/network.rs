//! Network of a sandbox. It is fixed when the sandbox is made: the network namespace of running
//! processes cannot be changed. A sandbox that may reach single hosts has none: a proxy of the worker
//! on its loopback interface connects to them.

use rollout_protocol::spec::environment::{ProcessNetwork, ProcessSettings};
use rollout_protocol::spec::task::NetworkPolicy;

/// The network for a policy, within the job's settings.
pub(super) const fn effective_network(
    settings: &ProcessSettings,
    policy: &NetworkPolicy,
) -> ProcessNetwork {
    match policy {
        NetworkPolicy::Public => settings.network,
        NetworkPolicy::NoNetwork | NetworkPolicy::Allowlist(_) => ProcessNetwork::None,
    }
}
