//! Conversion of a resolved file to the one that is started: every service has an image that is
//! present, the owner's labels, limits and no mount of the host. Files of the build context that a
//! service mounts are placed into its container instead. So each trial has its own copy, and the
//! engine may be on another machine.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Once;

use rollout_environment::compose::MAIN;
use rollout_environment::service_hosts::ServiceHosts;
use rollout_environment::{CaBundle, CreateRequest};
use rollout_protocol::spec::environment::DockerSettings;
use serde_json::{Map, Value, json};

use super::super::create::{LOG_BYTES, PIDS};
use super::rules::{entries, literal};
use super::shares::ResourceShare;
use super::{host_paths, own_networks, service_hosts};

/// Requirements of one service before it can be created.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServiceRequirements {
    pub(super) image: ServiceImage,
    pub(super) files: Vec<PlacedFile>,
    /// Whether files can be placed into its containers.
    pub(super) takes_files: bool,
}

/// Source of a service's image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ServiceImage {
    /// The environment's own image, which was prepared.
    Prepared,
    /// An image to pull if absent.
    Named(String),
    /// An image to build.
    Built {
        context: PathBuf,
        dockerfile: String,
        args: BTreeMap<String, String>,
        target: Option<String>,
    },
}

/// A file or text to place into a container before it starts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PlacedFile {
    pub(super) content: PlacedContent,
    pub(super) target: String,
}

/// Content of a placed file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PlacedContent {
    /// A file or directory of the build context.
    Path(PathBuf),
    /// This text.
    Text(String),
}

/// The requirements of every service, by name. `prepared` is the environment's own image with the
/// build context it was built from; none when the compose file defines the image of `main`.
pub(super) fn needs(
    model: &Value,
    prepared: Option<(&str, Option<&str>)>,
) -> Result<BTreeMap<String, ServiceRequirements>, String> {
    let mut needs = BTreeMap::new();
    for (name, service) in entries(model, "services") {
        let prepared = prepared.filter(|_| name == MAIN);
        let image = image(service, prepared)
            .ok_or_else(|| format!("service `{name}` has neither an image nor a build"))?;
        let (files, takes_files) = (files(model, service), takes_files(service));
        needs.insert(name.clone(), ServiceRequirements { image, files, takes_files });
    }
    if needs.contains_key(MAIN) { Ok(needs) } else { Err(format!("there is no service `{MAIN}`")) }
}

fn takes_files(service: &Value) -> bool {
    service.get("read_only") != Some(&json!(true))
}

/// A text that is not empty.
pub(super) fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// Source of the image of a service, as [`needs`] takes it.
pub(super) fn image(
    service: &Value,
    prepared: Option<(&str, Option<&str>)>,
) -> Option<ServiceImage> {
    let named = text(service, "image").map(literal);
    let build = service.get("build").filter(|build| build.is_object());
    let Some(build) = build else {
        let named = named?;
        let own = prepared.is_some_and(|(image, _)| image == named);
        return Some(if own { ServiceImage::Prepared } else { ServiceImage::Named(named) });
    };
    let context = literal(text(build, "context")?);
    let dockerfile = text(build, "dockerfile").map_or_else(|| "Dockerfile".to_owned(), literal);
    // The program has no value for those that are null: their default counts.
    let args: BTreeMap<_, _> = entries(build, "args")
        .filter(|(_, value)| !value.is_null())
        .map(|(name, value)| (name.clone(), literal(&plain(value))))
        .collect();
    let target = text(build, "target").map(literal);
    if let Some((image, from)) = prepared {
        let plain = dockerfile == "Dockerfile" && args.is_empty() && target.is_none();
        let own = plain && from == Some(context.as_str());
        // A named image takes precedence over a build under its name.
        if own || (from.is_none() && named.as_deref() == Some(image)) {
            return Some(ServiceImage::Prepared);
        }
    }
    Some(ServiceImage::Built { context: context.into(), dockerfile, args, target })
}

/// A scalar as text.
fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Mounts of the build context, configs and secrets.
fn files(model: &Value, service: &Value) -> Vec<PlacedFile> {
    let list = |key: &str| service.get(key).and_then(Value::as_array).into_iter().flatten();
    let mut files = Vec::new();
    let of_context =
        |volume: &&Value| text(volume, "type") == Some("bind") && !host_paths::is_host_path(volume);
    for volume in list("volumes").filter(of_context) {
        if let (Some(source), Some(target)) = (text(volume, "source"), text(volume, "target")) {
            let content = PlacedContent::Path(literal(source).into());
            files.push(PlacedFile { content, target: literal(target) });
        }
    }
    for (kind, below) in [("configs", ""), ("secrets", "/run/secrets")] {
        for used in list(kind) {
            let Some(source) = text(used, "source") else { continue };
            let target = literal(text(used, "target").unwrap_or(source));
            let target = if target.starts_with('/') { target } else { format!("{below}/{target}") };
            let defined = model.get(kind).and_then(|kind| kind.get(source));
            let Some(defined) = defined else { continue };
            let content = match (text(defined, "file"), text(defined, "content")) {
                (Some(file), _) => PlacedContent::Path(literal(file).into()),
                (None, content) => PlacedContent::Text(literal(content.unwrap_or_default())),
            };
            files.push(PlacedFile { content, target });
        }
    }
    files
}

