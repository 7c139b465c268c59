//! Network of a sandbox. It is fixed when the sandbox is made: the network namespace of running
//! processes cannot be changed.

use rollout_protocol::spec::environment::{ProcessNetwork, ProcessSettings};
use rollout_protocol::spec::task::NetworkPolicy;

use crate::environment::{Failure, FailureKind};

/// The network for a policy, within the job's settings.
pub(super) fn effective_network(
    settings: &ProcessSettings,
    policy: &NetworkPolicy,
) -> Result<ProcessNetwork, Failure> {
    match policy {
        NetworkPolicy::Public => Ok(settings.network),
        NetworkPolicy::NoNetwork => Ok(ProcessNetwork::None),
        NetworkPolicy::Allowlist(_) => {
            let text = "a process sandbox cannot allow single hosts: that needs a proxy that \
                        nothing in it can bypass";
            Err(Failure::new(FailureKind::Unsupported, text))
        }
    }
}
