//! Rules for services. A task can never get control over the host: unknown keys are refused, with
//! the service and the key.

use std::path::{Path, PathBuf};

use rollout_environment::compose::HostPath;
use rollout_environment::compose_limits;
use rollout_environment::image_reference::ImageReference;
use serde_json::{Map, Value};

use super::shares;

/// Keys of a service that stay inside its own container and network.
const SERVICE_KEYS: [&str; 52] = [
    "attach",
    "cap_drop",
    "command",
    "configs",
    "container_name",
    "cpu_count",
    "cpu_percent",
    "cpu_period",
    "cpu_quota",
    "cpu_shares",
    "cpus",
    "cpuset",
    "depends_on",
    "dns",
    "dns_opt",
    "dns_search",
    "domainname",
    "entrypoint",
    "environment",
    "expose",
    "extra_hosts",
    "group_add",
    "healthcheck",
    "hostname",
    "init",
    "labels",
    "links",
    "logging",
    "mac_address",
    "mem_limit",
    "mem_reservation",
    "mem_swappiness",
    "memswap_limit",
    "networks",
    "pids_limit",
    "platform",
    "ports",
    "profiles",
    "pull_policy",
    "read_only",
    "restart",
    "scale",
    "secrets",
    "shm_size",
    "stdin_open",
    "stop_grace_period",
    "stop_signal",
    "tmpfs",
    "tty",
    "user",
    "working_dir",
    "build",
];

/// Keys of a build that use only its files.
const BUILD_KEYS: [&str; 7] = ["args", "context", "dockerfile", "labels", "pull", "tags", "target"];

/// Keys of the whole file.
const TOP_LEVEL_KEYS: [&str; 7] =
    ["configs", "name", "networks", "secrets", "services", "version", "volumes"];

/// Keys of a service's network with addresses of the service.
const ADDRESS_KEYS: [&str; 3] = ["ipv4_address", "ipv6_address", "link_local_ips"];

/// The default CPU weight of a container.
const CPU_SHARES: f64 = 1024.0;

/// Networks and volumes of one file: network addresses are scarce on every host.
const MAX_COUNTS: [(&str, usize); 2] = [("networks", 8), ("volumes", 32)];

/// Checks a resolved file. The build context is `root`, with links resolved. Blocks.
pub(super) fn check(model: &Value, root: &Path) -> Result<(), String> {
    let top = model.as_object().ok_or("it is not a map")?;
    if let Some(key) = top.keys().find(|key| !known(&TOP_LEVEL_KEYS, key)) {
        return Err(format!("`{key}` is not supported"));
    }
    for (name, service) in entries(model, "services") {
        let keys = service.as_object().ok_or_else(|| format!("service `{name}` is not a map"))?;
        // Configs and secrets without a target are mounted under their name.
        let placed = ["configs", "secrets"].iter().filter_map(|key| keys.get(*key)).flat_map(list);
        for used in placed.filter(|used| used.get("target").is_some_and(|to| !is_empty(to))) {
            let to = used.get("target").and_then(Value::as_str).unwrap_or_default();
            let absolute = serde_json::json!({"target": format!("/{to}")});
            target(&absolute).map_err(|why| format!("service `{name}`: {why}"))?;
        }
        for (key, value) in keys.iter().filter(|(_, value)| !is_empty(value)) {
            service_key(key, value, root)
                .map_err(|why| format!("service `{name}`: `{key}`: {why}"))?;
        }
    }
    shares::check(model)?;
    for (kind, most) in MAX_COUNTS {
        let asked = entries(model, kind).count();
        if asked > most {
            return Err(format!("`{kind}`: {asked} requested, at most {most} are allowed"));
        }
    }
    for (kind, rule) in
        [("networks", network_key as fn(&str, &Value) -> _), ("volumes", volume_key)]
    {
        for (name, value) in entries(model, kind) {
            for (key, value) in value.as_object().into_iter().flatten() {
                if !is_empty(value) {
                    rule(key, value).map_err(|why| format!("{kind}: `{name}`: `{key}`: {why}"))?;
                }
            }
        }
    }
    for kind in ["configs", "secrets"] {
        for (name, value) in entries(model, kind) {
            file_definition(value, root).map_err(|why| format!("{kind}: `{name}`: {why}"))?;
        }
    }
    Ok(())
}