/// Inputs of the rendered file.
#[derive(Debug)]
pub(super) struct RenderContext<'a> {
    /// Name of the project, and of the environment's container.
    pub(super) name: &'a str,
    pub(super) labels: HashMap<String, String>,
    pub(super) request: &'a CreateRequest,
    pub(super) settings: &'a DockerSettings,
    /// Whether anything outside the services can be reached.
    pub(super) open: bool,
    /// Services that keep the networks they name when nothing else can be reached.
    pub(super) named: &'a BTreeSet<String>,
    /// Hosts that no proxy leads to.
    pub(super) hosts: &'a ServiceHosts,
    /// Images by service.
    pub(super) images: &'a BTreeMap<String, String>,
    /// Resource shares of services, by name.
    pub(super) shares: BTreeMap<String, ResourceShare>,
    /// Whether a CA bundle is placed into the containers that take files.
    pub(super) has_ca_bundle: bool,
}

/// Escapes a text for a file whose variables get replaced.
fn quoted(text: &str) -> String {
    text.replace('$', "$$")
}

/// The map at `key`, created if absent.
pub(super) fn map<'a>(value: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let entry = value.entry(key).or_insert_with(|| json!({}));
    if !entry.is_object() {
        *entry = json!({});
    }
    entry.as_object_mut().expect("it was made one")
}

impl RenderContext<'_> {
    /// Renders the file to start from a resolved and checked one.
    pub(super) fn render(&self, mut model: Value) -> Value {
        host_paths::replace_with_volumes(&mut model);
        let Some(top) = model.as_object_mut() else { return model };
        top.insert("name".to_owned(), json!(self.name));
        for key in ["configs", "secrets"] {
            top.remove(key);
        }
        for (name, service) in map(top, "services") {
            if self.has_ca_bundle {
                name_ca_bundle(name, service);
            }
            if let Some(service) = service.as_object_mut() {
                self.service(name, service);
                if name == MAIN {
                    self.main(service);
                }
                service_hosts::exempt(self.hosts, service);
            }
        }
        let ways_out = own_networks::add_ways_out(top, self.named);
        for (name, network) in map(top, "networks") {
            self.owned(name, network);
            if !self.open
                && !ways_out.contains(name)
                && let Some(network) = network.as_object_mut()
            {
                network.insert("internal".to_owned(), json!(true));
                network.remove("enable_ipv6");
                // Without an address of the host in it, the network does not reach the host.
                let inhibit = json!({"com.docker.network.bridge.inhibit_ipv4": "true"});
                network.insert("driver_opts".to_owned(), inhibit);
            }
        }
        for (name, volume) in map(top, "volumes") {
            self.owned(name, volume);
        }
        model
    }

    /// A network or volume.
    fn owned(&self, name: &str, value: &mut Value) {
        if !value.is_object() {
            *value = json!({});
        }
        let Some(value) = value.as_object_mut() else { return };
        value.insert("name".to_owned(), json!(format!("{}_{name}", self.name)));
        self.label(value);
    }

    fn label(&self, value: &mut Map<String, Value>) {
        let labels = map(value, "labels");
        for (key, text) in &self.labels {
            labels.insert(key.clone(), json!(quoted(text)));
        }
    }

    fn service(&self, name: &str, service: &mut Map<String, Value>) {
        // Services reach each other on their own network; they may not use ports of the host.
        for key in ["build", "pull_policy", "configs", "secrets", "profiles", "ports"] {
            service.remove(key);
        }
        if let Some(image) = self.images.get(name) {
            service.insert("image".to_owned(), json!(quoted(image)));
        }
        if let Some(Value::Array(volumes)) = service.get_mut("volumes") {
            volumes.retain(|volume| text(volume, "type") != Some("bind"));
        }
        if let Some(Value::String(alias)) = service.remove("container_name") {
            also_known_as(service, &alias);
        }
        self.label(service);
        service.insert("security_opt".to_owned(), json!(["no-new-privileges"]));
        service.insert("stop_grace_period".to_owned(), json!("0s"));
        let logging = json!({"max-size": LOG_BYTES, "max-file": "1"});
        service.insert("logging".to_owned(), json!({"driver": "json-file", "options": logging}));
        match self.shares.get(name) {
            Some(share) => share.write(service),
            None => {
                service.insert("pids_limit".to_owned(), json!(PIDS));
            }
        }
        for (key, value) in
            [("runtime", &self.settings.runtime), ("platform", &self.settings.platform)]
        {
            if let Some(value) = value {
                service.insert(key.to_owned(), json!(quoted(value)));
            }
        }
        if !self.open && !self.named.contains(name) {
            isolate(service);
        }
    }

    /// The environment itself.
    fn main(&self, service: &mut Map<String, Value>) {
        let (request, resources) = (self.request, &self.request.resources);
        service.insert("container_name".to_owned(), json!(self.name));
        service.insert("init".to_owned(), json!(true));
        service.remove("scale");
        if let Some(workdir) = &request.workdir {
            service.insert("working_dir".to_owned(), json!(quoted(workdir)));
        }
        let variables = map(service, "environment");
        for (name, value) in &request.env {
            variables.insert(name.clone(), json!(quoted(value)));
        }
        // The request's limits are those of the task after the job's overrides.
        service.remove("deploy");
        for key in ["cpus", "cpu_quota", "cpu_period", "cpu_count", "cpu_percent"] {
            service.remove(key);
        }
        for key in ["mem_limit", "memswap_limit", "mem_reservation"] {
            service.remove(key);
        }
        if let Some(cpus) = resources.cpu_ceiling() {
            service.insert("cpus".to_owned(), json!(cpus));
        }
        if let Some(mb) = resources.memory_ceiling_mb() {
            let bytes = json!((mb.saturating_mul(1024 * 1024)).to_string());
            service.insert("mem_limit".to_owned(), bytes.clone());
            service.insert("memswap_limit".to_owned(), bytes);
        }
        if resources.gpus > 0 {
            let device = json!({"capabilities": ["gpu"], "count": resources.gpus});
            let asked = json!({"resources": {"reservations": {"devices": [device]}}});
            service.insert("deploy".to_owned(), asked);
        }
    }
}

