//! Resource limits of services. Together they get as many processors and as much memory as the
//! environment itself. The part that they do not request is divided evenly; requests above the
//! total are refused.

use std::collections::BTreeMap;

use rollout_environment::compose::{self, CONTAINERS, MAIN, RequestedLimits};
use rollout_protocol::spec::resources::Resources;
use serde_json::{Map, Value, json};

use super::super::create::PIDS;
use super::render::map;
use super::rules::entries;

/// Processes and threads in all of them together, and in one.
const PIDS_BESIDE: i64 = 4 * PIDS;

/// Keys of a service with the same meaning as `cpus`.
const CPU_KEYS: [&str; 5] = ["cpus", "cpu_quota", "cpu_period", "cpu_count", "cpu_percent"];

/// Resource limits of each container of a service.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ResourceShare {
    cpus: Option<f64>,
    memory_bytes: Option<u64>,
    pids: i64,
}

/// Number of containers that a service requests.
pub(super) fn containers(service: &Value) -> Result<u64, String> {
    let replicas = service.get("deploy").and_then(|deploy| deploy.get("replicas"));
    let asked = [("scale", service.get("scale")), ("deploy.replicas", replicas)];
    let found = asked.into_iter().find_map(|(key, value)| Some((key, value?)));
    let Some((key, value)) = found.filter(|(_, value)| !value.is_null()) else { return Ok(1) };
    value.as_u64().ok_or_else(|| format!("`{key}`: {value} is not a number of containers"))
}

/// The services other than the environment itself.
fn side_services(model: &Value) -> impl Iterator<Item = (&String, &Value)> {
    entries(model, "services").filter(|(name, _)| *name != MAIN)
}

/// Refuses more containers than are allowed beside an environment.
pub(super) fn check(model: &Value) -> Result<u64, String> {
    let mut all = 0u64;
    for (name, service) in side_services(model) {
        let asked = containers(service).map_err(|why| format!("service `{name}`: {why}"))?;
        all = all.saturating_add(asked);
        if asked > CONTAINERS {
            let why = format!("{asked} containers requested, at most {CONTAINERS} are allowed");
            return Err(format!("service `{name}`: `scale`: {why}"));
        }
    }
    if all > CONTAINERS {
        return Err(format!(
            "the services request {all} containers besides `{MAIN}`, at most {CONTAINERS} are \
             allowed"
        ));
    }
    Ok(all)
}

/// A limit that a service can set in two places.
fn figure<'a>(service: &'a Value, key: &str, limit: &str) -> Option<&'a Value> {
    let limits = service.get("deploy").and_then(|deploy| deploy.get("resources")?.get("limits"));
    let found = service.get(key).or_else(|| limits?.get(limit));
    found.filter(|value| !value.is_null())
}

/// A number, also if it is written as text.
fn number(value: &Value) -> Option<f64> {
    let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())?;
    (number.is_finite() && number > 0.0).then_some(number)
}

fn cpus(service: &Value) -> Option<f64> {
    let quota = || {
        let quota = number(service.get("cpu_quota")?)?;
        let period = service.get("cpu_period").and_then(number).unwrap_or(100_000.0);
        Some(quota / period)
    };
    figure(service, "cpus", "cpus").and_then(number).or_else(quota)
}

fn memory(service: &Value) -> Option<f64> {
    figure(service, "mem_limit", "memory").and_then(number)
}

/// The share of every service beside the environment, by name.
pub(super) fn for_services(
    model: &Value,
    resources: &Resources,
) -> Result<BTreeMap<String, ResourceShare>, String> {
    let all = check(model)?;
    let services: Vec<_> = side_services(model)
        .map(|(name, service)| {
            let (cpus, memory_bytes) = (cpus(service), memory(service));
            let containers = containers(service).unwrap_or(1);
            (name, RequestedLimits { containers, cpus, memory_bytes })
        })
        .collect();
    let asked: Vec<_> = services.iter().map(|(_, asked)| *asked).collect();
    let even = compose::even_share(&asked, resources)?;
    let pids = (PIDS_BESIDE / i64::try_from(all.max(1)).unwrap_or(i64::MAX)).min(PIDS);
    let share = |(name, asked): (&String, RequestedLimits)| {
        let memory = asked.memory_bytes.or(even.memory_bytes);
        let memory_bytes = memory.map(|bytes| bytes as u64);
        (name.clone(), ResourceShare { cpus: asked.cpus.or(even.cpus), memory_bytes, pids })
    };
    Ok(services.into_iter().map(share).collect())
}

