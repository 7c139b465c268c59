//! One service of a compose file.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rollout_environment::compose::MAIN;
use serde_json::Value;

use super::interpolate::{UsePlace, VariableUse, Variables};
use super::model::{
    ContainerUser, NetworkMode, ServiceAmounts, ServiceImage, ServiceLinks, ServiceRole,
    ServiceSpec, StartCondition,
};
use super::size::VariableBytes;
use super::table::{Table, number, scalar};
use super::{env_file, health, mounts, units};

/// Keys that change nothing, or nothing that a trial can observe.
const WITHOUT_EFFECT: [&str; 15] = [
    "attach",
    "container_name",
    "cpu_shares",
    "hostname",
    "init",
    "label_file",
    "labels",
    "logging",
    "mem_swappiness",
    "memswap_limit",
    "oom_score_adj",
    "profiles",
    "pull_policy",
    "stop_grace_period",
    "stop_signal",
];

/// The network of a service without `networks`.
const DEFAULT_NETWORK: &str = "default";

/// Inputs of a service beside its own keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServiceContext<'a> {
    /// The build context, with links resolved.
    pub(super) root: &'a Path,
    /// Variables of which `environment` may give only the name.
    pub(super) variables: &'a Variables,
    /// Uses of variables of the trial.
    pub(super) trial: &'a RefCell<BTreeSet<VariableUse>>,
    /// Bytes that files of variables may still have.
    pub(super) bytes: &'a VariableBytes,
    /// The source of the environment's own image, if that was prepared.
    pub(super) prepared: Option<Prepared<'a>>,
    /// Names of the services that are started.
    pub(super) started: &'a BTreeSet<String>,
}

/// The environment's own image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prepared<'a> {
    pub(super) reference: &'a str,
    /// Whether it was built from the build context.
    pub(super) is_built: bool,
}

/// Why a key is unsupported.
fn reason(key: &str) -> &'static str {
    match key {
        "privileged" | "cap_add" | "devices" | "device_cgroup_rules" | "security_opt" => {
            "would give the task control over the node"
        }
        "pid" | "ipc" | "uts" | "cgroup" | "cgroup_parent" | "userns_mode" => {
            "the namespaces of a pod cannot be chosen"
        }
        "dns" | "dns_opt" | "dns_search" | "domainname" | "mac_address" | "group_add"
        | "sysctls" => "the containers of a pod have it in common",
        "configs" | "secrets" => {
            "a file of the task cannot be mounted into a pod: copy it into an image"
        }
        "ulimits" | "pids_limit" | "cpuset" | "blkio_config" => "a pod has no such limit",
        "extends" => "write the keys into the service",
        _ => "is not supported",
    }
}

/// Reads a service.
pub(super) fn read(name: &str, mut table: Table<'_>, context: &ServiceContext<'_>) -> ServiceSpec {
    let links = links(&mut table);
    let waits_for = waits_for(&mut table, &links, context);
    let image = image(name, &mut table, context);
    let (limits, requests) = amounts(&mut table);
    let restarts = restarts(&mut table);
    let spec = ServiceSpec {
        name: name.to_owned(),
        image,
        entrypoint: entrypoint(&mut table),
        command: command(&mut table, "command"),
        env: environment(name, &mut table, context),
        workdir: workdir(&mut table),
        user: user(&mut table),
        waits_for,
        health: table.table("healthcheck").and_then(health::read),
        mounts: mounts::read(&mut table),
        limits,
        requests,
        restarts,
        dropped: dropped(&mut table),
        is_read_only: table.flag("read_only"),
        has_terminal: table.flag("tty"),
        has_stdin: table.flag("stdin_open"),
        role: ServiceRole::default(),
        links,
    };
    if name == MAIN && spec.entrypoint.is_none() && spec.has_own_process() {
        let why = "it would run without the entrypoint of its image: write `entrypoint` as well";
        table.problems.unsupported(&table.at("command"), why);
    }
    refuse_options(&mut table);
    table.ignore(&WITHOUT_EFFECT);
    table.finish(reason);
    spec
}

/// Refuses keys of which a pod has some values only.
fn refuse_options(table: &mut Table<'_>) {
    let only = ["no-new-privileges", "no-new-privileges:true", "no-new-privileges=true"];
    let at = table.at("security_opt");
    if table.texts("security_opt").iter().any(|option| !only.contains(&option.as_str())) {
        table.problems.unsupported(&at, reason("security_opt"));
    }
    let at = table.at("ipc");
    if table.text("ipc").is_some_and(|mode| mode != "private" && mode != "shareable") {
        table.problems.unsupported(&at, reason("ipc"));
    }
    let at = table.at("scale");
    if table.take("scale").is_some_and(|(_, value)| number(&value) != Some(1.0)) {
        table.problems.unsupported(&at, "a pod has one container of each service");
    }
}