/// Closes what a closed network leaves open.
fn isolate(service: &mut Map<String, Value>) {
    let mode = service.get("network_mode").and_then(Value::as_str);
    // A container in the network of another one has the servers of that one, and takes no others.
    if !mode.is_some_and(|mode| mode.starts_with("service:")) {
        // Old engines resolve a container's names through servers on the host's own loopback.
        service.insert("dns".to_owned(), json!(["127.0.0.1"]));
    }
    let dropped = service.entry("cap_drop").or_insert_with(|| json!([]));
    if let Value::Array(dropped) = dropped {
        dropped.push(json!("NET_RAW"));
    }
}

/// Sets the variables that name the CA bundle, unless they are set.
fn name_ca_bundle(service_name: &str, service: &mut Value) {
    if !takes_files(service) {
        static NOTICE: Once = Once::new();
        NOTICE.call_once(|| {
            tracing::warn!(
                service = service_name,
                "services with `read_only` do not have the CA bundle"
            );
        });
        return;
    }
    let Some(service) = service.as_object_mut() else { return };
    let variables = map(service, "environment");
    for (name, path) in CaBundle::variables() {
        variables.entry(name).or_insert_with(|| json!(path));
    }
}

/// Container names are global to the engine, so the requested name becomes an alias in the task's
/// networks.
fn also_known_as(service: &mut Map<String, Value>, alias: &str) {
    for network in service.get_mut("networks").and_then(Value::as_object_mut).into_iter().flatten()
    {
        if !network.1.is_object() {
            *network.1 = json!({});
        }
        let aliases = network.1.as_object_mut().map(|n| n.entry("aliases").or_insert(json!([])));
        if let Some(Value::Array(aliases)) = aliases {
            aliases.push(json!(alias));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn isolated_service_in_network_of_another_one_names_no_servers() {
        for (mut service, expected) in [
            (
                json!({"cap_drop": ["CHOWN"]}),
                json!({"cap_drop": ["CHOWN", "NET_RAW"], "dns": ["127.0.0.1"]}),
            ),
            (
                json!({"network_mode": "none"}),
                json!({"network_mode": "none", "cap_drop": ["NET_RAW"], "dns": ["127.0.0.1"]}),
            ),
            (
                json!({"network_mode": "service:helper"}),
                json!({"network_mode": "service:helper", "cap_drop": ["NET_RAW"]}),
            ),
        ] {
            isolate(service.as_object_mut().expect("a map"));
            assert_eq!(service, expected);
        }
    }

    #[test]
    fn build_argument_without_a_value_is_left_out() {
        let args =
            json!({"NULL": null, "EMPTY": "", "TEXT": "null", "NUMBER": 12, "DOLLAR": "$$x"});
        let service = json!({"build": {"context": "/c", "args": args}});
        let Some(ServiceImage::Built { args, .. }) = image(&service, None) else {
            panic!("no build");
        };
        let expected = [("DOLLAR", "$x"), ("EMPTY", ""), ("NUMBER", "12"), ("TEXT", "null")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(args, BTreeMap::from(expected));
    }
}