/// Checks that the engine chooses all addresses of a resolved file: a host sends what is for an address
/// of a network to the containers in this network.
pub(super) fn check_addresses(model: &Value) -> Result<(), String> {
    let chosen = |value: &Value, key: &str| value.get(key).is_some_and(|value| !is_empty(value));
    for (name, network) in entries(model, "networks") {
        if chosen(network, "ipam") {
            return Err(format!(
                "networks: `{name}`: `ipam`: the engine must choose the addresses"
            ));
        }
    }
    for (name, service) in entries(model, "services") {
        for (network, place) in entries(service, "networks") {
            if let Some(key) = ADDRESS_KEYS.iter().find(|key| chosen(place, key)) {
                return Err(format!(
                    "service `{name}`: `networks`: `{network}`: `{key}`: the engine must choose the \
                     address"
                ));
            }
        }
    }
    Ok(())
}

/// The named objects of a kind.
pub(super) fn entries<'a>(
    model: &'a Value,
    kind: &str,
) -> impl Iterator<Item = (&'a String, &'a Value)> {
    model.get(kind).and_then(Value::as_object).into_iter().flat_map(Map::iter)
}

fn known(list: &[&str], key: &str) -> bool {
    list.contains(&key) || key.starts_with("x-")
}

/// Whether a value is empty or off.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

fn service_key(key: &str, value: &Value, root: &Path) -> Result<(), String> {
    let text = value.as_str().unwrap_or_default();
    let of_service = text.starts_with("service:");
    match key {
        "build" => build(value, root),
        "image" => {
            let checked = literal(text).parse::<ImageReference>().map(drop);
            checked.map_err(|error| error.to_string())
        }
        "ulimits" | "sysctls" => match compose_limits::refused(key, keys_of(value)) {
            None => Ok(()),
            Some(name) => Err(format!("`{name}` would reach beyond the limits of the task")),
        },
        "volumes" => list(value).try_for_each(|volume| mount(volume, root)),
        "deploy" => deploy(value),
        // Compared with containers of other trials, which have the default weight.
        "cpu_shares" if value.as_f64().is_some_and(|shares| shares > CPU_SHARES) => {
            Err(format!("{value} is more than the default {CPU_SHARES}"))
        }
        "security_opt" => {
            let only = ["no-new-privileges", "no-new-privileges:true", "no-new-privileges=true"];
            match list(value).find(|item| !item.as_str().is_some_and(|item| only.contains(&item))) {
                None => Ok(()),
                Some(other) => Err(format!("{other} would weaken the container's confinement")),
            }
        }
        "privileged" | "cap_add" | "devices" | "device_cgroup_rules" => {
            Err("would give the task control over the host".to_owned())
        }
        "network_mode" if text == "none" || of_service => Ok(()),
        "pid" if of_service => Ok(()),
        "ipc" if of_service || matches!(text, "private" | "shareable") => Ok(()),
        "cgroup" if text == "private" => Ok(()),
        "network_mode" | "pid" | "ipc" | "cgroup" | "uts" | "userns_mode" => {
            Err(format!("`{text}` would reach outside the task's own containers"))
        }
        key if known(&SERVICE_KEYS, key) => Ok(()),
        _ => Err("is not supported".to_owned()),
    }
}

fn build(value: &Value, root: &Path) -> Result<(), String> {
    let keys = value.as_object().ok_or("is not a map")?;
    if let Some((key, _)) =
        keys.iter().find(|(key, value)| !known(&BUILD_KEYS, key) && !is_empty(value))
    {
        return Err(format!("`{key}` is not supported"));
    }
    inside(root, value, "context")?;
    let dockerfile = value.get("dockerfile").and_then(Value::as_str).unwrap_or_default();
    if dockerfile.starts_with('/') || dockerfile.split('/').any(|part| part == "..") {
        return Err(format!("the Dockerfile `{dockerfile}` is outside its context"));
    }
    Ok(())
}

