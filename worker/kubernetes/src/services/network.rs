//! The network of a file as the one network of a pod: all containers have one address, and each
//! name of a service stands for it.

use std::collections::{BTreeMap, BTreeSet};

use super::model::{NetworkMode, ServiceSpec};
use super::problems::Problems;
use super::table::Table;

/// Checks the networks of the whole file. Returns those that reach nothing outside.
pub(super) fn definitions(table: Option<Table<'_>>) -> BTreeSet<String> {
    let mut internal = BTreeSet::new();
    let Some(table) = table else { return internal };
    let problems = table.problems;
    for (name, (at, value)) in table.into_entries() {
        let mut network = Table::new(at, value, problems);
        if network.flag("internal") {
            internal.insert(name);
        }
        let at = network.at("driver");
        if network.text("driver").is_some_and(|driver| driver != "bridge" && driver != "default") {
            problems.unsupported(&at, "a pod has the network of the cluster");
        }
        network.ignore(&["name", "attachable", "labels"]);
        network.finish(|key| match key {
            "external" => "the network must be the task's own",
            _ => "a pod has the network of the cluster",
        });
    }
    internal
}

/// Refuses separations that a pod does not have. Returns whether the file takes away the network.
pub(super) fn check(
    services: &[&ServiceSpec],
    internal: &BTreeSet<String>,
    problems: &Problems,
) -> bool {
    let at = |service: &ServiceSpec, key: &str| format!("services.{}.{key}", service.name);
    let without: Vec<_> =
        services.iter().filter(|service| service.links.mode == NetworkMode::None).collect();
    if let ([service, ..], true) = (without.as_slice(), services.len() > 1) {
        let why = "the containers of a pod have one network in common";
        problems.unsupported(&at(service, "network_mode"), why);
    }
    for (number, service) in services.iter().enumerate() {
        let own = &service.links.networks;
        for other in services.iter().take(number) {
            let others = &other.links.networks;
            if !own.is_empty() && !others.is_empty() && own.is_disjoint(others) {
                let why = format!(
                    "it is separated from `{}`, but the containers of a pod have one network in \
                     common",
                    other.name
                );
                problems.unsupported(&at(service, "networks"), &why);
            }
        }
        if !own.is_empty() && own.is_subset(internal) {
            let why = "the service would reach the network of the cluster";
            let name = own.first().map(String::as_str).unwrap_or_default();
            problems.unsupported(&format!("networks.{name}.internal"), why);
        }
    }
    check_ports(services, problems);
    !without.is_empty()
}

/// Refuses ports that two services declare.
fn check_ports(services: &[&ServiceSpec], problems: &Problems) {
    let mut taken: BTreeMap<&(String, String), &str> = BTreeMap::new();
    for service in services {
        for (port, at) in &service.links.ports {
            if let Some(other) = taken.insert(port, &service.name) {
                let (port, protocol) = port;
                let why = format!(
                    "port {port}/{protocol} is also that of `{other}`, and the containers of a pod \
                     have one address"
                );
                problems.unsupported(at, &why);
            }
        }
    }
}

/// All names that stand for the pod itself.
pub(super) fn host_names(services: &[&ServiceSpec], problems: &Problems) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for service in services {
        let own = [&service.name].into_iter().chain(&service.links.aliases);
        for name in own.chain(service.links.links.iter().map(|(_, alias)| alias)) {
            if is_host_name(name) {
                names.insert(name.clone());
            } else {
                let why = format!("Kubernetes cannot resolve `{name}`, which is no host name");
                problems.unsupported(&format!("services.{}", service.name), &why);
            }
        }
    }
    names
}

/// Names of other addresses.
pub(super) fn extra_hosts(services: &[&ServiceSpec]) -> BTreeMap<String, BTreeSet<String>> {
    let mut hosts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, address) in services.iter().flat_map(|service| &service.links.extra_hosts) {
        hosts.entry(address.clone()).or_default().insert(name.clone());
    }
    hosts
}

/// The one architecture that the services ask for.
pub(super) fn architecture(services: &[&ServiceSpec], problems: &Problems) -> Option<String> {
    let mut asked = services.iter().filter_map(|s| Some((s, s.links.architecture.as_ref()?)));
    let (_, first) = asked.next()?;
    if let Some((service, _)) = asked.find(|(_, other)| *other != first) {
        let why = "the containers of a pod run on one node";
        problems.unsupported(&format!("services.{}.platform", service.name), why);
    }
    Some(first.clone())
}

/// Whether a name can be in the list of a pod's names.
fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !label.is_empty()
            && label.chars().all(inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 200 && name.split('.').all(is_label)
}

/// Checks the volumes of the whole file.
pub(super) fn volumes(table: Option<Table<'_>>) {
    let Some(table) = table else { return };
    let problems = table.problems;
    for (_, (at, value)) in table.into_entries() {
        let mut volume = Table::new(at, value, problems);
        let at = volume.at("driver");
        if volume.text("driver").is_some_and(|driver| driver != "local") {
            problems.unsupported(&at, "a pod has volumes that end with it only");
        }
        volume.ignore(&["name", "labels"]);
        volume.finish(|key| match key {
            "external" => "the volume must be the task's own",
            _ => "a pod has volumes that end with it only",
        });
    }
}