impl ResourceShare {
    /// Writes it into a service and replaces all that the service set.
    pub(super) fn write(self, service: &mut Map<String, Value>) {
        let count = containers(&Value::Object(service.clone())).unwrap_or(1);
        let own_pids = service.get("pids_limit").and_then(Value::as_i64).filter(|pids| *pids > 0);
        for key in CPU_KEYS.into_iter().chain(["mem_limit", "memswap_limit"]) {
            service.remove(key);
        }
        if service.get("deploy").is_some_and(Value::is_object) {
            let deploy = map(service, "deploy");
            deploy.remove("replicas");
            deploy.remove("resources");
        }
        service.insert("scale".to_owned(), json!(count));
        if let Some(cpus) = self.cpus {
            // The engine accepts hundredths.
            service.insert("cpus".to_owned(), json!((cpus * 100.0).floor().max(1.0) / 100.0));
        }
        if let Some(bytes) = self.memory_bytes {
            let soft = service.get("mem_reservation").and_then(number);
            if soft.is_some_and(|soft| soft > bytes as f64) {
                service.remove("mem_reservation");
            }
            for key in ["mem_limit", "memswap_limit"] {
                service.insert(key.to_owned(), json!(bytes.to_string()));
            }
        }
        let pids = own_pids.map_or(self.pids, |own| own.min(self.pids));
        service.insert("pids_limit".to_owned(), json!(pids));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn resources(cpus: u32, memory_mb: u64) -> Resources {
        Resources { cpus, memory_mb, ..Resources::default() }
    }

    fn shares(
        services: &Value,
        cpus: u32,
        memory_mb: u64,
    ) -> Result<BTreeMap<String, ResourceShare>, String> {
        for_services(&json!({"services": services}), &resources(cpus, memory_mb))
    }

    #[test]
    fn compose_services_split_environment_resources() {
        let services = json!({
            "main": {"mem_limit": "99999999999"},
            "a": {"mem_limit": "268435456", "cpus": 0.5},
            "b": {"scale": 2},
            "c": {"deploy": {"replicas": 1, "resources": {"limits": {"cpus": "0.5"}}}},
        });
        let shares = shares(&services, 2, 1024).expect("enough");
        let memory: Vec<_> =
            shares.values().map(|s| s.memory_bytes.expect("a limit") / MIB).collect();
        let cpus: Vec<_> = shares.values().map(|s| s.cpus.expect("a limit")).collect();
        assert_eq!((memory, cpus), (vec![256, 256, 256], vec![0.5, 0.5, 0.5]));
        assert_eq!(shares["a"].pids, PIDS);
    }

    #[test]
    fn compose_services_above_environment_resources_are_refused() {
        for (services, word) in [
            (json!({"a": {"scale": 1000}}), "1000 containers"),
            (json!({"a": {"deploy": {"replicas": 1000}}}), "1000 containers"),
            (json!({"a": {"scale": 15}, "b": {"scale": 15}}), "30 containers"),
            (json!({"a": {"mem_limit": "1073741824000"}}), "1024000 MiB"),
            (json!({"a": {"mem_limit": "536870912"}, "b": {"mem_limit": "536870912"}}), "1024 MiB"),
            (json!({"a": {"cpus": 64}}), "64 cpus"),
            (json!({"a": {"cpu_quota": 800_000}}), "8 cpus"),
            (json!({"a": {"mem_limit": "536870912"}, "b": {}}), "528 MiB"),
        ] {
            let refused = shares(&services, 1, 512).expect_err(&services.to_string());
            assert!(refused.contains(word), "{services}: {refused}");
        }
    }

    #[test]
    fn compose_service_share_replaces_other_limits() {
        let mut service = json!({
            "cpu_quota": 1, "memswap_limit": "-1", "mem_reservation": "99", "pids_limit": -1,
            "deploy": {"replicas": 3, "resources": {"limits": {"memory": "1"}}, "mode": "replicated"},
        });
        let share = ResourceShare { cpus: Some(0.3333), memory_bytes: Some(100), pids: 128 };
        share.write(service.as_object_mut().expect("a map"));
        let expected = json!({
            "cpus": 0.33, "mem_limit": "100", "memswap_limit": "100", "mem_reservation": "99",
            "pids_limit": 128, "scale": 3, "deploy": {"mode": "replicated"},
        });
        assert_eq!(service, expected);
    }
}