/// Checks a path in a container.
fn target(value: &Value) -> Result<(), String> {
    let target = value.get("target").and_then(Value::as_str).map(literal).unwrap_or_default();
    let below = Path::new(&target).components().all(|part| {
        matches!(part, std::path::Component::RootDir | std::path::Component::Normal(_))
    });
    if target.starts_with('/') && below && !target.trim_matches('/').is_empty() {
        return Ok(());
    }
    Err(format!("`{target}` is not an absolute path below the root of the container"))
}

fn mount(value: &Value, root: &Path) -> Result<(), String> {
    target(value)?;
    match value.get("type").and_then(Value::as_str).unwrap_or_default() {
        "volume" | "tmpfs" => Ok(()),
        "bind" => {
            let source = value.get("source").and_then(Value::as_str).unwrap_or_default();
            match HostPath::for_source(&literal(source))? {
                Some(_) => Ok(()),
                None => inside(root, value, "source").map_err(|why| {
                    let target = value.get("target").and_then(Value::as_str).unwrap_or_default();
                    format!("the source of `{}`: {why}", literal(target))
                }),
            }
        }
        other => Err(format!("mounts of type `{other}` are not supported")),
    }
}

fn deploy(value: &Value) -> Result<(), String> {
    let resources = value.get("resources");
    let asked = resources.and_then(|resources| resources.get("reservations"));
    for key in ["devices", "generic_resources"] {
        if asked.and_then(|asked| asked.get(key)).is_some_and(|value| !is_empty(value)) {
            return Err(format!("`resources.reservations.{key}` would give the service a device"));
        }
    }
    Ok(())
}

fn network_key(key: &str, value: &Value) -> Result<(), String> {
    match key {
        "name" | "ipam" | "internal" | "attachable" | "labels" | "enable_ipv6" => Ok(()),
        "driver" if matches!(value.as_str(), Some("bridge" | "default")) => Ok(()),
        "external" => Err("the network must be the task's own".to_owned()),
        _ => Err("is not supported".to_owned()),
    }
}

fn volume_key(key: &str, value: &Value) -> Result<(), String> {
    match key {
        "name" | "labels" => Ok(()),
        "driver" if value.as_str() == Some("local") => Ok(()),
        "external" => Err("the volume must be the task's own".to_owned()),
        _ => Err("is not supported".to_owned()),
    }
}

/// A config or secret.
fn file_definition(value: &Value, root: &Path) -> Result<(), String> {
    let keys = value.as_object().ok_or("is not a map")?;
    for (key, value) in keys.iter().filter(|(_, value)| !is_empty(value)) {
        match key.as_str() {
            "name" | "labels" | "content" => {}
            "file" if value.is_string() => inside(root, &Value::Object(keys.clone()), "file")?,
            _ => return Err(format!("`{key}` is not supported")),
        }
    }
    Ok(())
}

/// Checks that the path at `key`, which the program has made absolute, lies in `root`. Only a path below
/// `root` is named, without it: others would tell where this host keeps its files.
fn inside(root: &Path, value: &Value, key: &str) -> Result<(), String> {
    let path = value.get(key).and_then(Value::as_str).unwrap_or_default();
    let path = PathBuf::from(literal(path));
    let name = path.strip_prefix(root).ok().map(|below| match below.as_os_str().is_empty() {
        true => "`.`".to_owned(),
        false => format!("`{}`", below.display()),
    });
    match (path.canonicalize(), name) {
        (Ok(real), _) if real.starts_with(root) => Ok(()),
        (Err(error), Some(name)) => Err(format!("cannot read {name}: {error}")),
        (_, name) => {
            let name = name.as_deref().unwrap_or("a path");
            Err(format!("{name} is outside the task's environment directory"))
        }
    }
}

