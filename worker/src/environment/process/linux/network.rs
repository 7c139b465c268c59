//! What a sandbox may reach. It is decided when the sandbox is made: a network namespace cannot be
//! changed for processes that live in it.

use rollout_protocol::spec::environment::{ProcessNetwork, ProcessSettings};
use rollout_protocol::spec::task::NetworkPolicy;

use crate::environment::{Failure, FailureKind};

/// The network that a policy means within the job's settings.
pub(super) fn effective_network(
    settings: &ProcessSettings,
    policy: &NetworkPolicy,
) -> Result<ProcessNetwork, Failure> {
    match policy {
        NetworkPolicy::Public => Ok(settings.network),
        NetworkPolicy::NoNetwork => Ok(ProcessNetwork::None),
        NetworkPolicy::Allowlist(_) => {
            let text = "a process sandbox cannot allow single hosts: that needs a proxy that \
                        nothing in it can go around";
            Err(Failure::new(FailureKind::Unsupported, text))
        }
    }
}
