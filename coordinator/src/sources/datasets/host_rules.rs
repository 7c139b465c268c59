//! Rules for the hosts of tasks whose author may not use the network of a worker, which connects to
//! them.

use std::path::Path;

use rollout_environment::egress::first_internal_host;
use rollout_protocol::spec::task::NetworkPolicy;

use crate::config::{Diagnostics, ErrorKind, SourceLocation, TaskFile};

/// Records lists of allowed hosts with addresses that are not public, at most one of each phase.
pub(super) fn check(path: &Path, file: &TaskFile, problems: &mut Diagnostics) {
    let own = ("environment", Some(&file.environment.network));
    let phases = file.steps.iter().flat_map(|step| {
        let separate = step.verifier.environment.as_deref();
        [
            ("agent", step.agent.network.as_ref()),
            ("verifier", step.verifier.network.as_ref()),
            ("verifier.environment", separate.map(|environment| &environment.network)),
        ]
    });
    for (element, policy) in std::iter::once(own).chain(phases) {
        let Some(NetworkPolicy::Allowlist(hosts)) = policy else { continue };
        let Some(host) = first_internal_host(hosts) else { continue };
        let location = SourceLocation { key: format!("{element}.allowed_hosts"), line: None };
        let found = format!("`{host}`, which has addresses that are not public");
        let expected = "names, and public addresses: runs of a server reach no others";
        problems.error(location.error(path, ErrorKind::BadValue, found, expected));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read_task;

    /// The keys and findings of a task file.
    fn found(text: &str) -> Vec<(String, String)> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("task.toml");
        std::fs::write(&path, text).expect("written");
        let mut problems = Diagnostics::default();
        let file = read_task(&path, Default::default(), &mut problems).expect("a task");
        assert!(!problems.has_errors(), "{problems:?}");
        check(&path, &file, &mut problems);
        let (errors, _) = problems.into_parts();
        errors.into_iter().map(|error| (error.key, error.found)).collect()
    }

    fn task(element: &str, hosts: &str) -> String {
        let allowlist = format!("network_mode = 'allowlist'\nallowed_hosts = {hosts}\n");
        format!("version = '1.0'\n[{element}]\n{allowlist}")
    }

    #[test]
    fn address_that_is_not_public_is_refused_in_every_phase() {
        for element in ["environment", "agent", "verifier", "verifier.environment"] {
            let key = format!("{element}.allowed_hosts");
            for host in ["127.0.0.1:4222", "169.254.169.254", "10.0.0.0/8", "fd00::/8"] {
                let text = task(element, &format!("['a.example', '{host}']"));
                let why = format!("`{host}`, which has addresses that are not public");
                assert_eq!(found(&text), [(key.clone(), why)], "{text}");
            }
        }
    }

    #[test]
    fn names_and_public_addresses_are_allowed() {
        let text = task("environment", "['localhost', '*.a.example', '8.8.8.8', '0.0.0.0/0']");
        assert_eq!(found(&text), []);
    }
}