/// The keys of a map, or of a list of texts `KEY=VALUE`.
fn keys_of(value: &Value) -> impl Iterator<Item = &str> {
    let map = value.as_object().into_iter().flat_map(Map::keys).map(String::as_str);
    let texts = list(value).map(|item| item.as_str().unwrap_or_default());
    map.chain(texts.map(|text| text.split_once('=').map_or(text, |(key, _)| key)))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A text of a resolved file, unescaped: dollar signs are doubled there.
pub(super) fn literal(text: &str) -> String {
    text.replace("$$", "$")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The check of a model in which `ROOT` stands for the context and `HOST` for the directory that has
    /// it. No refusal names them.
    fn checked(model: &Value) -> Result<(), String> {
        let host = tempfile::tempdir().expect("a directory");
        let dir = tempfile::tempdir_in(host.path()).expect("a directory");
        std::fs::write(host.path().join("beside"), "").expect("written");
        let root = dir.path().canonicalize().expect("there");
        std::fs::create_dir(root.join("db")).expect("made");
        std::os::unix::fs::symlink("/etc", root.join("link")).expect("linked");
        let above = root.parent().expect("above").to_str().expect("text");
        let text = model.to_string().replace("ROOT", root.to_str().expect("text"));
        let text = text.replace("HOST", above);
        let checked = check(&serde_json::from_str(&text).expect("JSON"), &root);
        assert!(!checked.as_ref().is_err_and(|why| why.contains(above)), "{checked:?}");
        checked
    }

    fn service(keys: &Value) -> Value {
        json!({"name": "x", "services": {"db": keys}})
    }

    #[test]
    fn compose_model_without_host_access_is_accepted() {
        let model = json!({
            "name": "x", "x-note": 1,
            "services": {"db": {
                "image": "y", "privileged": false, "cap_add": [], "devices": null,
                "build": {"context": "ROOT/db", "dockerfile": "Dockerfile", "args": {"A": "b"}},
                "ulimits": {"nofile": {"soft": 1, "hard": 2}, "memlock": -1, "core": 0},
                "sysctls": {"net.core.somaxconn": "1024", "kernel.shmmax": "1"},
                "security_opt": ["no-new-privileges:true"], "network_mode": "service:main",
                "volumes": [{"type": "bind", "source": "ROOT/db", "target": "/x"},
                            {"type": "volume", "source": "data", "target": "/y"}],
                "deploy": {"resources": {"limits": {"cpus": 1}, "reservations": {"memory": "1"}}},
            }},
            "networks": {"default": {"name": "x_default", "ipam": {}}},
            "volumes": {"data": {"name": "x_data", "driver": "local"}},
            "configs": {"c": {"name": "x_c", "content": "y"}},
        });
        assert_eq!(checked(&model), Ok(()));
    }

    #[test]
    fn compose_model_with_chosen_addresses_is_known() {
        let network = |value: &Value| json!({"services": {}, "networks": {"labels": value}});
        let used = |value: &Value| service(&json!({"networks": {"services": value}}));
        let ranges = json!({"ipam": {"config": [{"subnet": "10.20.30.0/24"}]}});
        for (model, word) in [
            (network(&ranges), Some("`labels`: `ipam`")),
            (network(&json!({"ipam": {"driver": "other"}})), Some("`labels`: `ipam`")),
            (network(&json!({"ipam": {}, "internal": true})), None),
            (used(&json!({"ipv4_address": "10.20.30.40"})), Some("`ipv4_address`")),
            (used(&json!({"ipv6_address": "fd00::2"})), Some("`ipv6_address`")),
            (used(&json!({"link_local_ips": ["169.254.1.1"]})), Some("`link_local_ips`")),
            (used(&json!({"aliases": ["x"]})), None),
            (used(&Value::Null), None),
        ] {
            assert_eq!(checked(&model), Ok(()), "tasks of the host's own users may: {model}");
            let refusal = check_addresses(&model).err();
            let is_told = refusal.as_deref().map(|why| word.is_some_and(|word| why.contains(word)));
            assert_eq!(is_told, word.map(|_| true), "{model}: {refusal:?}");
        }
    }

    #[test]
    fn refusal_names_a_path_only_below_the_context() {
        let bind =
            |source: &str| json!({"volumes": [{"type": "bind", "source": source, "target": "/x"}]});
        let build = |context: &str| json!({"build": {"context": context}});
        let secret = |file: &str| json!({"services": {}, "secrets": {"s": {"file": file}}});
        for (model, words) in [
            (service(&bind("HOST/beside")), "the source of `/x`: a path is outside"),
            (service(&bind("HOST/missing")), "the source of `/x`: a path is outside"),
            (service(&bind("ROOT/missing")), "the source of `/x`: cannot read `missing`"),
            (service(&bind("ROOT/../beside")), "the source of `/x`: `../beside` is outside"),
            (service(&build("HOST")), "`build`: a path is outside"),
            (service(&build("ROOT/link")), "`build`: `link` is outside"),
            (secret("ROOT/0.yaml"), "cannot read `0.yaml`"),
            (secret("/etc/hostname"), "a path is outside"),
        ] {
            let refused = checked(&model).expect_err(words);
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn compose_model_with_host_access_is_refused_with_key() {
        let bind =
            |source: &str| json!({"volumes": [{"type": "bind", "source": source, "target": "/x"}]});
        let devices = json!({"resources": {"reservations": {"devices": [{"count": 1}]}}});
        for (model, word) in [
            (service(&json!({"privileged": true})), "`privileged`"),
            (service(&json!({"cap_add": ["SYS_ADMIN"]})), "`cap_add`"),
            (service(&json!({"devices": ["/dev/sda"]})), "`devices`"),
            (service(&json!({"network_mode": "host"})), "`network_mode`"),
            (service(&json!({"network_mode": "container:other"})), "`network_mode`"),
            (service(&json!({"pid": "host"})), "`pid`"),
            (service(&json!({"ipc": "host"})), "`ipc`"),
            (service(&json!({"userns_mode": "host"})), "`userns_mode`"),
            (service(&json!({"security_opt": ["seccomp=unconfined"]})), "`security_opt`"),
            (service(&json!({"ulimits": {"nofile": 1, "rtprio": 99}})), "`rtprio`"),
            (service(&json!({"ulimits": {"nice": {"soft": 40, "hard": 40}}})), "`nice`"),
            (service(&json!({"sysctls": {"kernel.core_pattern": "|/x"}})), "`kernel.core_pattern`"),
            (service(&json!({"sysctls": ["vm.swappiness=1"]})), "`vm.swappiness`"),
            (service(&json!({"image": "a/../127.0.0.1:18901/x"})), "`image`"),
            (service(&json!({"image": "a/../../events?x=1#b"})), "`image`"),
            (service(&json!({"use_api_socket": true})), "`use_api_socket`"),
            (service(&json!({"annotations": {"dev.gvisor.flag.x": "y"}})), "`annotations`"),
            (service(&json!({"volumes_from": ["container:x"]})), "`volumes_from`"),
            (service(&json!({"deploy": devices})), "`deploy`"),
            (service(&bind("/var/run/docker.sock")), "outside"),
            (service(&bind("ROOT/link/passwd")), "outside"),
            (service(&bind("ROOT/../x")), "`volumes`"),
            (service(&json!({"build": {"context": "/etc"}})), "outside"),
            (service(&json!({"build": {"context": "ROOT", "dockerfile": "../x"}})), "outside"),
            (service(&json!({"build": {"context": "ROOT", "ssh": ["default"]}})), "`ssh`"),
            (json!({"services": {}, "networks": {"n": {"external": true}}}), "`external`"),
            (json!({"services": {}, "networks": {"n": {"driver": "host"}}}), "`driver`"),
            (
                json!({"services": {}, "volumes": {"v": {"driver_opts": {"o": "bind"}}}}),
                "`driver_opts`",
            ),
            (json!({"services": {}, "secrets": {"s": {"file": "/etc/shadow"}}}), "outside"),
            (json!({"services": {}, "models": {"m": {"model": "x"}}}), "`models`"),
        ] {
            let refused = checked(&model).expect_err(&model.to_string());
            assert!(refused.contains(word), "{model}: {refused}");
        }
    }
}
