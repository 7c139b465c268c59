//! Network policies of environments and phases.

use rollout_protocol::spec::task::{HostRule, NetworkPolicy};

use super::super::diagnostics::ErrorKind;
use super::super::keys::Key;
use super::super::reader::{Field, Fields};
use super::{DemandKind, TaskReadContext};

#[derive(Debug, Clone, Copy, PartialEq)]
enum NetworkMode {
    Public,
    NoNetwork,
    Allowlist,
}

const NETWORK_MODES: &[(&str, NetworkMode)] = &[
    ("public", NetworkMode::Public),
    ("no-network", NetworkMode::NoNetwork),
    ("allowlist", NetworkMode::Allowlist),
];

/// The network keys of an environment or a phase.
#[derive(Debug, Clone, Copy)]
pub(super) struct NetworkKeys {
    /// `network_mode`.
    pub(super) mode: Key,
    /// `allowed_hosts`.
    pub(super) hosts: Key,
}

/// Reads the policy of an environment: `network_mode`, `allowed_hosts` and the older
/// `allow_internet`.
pub(super) fn baseline(
    fields: &mut Fields<'_>,
    keys: NetworkKeys,
    older: Key,
    context: &mut TaskReadContext,
) -> NetworkPolicy {
    let older = fields.take(older);
    let allowed = older.bool();
    let policy = read(fields, keys, context);
    if older.is_present() {
        older.warn(if policy.is_some() {
            "ignored because `network_mode` is given"
        } else {
            "deprecated: use `network_mode`"
        });
    }
    let older = (allowed == Some(false)).then_some(NetworkPolicy::NoNetwork);
    policy.or(older).unwrap_or_default()
}

/// The policy of a phase if it differs from the environment's; `below` if the file sets none.
pub(super) fn phase(
    fields: &mut Fields<'_>,
    keys: NetworkKeys,
    environment: &NetworkPolicy,
    inherited: Option<NetworkPolicy>,
    context: &mut TaskReadContext,
) -> Option<NetworkPolicy> {
    let mode = fields.take(keys.mode);
    let written = read(fields, keys, context);
    let is_own = written.is_some();
    let policy = written.or(inherited).filter(|policy| policy != environment)?;
    if is_own {
        context.demand(DemandKind::NetworkOfPhase, &mode);
    }
    Some(policy)
}

fn read(
    fields: &mut Fields<'_>,
    keys: NetworkKeys,
    context: &mut TaskReadContext,
) -> Option<NetworkPolicy> {
    let field = fields.take(keys.mode);
    let hosts = fields.take(keys.hosts);
    let mode = field.keyword(NETWORK_MODES);
    if hosts.is_present() && mode.is_none_or(|mode| mode != NetworkMode::Allowlist) {
        let found = "hosts without `network_mode = \"allowlist\"`";
        hosts.reject(ErrorKind::Conflict, found, "both or neither");
    }
    Some(match mode? {
        NetworkMode::Public => NetworkPolicy::Public,
        NetworkMode::NoNetwork => NetworkPolicy::NoNetwork,
        NetworkMode::Allowlist => {
            context.demand(DemandKind::Allowlist, &field);
            let items = hosts.items().unwrap_or_default();
            NetworkPolicy::Allowlist(items.iter().filter_map(host).collect())
        }
    })
}

/// Reads a rule for hosts.
pub(in crate::config) fn host(field: &Field<'_>) -> Option<String> {
    let host = field.non_empty_string()?;
    if host.parse::<HostRule>().is_err() {
        field.bad_value(
            "a host name, `*.` and a name, an IP address or a network `address/bits`; names and \
             addresses may end with `:port`",
        );
        return None;
    }
    Some(host)
}