fn command(table: &mut Table<'_>, key: &str) -> Option<Vec<String>> {
    table.parsed(key, units::words, "a command").filter(|words| !words.is_empty())
}

fn entrypoint(table: &mut Table<'_>) -> Option<Vec<String>> {
    if table.is_blank("entrypoint") {
        let why = "a pod cannot take away the entrypoint of an image: write the words of `command` \
                   into it";
        table.problems.unsupported(&table.at("entrypoint"), why);
    }
    command(table, "entrypoint")
}

fn workdir(table: &mut Table<'_>) -> Option<String> {
    let at = table.at("working_dir");
    let path = table.text("working_dir")?;
    if !path.starts_with('/') {
        table.problems.unsupported(&at, "it is not an absolute path");
    }
    Some(path)
}

fn user(table: &mut Table<'_>) -> Option<ContainerUser> {
    let at = table.at("user");
    let text = table.text("user")?;
    let id = |text: &str| if text == "root" { Some(0) } else { text.parse().ok() };
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (id(user), Some(id(group))),
        None => (id(&text), None),
    };
    match (user, group) {
        (Some(user), None) => Some(ContainerUser { user, group: None }),
        (Some(user), Some(Some(group))) => Some(ContainerUser { user, group: Some(group) }),
        _ => {
            table.problems.unsupported(&at, "a pod names users and groups by their numbers");
            None
        }
    }
}

fn dropped(table: &mut Table<'_>) -> Vec<String> {
    let names = table.texts("cap_drop").into_iter();
    names.map(|name| name.trim_start_matches("CAP_").to_ascii_uppercase()).collect()
}

fn environment(
    service: &str,
    table: &mut Table<'_>,
    context: &ServiceContext<'_>,
) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    let mut files = Vec::new();
    if let Some((at, value)) = table.take("env_file") {
        let items = match value {
            Value::Array(items) => items,
            other => vec![other],
        };
        for item in items {
            if item.is_object() {
                let mut entry = Table::new(at.clone(), item, table.problems);
                let required = !entry.is_off("required");
                files.extend(entry.text("path").map(|path| (at.clone(), path, required)));
                entry.finish(|_| "is not supported");
            } else if let Some(path) = scalar(&item) {
                files.push((at.clone(), path, true));
            }
        }
    }
    for (at, path, required) in files {
        match env_file::read(context.root, &path, context.bytes) {
            Ok(Some(found)) => env.extend(found),
            Ok(None) if required => table.problems.invalid(&at, &format!("there is no `{path}`")),
            Ok(None) => {}
            Err(why) => table.problems.unsupported(&at, &why),
        }
    }
    let at = table.at("environment");
    for (name, value) in table.pairs("environment") {
        // A name alone passes a variable on.
        if value.is_none() && context.variables.is_of_trial(&name) {
            let (at, place) = (format!("{at}.{name}"), UsePlace::Environment(service.to_owned()));
            context.trial.borrow_mut().insert(VariableUse { at, place, name: name.clone() });
        }
        match value.or_else(|| context.variables.get(&name).cloned()) {
            Some(value) => env.insert(name, value),
            None => env.remove(&name),
        };
    }
    env
}

fn image(name: &str, table: &mut Table<'_>, context: &ServiceContext<'_>) -> ServiceImage {
    let prepared = context.prepared.filter(|_| name == MAIN);
    let named = table.text("image");
    let built = match table.take("build") {
        Some((at, value @ Value::Object(_))) => {
            build(Table::new(at, value, table.problems), context)
        }
        Some((at, value)) => directory(table, &at, &scalar(&value).unwrap_or_default(), context),
        None => None,
    };
    match (named, built, prepared) {
        // A named image takes precedence over a build under its name.
        (Some(named), Some(_), Some(own)) if !own.is_built && named == own.reference => {
            ServiceImage::Prepared
        }
        (_, Some(dir), Some(own)) if own.is_built && dir == context.root => ServiceImage::Prepared,
        (_, Some(dir), _) => ServiceImage::Built(dir),
        (_, None, Some(own)) if own.is_built => ServiceImage::Prepared,
        (Some(named), None, Some(own)) if named == own.reference => ServiceImage::Prepared,
        (Some(named), None, _) => ServiceImage::Named(named),
        (None, None, Some(_)) => ServiceImage::Prepared,
        (None, None, None) => {
            table.problems.invalid(&table.at("image"), "the service has neither image nor build");
            ServiceImage::Prepared
        }
    }
}

