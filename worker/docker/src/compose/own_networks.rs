//! Services that name their networks. They keep these networks where the environment has none: the
//! file says so, and only `main` and the services that name no network are isolated.
//!
//! A network that such a service names becomes two: a closed one with all its members, by which they
//! reach each other, and one with a way out, in which only services are that name it. A service whose
//! network or processes an isolated one shares has no way out: it would be that of both.

use std::collections::BTreeSet;

use rollout_environment::compose::MAIN;
use serde_json::{Map, Value, json};

use super::files::ComposeFiles;
use super::render::map;

/// Suffix of the names of networks with a way out.
const OUTSIDE: &str = "-outside";

/// Depth limit of `extends` between services.
const DEPTH: usize = 8;

/// Keys by which a service uses the network of another one: its own, or through its processes.
const SHARING_KEYS: [&str; 2] = ["network_mode", "pid"];

/// The services beside the environment that name networks in the files of a task and of the job. The
/// resolved file does not tell: there every service names one.
pub(super) fn services(files: &ComposeFiles) -> BTreeSet<String> {
    let services = |file: &Value| {
        let services = file.get("services").and_then(Value::as_object).into_iter().flatten();
        let named = services.filter(|(name, service)| {
            name.as_str() != MAIN && names_networks(files, file, service, 0)
        });
        named.map(|(name, _)| name.clone()).collect::<Vec<_>>()
    };
    files.tops().flat_map(services).collect()
}

/// Whether a service of a file, or one that it extends, names a network.
fn names_networks(files: &ComposeFiles, file: &Value, service: &Value, depth: usize) -> bool {
    let is_named = match service.get("networks") {
        Some(Value::Array(names)) => !names.is_empty(),
        Some(Value::Object(names)) => !names.is_empty(),
        _ => false,
    };
    if is_named || depth == DEPTH {
        return is_named;
    }
    let Some(extended) = service.get("extends") else { return false };
    let name = extended.as_str().or_else(|| extended.get("service")?.as_str());
    let file = match extended.get("file").and_then(Value::as_str) {
        Some(name) => files.extended(name),
        None => Some(file),
    };
    let (Some(name), Some(file)) = (name, file) else { return false };
    let other = file.get("services").and_then(|services| services.get(name));
    other.is_some_and(|other| names_networks(files, file, other, depth + 1))
}

/// The services of `named` that share neither network nor processes with a service outside of it, in a
/// resolved file.
pub(super) fn apart(model: &Value, named: &BTreeSet<String>) -> BTreeSet<String> {
    let services = model.get("services").and_then(Value::as_object);
    let pairs = services.into_iter().flatten().flat_map(|(name, service)| {
        let others = SHARING_KEYS.iter().filter_map(move |key| service.get(*key)?.as_str());
        let others = others.filter_map(|mode| mode.strip_prefix("service:"));
        others.map(move |other| (name.as_str(), other))
    });
    let pairs: Vec<_> = pairs.collect();
    let mut apart = named.clone();
    // Through others, too.
    while let Some((one, other)) =
        pairs.iter().find(|(one, other)| apart.contains(*one) != apart.contains(*other))
    {
        apart.remove(*one);
        apart.remove(*other);
    }
    apart
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
    use rollout_environment::ComposeFile;

    use super::*;

    fn names(files: &[(&str, &str)]) -> Vec<String> {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path().canonicalize().expect("there");
        for (name, text) in files {
            std::fs::write(root.join(name), text).expect("written");
        }
        let compose = ComposeFile::of_task(root.clone(), "compose.yaml");
        let files = ComposeFiles::read(&compose, &root.join("copies")).expect("valid files");
        services(&files).into_iter().collect()
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
    fn service_whose_namespace_an_isolated_one_shares_has_no_way_out() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let named: BTreeSet<String> = names(&["far", "helper", "near"]);
        for (services, expected) in [
            (json!({"main": {"network_mode": "service:helper"}}), &["far", "near"][..]),
            (json!({"plain": {"network_mode": "service:helper"}}), &["far", "near"]),
            (json!({"main": {"pid": "service:helper"}}), &["far", "near"]),
            (json!({"helper": {"pid": "service:main"}}), &["far", "near"]),
            (
                json!({
                    "far": {"pid": "service:near"}, "helper": {"pid": "service:far"},
                    "plain": {"network_mode": "service:near"},
                }),
                &[],
            ),
            (json!({"far": {"pid": "service:near"}}), &["far", "helper", "near"]),
            (json!({"main": {"pid": null}, "helper": {}}), &["far", "helper", "near"]),
        ] {
            let model = json!({"services": services});
            assert_eq!(apart(&model, &named), names(expected), "{model}");
        }
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
