//! The crates whose messages are Rollout's, and filters of log messages over them.

use std::fmt::Write as _;

/// Names under which Rollout logs: the program, and each crate of the workspace.
const TARGETS: &[&str] = &[
    "rollout",
    "rollout_base",
    "rollout_coordinator",
    "rollout_docker",
    "rollout_engine",
    "rollout_environment",
    "rollout_gateway",
    "rollout_kubernetes",
    "rollout_process",
    "rollout_queue",
    "rollout_store",
    "rollout_worker",
];

/// Parts of a crate that became a crate: a prefix of former targets, what follows it, and the name now. A
/// longer prefix comes after those that it begins with, so that it counts. Filters of former versions go on
/// to work.
const MOVED: &[(&str, &[char], &str)] = &[
    ("rollout_coordinator", &['=', '['], "rollout_engine"),
    ("rollout_coordinator::engine", &['=', '[', ':'], "rollout_engine"),
    ("rollout_worker", &['=', '[', ':'], "rollout_base"),
    ("rollout_worker", &['=', '['], "rollout_queue"),
    ("rollout_worker::queue", &['=', '[', ':'], "rollout_queue"),
    ("rollout_worker", &['=', '[', ':'], "rollout_store"),
    ("rollout_worker::store", &['=', '[', ':'], "rollout_store"),
    ("rollout_worker", &['=', '[', ':'], "rollout_environment"),
    ("rollout_worker::environment", &['=', '[', ':'], "rollout_environment"),
    ("rollout_worker", &['=', '['], "rollout_docker"),
    ("rollout_worker::environment", &['=', '['], "rollout_docker"),
    ("rollout_environment", &['=', '['], "rollout_docker"),
    ("rollout_worker::environment::docker", &['=', '[', ':'], "rollout_docker"),
    ("rollout_environment::docker", &['=', '[', ':'], "rollout_docker"),
    ("rollout_worker", &['=', '['], "rollout_process"),
    ("rollout_worker::environment", &['=', '['], "rollout_process"),
    ("rollout_environment", &['=', '['], "rollout_process"),
    ("rollout_worker::environment::process", &['=', '[', ':'], "rollout_process"),
    ("rollout_environment::process", &['=', '[', ':'], "rollout_process"),
    ("rollout_worker", &['=', '['], "rollout_kubernetes"),
    ("rollout_worker::environment", &['=', '['], "rollout_kubernetes"),
    ("rollout_environment", &['=', '['], "rollout_kubernetes"),
    ("rollout_worker::environment::kubernetes", &['=', '[', ':'], "rollout_kubernetes"),
    ("rollout_environment::kubernetes", &['=', '[', ':'], "rollout_kubernetes"),
    ("rollout_worker", &['=', '['], "rollout_gateway"),
    ("rollout_worker::gateway", &['=', '[', ':'], "rollout_gateway"),
    ("rollout_worker::gateway::recorder", &['=', '[', ':'], "rollout_gateway::proxy::recorder"),
];

/// Directives that log all that Rollout says at `level`.
pub(super) fn ours(level: &str) -> String {
    let mut directives = String::new();
    for target in TARGETS {
        let _infallible = write!(directives, ",{target}={level}");
    }
    directives
}

/// The filter of a user, whose directives for a crate also hold for the crates that were made of it. Of
/// equal directives the last one counts.
pub(super) fn with_moved(filter: &str) -> String {
    let added = MOVED.iter().flat_map(|(former, ends, now)| {
        filter.split(',').filter_map(move |directive| {
            let rest = directive.strip_prefix(former)?;
            let is_whole_name = rest.is_empty() || rest.starts_with(*ends);
            is_whole_name.then(|| format!("{now}{rest}"))
        })
    });
    added.chain([filter.to_owned()]).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_targets_are_the_crates_of_the_workspace() {
        let manifest = include_str!("../../../../Cargo.toml");
        let crates = manifest.lines().filter_map(|line| {
            let (name, what) = line.split_once(" = ")?;
            what.contains("path = ").then(|| name.replace('-', "_"))
        });
        // The protocol logs nothing.
        let mut crates: Vec<_> = crates.filter(|name| name != "rollout_protocol").collect();
        crates.push("rollout".to_owned());
        crates.sort();
        assert_eq!(TARGETS, crates);
    }

    #[test]
    fn longer_former_name_comes_after_those_it_begins_with() {
        for (at, (former, _, now)) in MOVED.iter().enumerate() {
            let later = MOVED[at + 1..].iter().filter(|(_, _, other)| other == now);
            for (later, ..) in later {
                assert!(!former.starts_with(later), "{former} before {later}");
            }
        }
        let filter = with_moved("rollout_worker::store=debug,rollout_worker=info");
        let last = filter.rsplit(',').find(|directive| directive.starts_with("rollout_store="));
        assert_eq!(last, Some("rollout_store=debug"));
    }
}