fn build(mut table: Table<'_>, context: &ServiceContext<'_>) -> Option<PathBuf> {
    let at = table.at("context");
    let dir = table.text("context").unwrap_or_else(|| ".".to_owned());
    let dir = directory(&table, &at, &dir, context);
    let at = table.at("dockerfile");
    if table.text("dockerfile").is_some_and(|name| name != "Dockerfile") {
        table.problems.unsupported(&at, "the builder reads `Dockerfile` only");
    }
    table.ignore(&["labels", "pull", "tags"]);
    table.finish(|_| "the builder has no such option");
    dir
}

/// A directory of the build context.
fn directory(
    table: &Table<'_>,
    at: &str,
    name: &str,
    context: &ServiceContext<'_>,
) -> Option<PathBuf> {
    match context.root.join(name).canonicalize() {
        Ok(real) if real.starts_with(context.root) => Some(real),
        Ok(_) => {
            let why = format!("`{name}` is outside the task's environment directory");
            table.problems.unsupported(at, &why);
            None
        }
        Err(error) => {
            table.problems.invalid(at, &format!("cannot read `{name}`: {error}"));
            None
        }
    }
}

fn waits_for(
    table: &mut Table<'_>,
    links: &ServiceLinks,
    context: &ServiceContext<'_>,
) -> BTreeMap<String, StartCondition> {
    let linked = links.links.iter().map(|(service, _)| service.clone());
    let mut found: BTreeMap<_, _> =
        linked.map(|service| (service, StartCondition::Started)).collect();
    let Some((at, value)) = table.take("depends_on") else { return found };
    if !value.is_object() {
        let items = value.as_array().into_iter().flatten().filter_map(scalar);
        found.extend(items.map(|service| (service, StartCondition::Started)));
        return found;
    }
    for (service, (at, value)) in Table::new(at, value, table.problems).into_entries() {
        let mut entry = Table::new(at, value, table.problems);
        let condition = match entry.text("condition").as_deref() {
            None | Some("service_started") => StartCondition::Started,
            Some("service_healthy") => StartCondition::Healthy,
            Some("service_completed_successfully") => StartCondition::Completed,
            Some(other) => {
                let why = format!("there is no condition `{other}`");
                entry.problems.invalid(&entry.at("condition"), &why);
                StartCondition::Started
            }
        };
        let is_optional = entry.is_off("required");
        // It is about commands of compose that a pod never gets.
        entry.ignore(&["restart"]);
        entry.finish(|_| "is not supported");
        if !is_optional || context.started.contains(&service) {
            found.insert(service, condition);
        }
    }
    found
}

/// Whether the service is restarted.
fn restarts(table: &mut Table<'_>) -> bool {
    let at = table.at("restart");
    match table.text("restart").as_deref() {
        None | Some("no") => false,
        Some("always" | "unless-stopped" | "on-failure") => true,
        Some(_) => {
            table.problems.unsupported(&at, "a pod does not count restarts");
            false
        }
    }
}

/// Limits and reservations, from all of their places.
fn amounts(table: &mut Table<'_>) -> (ServiceAmounts, ServiceAmounts) {
    let cpus = |table: &mut Table<'_>, key: &str| table.parsed(key, number, "a number");
    let size = |table: &mut Table<'_>, key: &str| {
        table.parsed(key, units::bytes, "a size such as `64m`").map(|bytes| bytes as f64)
    };
    let mut limits =
        ServiceAmounts { cpus: cpus(table, "cpus"), memory_bytes: size(table, "mem_limit") };
    let mut requests = ServiceAmounts { cpus: None, memory_bytes: size(table, "mem_reservation") };
    let quota = cpus(table, "cpu_quota");
    let period = cpus(table, "cpu_period").unwrap_or(100_000.0);
    limits.cpus = limits.cpus.or_else(|| quota.map(|quota| quota / period));
    let Some(mut deploy) = table.table("deploy") else { return (limits, requests) };
    if let Some(mut resources) = deploy.table("resources") {
        for (key, amounts) in [("limits", &mut limits), ("reservations", &mut requests)] {
            let Some(mut inner) = resources.table(key) else { continue };
            let found = (cpus(&mut inner, "cpus"), size(&mut inner, "memory"));
            amounts.cpus = amounts.cpus.or(found.0);
            amounts.memory_bytes = amounts.memory_bytes.or(found.1);
            inner.finish(|_| "a pod gives it to the environment only");
        }
        resources.finish(|_| "is not supported");
    }
    let at = deploy.at("replicas");
    if deploy.take("replicas").is_some_and(|(_, value)| number(&value) != Some(1.0)) {
        deploy.problems.unsupported(&at, "a pod has one container of each service");
    }
    let at = deploy.at("mode");
    if deploy.text("mode").is_some_and(|mode| mode != "replicated") {
        deploy.problems.unsupported(&at, "a pod has one container of each service");
    }
    deploy.ignore(&["labels"]);
    deploy.finish(|_| "is not supported");
    (limits, requests)
}

