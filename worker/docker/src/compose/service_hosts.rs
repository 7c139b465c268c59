//! Hosts of a resolved file that its services reach without a proxy: one another, and those that the file
//! adds in their networks.

use std::collections::BTreeMap;

use rollout_environment::proxies;
use rollout_environment::service_hosts::{ServiceHosts, is_inner};
use serde_json::{Map, Value};

use super::render::text;
use super::rules::{entries, literal};

/// Keys of a service with a name of it.
const NAMES: [&str; 2] = ["container_name", "hostname"];

/// Keys of a service's network with addresses of the service.
const ADDRESSES: [&str; 2] = ["ipv4_address", "ipv6_address"];

/// The hosts of a file.
pub(super) fn of(model: &Value) -> ServiceHosts {
    ServiceHosts::new(
        entries(model, "services").flat_map(|(name, service)| of_service(name, service)),
    )
}

fn of_service(name: &str, service: &Value) -> Vec<String> {
    let mut hosts = vec![name.to_owned()];
    let named = |key: &&str| text(service, key).map(literal);
    hosts.extend(NAMES.iter().filter_map(named));
    if let (Some(host), Some(domain)) = (text(service, "hostname"), text(service, "domainname")) {
        hosts.push(literal(&format!("{host}.{domain}")));
    }
    for (_, place) in entries(service, "networks") {
        hosts.extend(ADDRESSES.iter().filter_map(|key| text(place, key).map(literal)));
        hosts.extend(texts(place, "aliases"));
    }
    // `SERVICE` or `SERVICE:ALIAS`.
    let links = texts(service, "links");
    hosts.extend(links.filter_map(|link| link.split_once(':').map(|(_, alias)| alias.to_owned())));
    // `HOST=ADDRESS` or `HOST:ADDRESS`, or a map.
    let listed = texts(service, "extra_hosts").filter_map(|entry| {
        let (host, address) = entry.split_once(['=', ':'])?;
        is_inner(address).then(|| host.to_owned())
    });
    hosts.extend(listed);
    let mapped = entries(service, "extra_hosts").filter(|(_, addresses)| are_inner(addresses));
    hosts.extend(mapped.map(|(host, _)| literal(host)));
    hosts
}

/// Whether the address or all addresses of a host that a file adds are inner ones.
fn are_inner(addresses: &Value) -> bool {
    let is_inner = |address: &Value| address.as_str().is_some_and(is_inner);
    addresses.as_array().map_or_else(|| is_inner(addresses), |all| all.iter().all(is_inner))
}

/// The texts of a list.
fn texts<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = String> + use<'a> {
    let items = value.get(key).and_then(Value::as_array).into_iter().flatten();
    items.filter_map(|item| item.as_str().map(literal))
}

/// Exempts hosts from the proxies of a service, if its file names some.
pub(super) fn exempt(hosts: &ServiceHosts, service: &mut Map<String, Value>) {
    let Some(Value::Object(environment)) = service.get_mut("environment") else { return };
    let named = proxies::variable_names().filter_map(|name| {
        let value = environment.get(&name)?.as_str()?.to_owned();
        Some((name, value))
    });
    let mut env: BTreeMap<String, String> = named.collect();
    hosts.exempt(&mut env);
    environment.extend(env.into_iter().map(|(name, value)| (name, Value::String(value))));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hosts_are_names_and_addresses_of_services_and_inner_hosts_that_the_file_adds() {
        let model = json!({"services": {
            "main": {
                "links": ["db:database", "web"],
                "extra_hosts": [
                    "old.test=10.0.0.9", "host.docker.internal:host-gateway", "v6.test=[fd00::9]",
                    "pypi.org:151.101.0.223", "public.test=[2606:4700::1111]",
                ],
            },
            "db": {
                "container_name": "the-db", "hostname": "db1", "domainname": "corp.test",
                "networks": {
                    "default": {"aliases": ["sql", "a$$b"], "ipv4_address": "10.9.0.2"},
                    "back": null,
                },
            },
            "web": {"image": "x", "extra_hosts": {
                "map.test": ["10.0.0.1"], "one.test": "10.0.0.2", "far.test": ["1.1.1.1"],
                "both.test": ["10.0.0.1", "1.1.1.1"],
            }},
        }});
        let expected = [
            "main",
            "database",
            "old.test",
            "host.docker.internal",
            "v6.test",
            "db",
            "the-db",
            "db1",
            "db1.corp.test",
            "sql",
            "10.9.0.2",
            "web",
            "map.test",
            "one.test",
        ];
        assert_eq!(of(&model), ServiceHosts::new(expected.map(str::to_owned)));
        assert_eq!(of(&json!({"services": {}})), ServiceHosts::default());
    }

    #[test]
    fn proxies_of_a_service_do_not_lead_to_others() {
        let hosts = ServiceHosts::new(["db".to_owned()]);
        let mut service = json!({"environment": {"http_proxy": "http://p$$:1", "NO_PROXY": null}});
        exempt(&hosts, service.as_object_mut().expect("a map"));
        let list = "localhost,127.0.0.1,::1,db";
        let expected = json!({"http_proxy": "http://p$$:1", "NO_PROXY": list, "no_proxy": list});
        assert_eq!(service, json!({"environment": expected}));
        for plain in [json!({"environment": {"A": "b"}}), json!({"image": "x"})] {
            let mut service = plain.clone();
            exempt(&hosts, service.as_object_mut().expect("a map"));
            assert_eq!(service, plain);
        }
    }
}
