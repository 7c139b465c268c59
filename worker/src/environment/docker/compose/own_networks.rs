//! Services that name their networks. They keep these networks where the environment has none: the
//! file says so, and only `main` and the services that name no network are isolated.
//!
//! A network that such a service names becomes two: a closed one with all its members, by which they
//! reach each other, and one with a way out, in which only services are that name it.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use rollout_protocol::limits;
use serde_json::{Map, Value, json};

use super::files;
use super::render::map;
use crate::confined::ConfinedDir;
use crate::environment::compose::MAIN;

/// Suffix of the names of networks with a way out.
const OUTSIDE: &str = "-outside";

/// Depth limit of `extends` between services.
const DEPTH: usize = 8;

/// The services beside the environment that name networks in a file that has been checked. The
/// resolved file does not tell: there every service names one.
///
/// # Errors
/// The error of reading a file.
pub(super) fn read(root: &Path, file: &Path) -> io::Result<BTreeSet<String>> {
    let document = ServicesDocument::read(root, &root.join(file), root)?;
    let mut named = BTreeSet::new();
    for (name, service) in &document.services {
        if name != MAIN && document.names_networks(root, service, 0)? {
            named.insert(name.clone());
        }
    }
    Ok(named)
}

/// The services of a file as they are written.
struct ServicesDocument {
    services: Map<String, Value>,
    /// Directory that the file's paths are relative to.
    base: PathBuf,
}

impl ServicesDocument {
    fn read(root: &Path, file: &Path, base: &Path) -> io::Result<Self> {
        let text = ConfinedDir::open(root)?.read_text(file, limits::CONFIG_FILE_BYTES)?;
        let document: Value =
            serde_saphyr::from_str(&text).map_err(|error| io::Error::other(error.to_string()))?;
        let services = merged(&document).get("services").map(merged).unwrap_or_default();
        Ok(Self { services, base: base.to_owned() })
    }

    /// Whether a service, or one that it extends, names a network.
    fn names_networks(&self, root: &Path, service: &Value, depth: usize) -> io::Result<bool> {
        let service = merged(service);
        let is_named = |networks: &Value| match networks {
            Value::Array(names) => !names.is_empty(),
            Value::Object(names) => !names.is_empty(),
            _ => false,
        };
        if service.get("networks").is_some_and(is_named) {
            return Ok(true);
        }
        let Some(extended) = service.get("extends").filter(|_| depth < DEPTH) else {
            return Ok(false);
        };
        let name = extended.as_str().or_else(|| extended.get("service")?.as_str());
        let file = extended.get("file").and_then(Value::as_str);
        let Some(name) = name else { return Ok(false) };
        match file {
            None => match self.services.get(name) {
                Some(other) => self.names_networks(root, other, depth + 1),
                None => Ok(false),
            },
            Some(file) => {
                let path = files::inside(root, &self.base, file).map_err(io::Error::other)?;
                let base = path.parent().unwrap_or(root).to_owned();
                let document = Self::read(root, &path, &base)?;
                match document.services.get(name) {
                    Some(other) => document.names_networks(root, other, depth + 1),
                    None => Ok(false),
                }
            }
        }
    }
}

/// A map with those that are merged into it.
fn merged(value: &Value) -> Map<String, Value> {
    let Some(own) = value.as_object() else { return Map::new() };
    let mut all = own.clone();
    let others: Vec<Value> = match all.remove("<<") {
        Some(Value::Array(others)) => others,
        Some(other) => vec![other],
        None => Vec::new(),
    };
    for (key, value) in others.iter().flat_map(merged) {
        all.entry(key).or_insert(value);
    }
    all
}

/// Puts the services `named` of a resolved file into networks of their own with a way out, beside the
/// networks that they name. Returns the names of the added networks.
pub(super) fn add_ways_out(
    top: &mut Map<String, Value>,
    named: &BTreeSet<String>,
) -> BTreeSet<String> {
    let defined = map(top, "networks").clone();
    let is_internal = |network: &str| {
        defined.get(network).and_then(|network| network.get("internal")) == Some(&json!(true))
    };
    let mut added = BTreeSet::new();
    for (_, service) in map(top, "services").iter_mut().filter(|(name, _)| named.contains(*name)) {
        let Some(service) = service.as_object_mut() else { continue };
        let Some(networks) = service.get_mut("networks").and_then(Value::as_object_mut) else {
            continue;
        };
        let open = networks.iter().filter(|(name, _)| !is_internal(name));
        let open: Vec<_> = open.map(|(name, place)| (name.clone(), place.clone())).collect();
        for (name, place) in open {
            let mut outside = format!("{name}{OUTSIDE}");
            while defined.contains_key(&outside) {
                outside.push_str(OUTSIDE);
            }
            // Addresses are those of the named network.
            let aliases = place.get("aliases").cloned();
            let place = aliases.map_or(Value::Null, |aliases| json!({"aliases": aliases}));
            networks.insert(outside.clone(), place);
            added.insert(outside);
        }
        // It is no way out for the packets of others.
        map(service, "sysctls").insert("net.ipv4.ip_forward".to_owned(), json!("0"));
    }
    for name in &added {
        map(top, "networks").insert(name.clone(), json!({}));
    }
    added
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(files: &[(&str, &str)]) -> Vec<String> {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().canonicalize().expect("there");
        for (name, text) in files {
            std::fs::write(root.join(name), text).expect("written");
        }
        read(&root, Path::new("compose.yaml")).expect("readable").into_iter().collect()
    }

    #[test]
    fn services_that_name_networks_are_found() {
        let text = "x-part: &part {networks: [back]}\nservices:\n  main: {networks: [default]}\n  \
                    plain: {image: x}\n  empty: {networks: }\n  list: {networks: [default]}\n  map: \
                    {networks: {back: }}\n  merged: {<<: *part}\n  extended: {extends: list}\n  far: \
                    {extends: {file: other.yaml, service: a}}\n  near: {extends: {service: plain}}\n";
        let other = "services: {a: {extends: b}, b: {networks: [default]}}\n";
        let found = names(&[("compose.yaml", text), ("other.yaml", other)]);
        assert_eq!(found, ["extended", "far", "list", "map", "merged"]);
        let round = "services: {a: {extends: b}, b: {extends: a}}\n";
        assert_eq!(names(&[("compose.yaml", round)]), Vec::<String>::new());
    }

    #[test]
    fn ways_out_are_added_beside_named_networks() {
        let mut model = json!({
            "services": {
                "main": {"networks": {"default": null}},
                "helper": {"networks": {
                    "default": {"aliases": ["h"], "ipv4_address": "10.0.0.9"},
                    "inner": null,
                }},
            },
            "networks": {"default": {"ipam": {}}, "inner": {"internal": true}},
        });
        let top = model.as_object_mut().expect("a map");
        let added = add_ways_out(top, &BTreeSet::from(["helper".to_owned()]));
        assert_eq!(added, BTreeSet::from(["default-outside".to_owned()]));
        assert_eq!(model["networks"]["default-outside"], json!({}));
        let helper = &model["services"]["helper"];
        assert_eq!(helper["networks"]["default-outside"], json!({"aliases": ["h"]}));
        assert_eq!(helper["networks"].as_object().expect("a map").len(), 3);
        assert_eq!(helper["sysctls"], json!({"net.ipv4.ip_forward": "0"}));
        assert_eq!(model["services"]["main"], json!({"networks": {"default": null}}));
    }
}