fn links(table: &mut Table<'_>) -> ServiceLinks {
    let mut links = ServiceLinks::default();
    let mode_at = table.at("network_mode");
    let mode = table.text("network_mode");
    let networks_at = table.at("networks");
    match table.take("networks") {
        Some((at, value @ Value::Object(_))) => {
            for (network, (at, value)) in Table::new(at, value, table.problems).into_entries() {
                let mut entry = Table::new(at, value, table.problems);
                links.aliases.extend(entry.texts("aliases"));
                entry.ignore(&["priority", "gw_priority"]);
                entry.finish(|_| "the containers of a pod have one address in common");
                links.networks.insert(network);
            }
        }
        Some((_, value)) => {
            links.networks.extend(value.as_array().into_iter().flatten().filter_map(scalar));
        }
        None => {}
    }
    match mode.as_deref() {
        None => {}
        Some("none") => links.mode = NetworkMode::None,
        Some(mode) if mode.starts_with("service:") => links.mode = NetworkMode::Service,
        Some(_) => {
            table.problems.unsupported(&mode_at, "would reach outside the task's own containers");
        }
    }
    if mode.is_some() && !links.networks.is_empty() {
        table.problems.invalid(&networks_at, "`network_mode` excludes it");
    }
    links.names_networks = !links.networks.is_empty();
    if mode.is_none() && links.networks.is_empty() {
        links.networks.insert(DEFAULT_NETWORK.to_owned());
    }
    for key in ["hostname", "container_name"] {
        links.aliases.extend(table.text(key));
    }
    let named = table.texts("links").into_iter().map(|link| match link.split_once(':') {
        Some((service, alias)) => (service.to_owned(), alias.to_owned()),
        None => (link.clone(), link),
    });
    links.links = named.collect();
    links.extra_hosts = extra_hosts(table);
    links.ports = ports(table);
    let at = table.at("platform");
    links.architecture = table.text("platform").and_then(|platform| {
        let architecture = platform.strip_prefix("linux/").map(str::to_owned);
        if architecture.as_ref().is_none_or(|name| name.contains('/')) {
            table.problems.unsupported(&at, "nodes are chosen by `linux/` and an architecture");
        }
        architecture
    });
    links
}

fn extra_hosts(table: &mut Table<'_>) -> Vec<(String, String)> {
    let Some((at, value)) = table.take("extra_hosts") else { return Vec::new() };
    let entries: Vec<(String, String)> = match &value {
        Value::Object(map) => {
            map.iter().map(|(host, ip)| (host.clone(), scalar(ip).unwrap_or_default())).collect()
        }
        _ => {
            let items = value.as_array().into_iter().flatten().filter_map(scalar);
            let entry = |item: String| {
                let (host, address) = item.split_once(['=', ':'])?;
                Some((host.to_owned(), address.to_owned()))
            };
            items.filter_map(entry).collect()
        }
    };
    let is_address = |address: &str| address.parse::<std::net::IpAddr>().is_ok();
    if entries.iter().any(|(_, address)| !is_address(address)) {
        table
            .problems
            .unsupported(&at, "a pod knows no other names of addresses, such as the host's");
    }
    entries
}

/// Ports in the container, with their protocol.
fn ports(table: &mut Table<'_>) -> BTreeMap<(String, String), String> {
    let mut found = BTreeMap::new();
    for key in ["expose", "ports"] {
        let Some((at, value)) = table.take(key) else { continue };
        for item in value.as_array().into_iter().flatten() {
            let (port, protocol) = match item {
                Value::Object(map) => {
                    let text = |key: &str| map.get(key).and_then(scalar);
                    let protocol = text("protocol").unwrap_or_else(|| "tcp".to_owned());
                    (text("target").unwrap_or_default(), protocol)
                }
                other => {
                    let text = scalar(other).unwrap_or_default();
                    let (rest, protocol) = text.split_once('/').unwrap_or((&text, "tcp"));
                    let inside = rest.rsplit(':').next().unwrap_or(rest);
                    (inside.to_owned(), protocol.to_owned())
                }
            };
            found.entry((port, protocol)).or_insert_with(|| at.clone());
        }
    }
    found
}

/// The profiles of a service: with any, it is not started.
pub(super) fn has_profiles(value: &Value) -> bool {
    let profiles = value.get("profiles").and_then(Value::as_array);
    profiles.is_some_and(|profiles| !profiles.is_empty())
}

/// Names of the services that a set refers to.
pub(super) fn names<'a>(services: impl Iterator<Item = &'a ServiceSpec>) -> BTreeSet<&'a str> {
    services.map(|service| service.name.as_str()).collect()
}
