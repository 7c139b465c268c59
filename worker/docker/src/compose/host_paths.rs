//! Host paths of the older compose format. That format mounts directories of the host into `main`
//! and into services and collects the files written there. Here volumes of the project replace the
//! host directories. The environment gets them at its own directories as soon as a service shares
//! them.

use rollout_environment::compose::{HOST_PATHS, HostPath, MAIN};
use serde_json::{Map, Value, json};

use super::render::map;
use super::rules::{entries, literal};

fn for_mount(mount: &Value) -> Option<&'static HostPath> {
    if mount.get("type").and_then(Value::as_str) != Some("bind") {
        return None;
    }
    let source = mount.get("source").and_then(Value::as_str)?;
    HostPath::for_source(&literal(source)).ok().flatten()
}

/// Whether a mount of a resolved file has a host path as its source.
pub(super) fn is_host_path(mount: &Value) -> bool {
    for_mount(mount).is_some()
}

fn is_at(mount: &Value, inside: &str) -> bool {
    let target = mount.get("target").and_then(Value::as_str).map(literal);
    target.is_some_and(|target| target.trim_end_matches('/') == inside)
}

/// The host paths that a resolved file mounts.
pub(super) fn used(model: &Value) -> Vec<&'static HostPath> {
    mounted(model, |_, _, _| true)
}

/// The host paths that it mounts anywhere but at the environment's own directory.
fn shared(model: &Value) -> Vec<&'static HostPath> {
    mounted(model, |name, mount, path| name != MAIN || !is_at(mount, path.inside))
}

fn mounted(
    model: &Value,
    counts: impl Fn(&str, &Value, &HostPath) -> bool,
) -> Vec<&'static HostPath> {
    let uses = |path: &HostPath| {
        entries(model, "services").any(|(name, service)| {
            let mounts = service.get("volumes").and_then(Value::as_array);
            let mut of_path =
                mounts.into_iter().flatten().filter(|mount| for_mount(mount) == Some(path));
            of_path.any(|mount| counts(name, mount, path))
        })
    };
    HOST_PATHS.iter().filter(|path| uses(path)).collect()
}

/// Replaces all host paths by volumes. A host path that only the environment itself mounts, at its
/// own directory, needs none.
pub(super) fn replace_with_volumes(model: &mut Value) {
    let shared = shared(model);
    let Some(top) = model.as_object_mut() else { return };
    for path in &shared {
        map(top, "volumes").insert(path.volume.to_owned(), json!({}));
    }
    for (name, service) in map(top, "services") {
        let Some(service) = service.as_object_mut() else { continue };
        for mount in mounts(service) {
            if let Some(path) = for_mount(mount) {
                let read_only = mount.get("read_only") == Some(&json!(true));
                let target = mount.get("target").cloned().unwrap_or_default();
                *mount = volume(path, &target, read_only);
            }
        }
        if name == MAIN {
            own(service, &shared);
        }
    }
}

/// Mounts the shared volumes into the environment's container at its own directories.
fn own(service: &mut Map<String, Value>, shared: &[&HostPath]) {
    if shared.is_empty() && mounts(service).is_empty() {
        return;
    }
    let mounts = mounts(service);
    mounts.retain(|mount| {
        let of = |path: &HostPath| mount.get("source") == Some(&json!(path.volume));
        !HOST_PATHS.iter().any(|path| of(path) && is_at(mount, path.inside))
    });
    mounts.extend(shared.iter().map(|path| volume(path, &json!(path.inside), false)));
}

fn mounts(service: &mut Map<String, Value>) -> &mut Vec<Value> {
    let mounts = service.entry("volumes").or_insert_with(|| json!([]));
    if !mounts.is_array() {
        *mounts = json!([]);
    }
    mounts.as_array_mut().expect("it was made one")
}

/// Like a directory of the host, the volume hides the image's files at its target.
fn volume(path: &HostPath, target: &Value, read_only: bool) -> Value {
    json!({
        "type": "volume",
        "source": path.volume,
        "target": target,
        "read_only": read_only,
        "volume": {"nocopy": true},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(source: &str, target: &str) -> Value {
        json!({"type": "bind", "source": source, "target": target})
    }

    #[test]
    fn compose_host_log_paths_become_shared_volumes() {
        let mut model = json!({"services": {
            "main": {"volumes": [bind("/.rollout/agent-logs", "/logs/agent"), bind("/c/x", "/x")]},
            "db": {"volumes": [bind("/.rollout/artifacts/", "/out")]},
        }});
        replace_with_volumes(&mut model);
        let shared = json!({"type": "volume", "source": "rollout-artifacts", "read_only": false,
            "volume": {"nocopy": true}});
        let at = |target: &str| {
            let mut mount = shared.clone();
            mount["target"] = json!(target);
            mount
        };
        let main = [bind("/c/x", "/x"), at("/logs/artifacts")];
        assert_eq!(model["services"]["main"]["volumes"], json!(main));
        assert_eq!(model["services"]["db"]["volumes"], json!([at("/out")]));
        assert_eq!(model["volumes"], json!({"rollout-artifacts": {}}));
    }

    #[test]
    fn compose_source_below_host_path_is_refused() {
        assert!(
            HostPath::for_source("/.rollout/artifacts/db")
                .unwrap_err()
                .contains("HOST_ARTIFACTS_PATH")
        );
        assert_eq!(HostPath::for_source("/.rollout/artifacts-of-mine"), Ok(None));
    }
}
