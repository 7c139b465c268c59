//! The processes of a container, from the manifest of its pod and its image.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use serde_json::Value;

use super::cluster::REGISTRY;
use super::container::ContainerPlan;
use super::image::ImageFixture;
use super::objects::ObjectKey;
use super::pod_run::PodRun;
use super::quantity::parse_milli;

/// Search path of images that set none.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Capabilities of a container that asks for no others.
const DEFAULT_CAPABILITIES: [&str; 14] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Variables of the API's service, which every container gets.
fn service_variables(address: SocketAddr) -> BTreeMap<String, String> {
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let url = format!("tcp://{address}");
    [
        ("KUBERNETES_PORT".to_owned(), url.clone()),
        (format!("KUBERNETES_PORT_{port}_TCP"), url),
        (format!("KUBERNETES_PORT_{port}_TCP_ADDR"), host.clone()),
        (format!("KUBERNETES_PORT_{port}_TCP_PORT"), port.clone()),
        (format!("KUBERNETES_PORT_{port}_TCP_PROTO"), "tcp".to_owned()),
        ("KUBERNETES_SERVICE_HOST".to_owned(), host),
        ("KUBERNETES_SERVICE_PORT".to_owned(), port.clone()),
        ("KUBERNETES_SERVICE_PORT_HTTPS".to_owned(), port),
    ]
    .into()
}

/// Reason for which a container cannot be started yet.
#[derive(Debug)]
pub(super) enum PlanError {
    /// `CreateContainerConfigError`.
    Config(String),
    /// `CreateContainerError`.
    Create(String),
}

/// Plans a container.
pub(super) fn plan(
    run: &PodRun,
    pod: &Value,
    spec: &Value,
    reference: &str,
    image: &ImageFixture,
) -> Result<ContainerPlan, PlanError> {
    let name = spec["name"].as_str().unwrap_or_default();
    let user = user(pod, spec, image)?;
    let env = variables(run, pod, spec, image, user)?;
    let command = command(spec, image, &env)?;
    let workdir = spec["workingDir"].as_str().unwrap_or(&image.workdir).to_owned();
    let files = run.cluster.directory();
    let context = &spec["securityContext"];
    let group =
        context["runAsGroup"].as_u64().or(pod["spec"]["securityContext"]["runAsGroup"].as_u64());
    let memory = spec["resources"]["limits"]["memory"].as_str().and_then(parse_milli);
    let mut mounts = mounts(run, pod, spec)?;
    if image.pushes {
        mounts.push((files.join(REGISTRY), "/registry".to_owned(), false));
    }
    Ok(ContainerPlan {
        name: name.to_owned(),
        directory: run.directory().join(name),
        layers: vec![files.join("images").join(image_directory(reference)), files.join("base")],
        host_name: run.key.name.chars().take(63).collect(),
        command,
        env: env.into_iter().collect(),
        workdir,
        user,
        group: group.unwrap_or(0) as u32,
        may_gain_privileges: context["allowPrivilegeEscalation"].as_bool().unwrap_or(true),
        capabilities: capabilities(&context["capabilities"]),
        mounts,
        removed: image.removed.clone(),
        memory_limit: memory.map(|milli| milli / 1000),
        hosts: hosts(pod),
    })
}

/// The names that a pod adds to those of its containers.
fn hosts(pod: &Value) -> String {
    let aliases = pod["spec"]["hostAliases"].as_array().into_iter().flatten();
    let line = |alias: &Value| {
        let names = alias["hostnames"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let names: Vec<&str> = names.collect();
        format!("{}\t{}\n", alias["ip"].as_str().unwrap_or_default(), names.join(" "))
    };
    aliases.map(line).collect()
}

/// Name of the directory of an image's files.
pub(super) fn image_directory(reference: &str) -> String {
    data_encoding::HEXLOWER.encode(reference.as_bytes())
}

fn user(pod: &Value, spec: &Value, image: &ImageFixture) -> Result<u32, PlanError> {
    let setting = |field: &str| -> Value {
        let own = &spec["securityContext"][field];
        if own.is_null() { pod["spec"]["securityContext"][field].clone() } else { own.clone() }
    };
    let set = setting("runAsUser").as_u64();
    let user = set.map_or(image.user, |user| user as u32);
    let obstacle = match &image.user_name {
        Some(name) if set.is_none() => {
            Some(format!("image has non-numeric user ({name}), cannot verify user is non-root"))
        }
        _ => (user == 0).then(|| "image will run as root".to_owned()),
    };
    match obstacle.filter(|_| setting("runAsNonRoot") == true) {
        None => Ok(user),
        Some(obstacle) => {
            let name = spec["name"].as_str().unwrap_or_default();
            let pod_name = pod["metadata"]["name"].as_str().unwrap_or_default();
            Err(PlanError::Config(format!(
                "container has runAsNonRoot and {obstacle} (pod: \"{pod_name}\", container: {name})"
            )))
        }
    }
}

fn capabilities(wish: &Value) -> Vec<String> {
    let names = |list: &Value| -> Vec<String> {
        let names = list.as_array().into_iter().flatten().filter_map(Value::as_str);
        names.map(|name| name.trim_start_matches("CAP_").to_uppercase()).collect()
    };
    let (dropped, added) = (names(&wish["drop"]), names(&wish["add"]));
    let mut kept: Vec<String> = DEFAULT_CAPABILITIES
        .iter()
        .map(|&name| name.to_owned())
        .filter(|name| !dropped.contains(name) && !dropped.iter().any(|drop| drop == "ALL"))
        .collect();
    kept.extend(added);
    kept
}

fn variables(
    run: &PodRun,
    pod: &Value,
    spec: &Value,
    image: &ImageFixture,
    user: u32,
) -> Result<BTreeMap<String, String>, PlanError> {
    let mut variables = service_variables(run.cluster.address);
    variables.insert("PATH".to_owned(), DEFAULT_PATH.to_owned());
    variables.insert("HOSTNAME".to_owned(), run.key.name.clone());
    let home = match user {
        0 => "/root",
        1000 => "/home/agent",
        _ => "/",
    };
    variables.insert("HOME".to_owned(), home.to_owned());
    variables.extend(image.env.clone());
    for variable in spec["env"].as_array().into_iter().flatten() {
        let name = variable["name"].as_str().unwrap_or_default().to_owned();
        let value = match &variable["valueFrom"] {
            Value::Null => Some(expand(variable["value"].as_str().unwrap_or_default(), &variables)),
            source => variable_from(run, pod, source)?,
        };
        if let Some(value) = value {
            variables.insert(name, value);
        }
    }
    Ok(variables)
}

fn variable_from(run: &PodRun, pod: &Value, source: &Value) -> Result<Option<String>, PlanError> {
    if let Some(path) = source["fieldRef"]["fieldPath"].as_str() {
        let found = path.split('.').fold(pod, |object, field| &object[field]);
        return Ok(Some(found.as_str().unwrap_or_default().to_owned()));
    }
    for (field, plural, kind) in
        [("secretKeyRef", "secrets", "secret"), ("configMapKeyRef", "configmaps", "configmap")]
    {
        let reference = &source[field];
        let Some(name) = reference["name"].as_str() else { continue };
        let is_optional = reference["optional"] == true;
        let object = ObjectKey::new(plural, &run.key.namespace, name);
        let Some(object) = run.cluster.pod(&object) else {
            if is_optional {
                return Ok(None);
            }
            return Err(PlanError::Config(format!("{kind} \"{name}\" not found")));
        };
        let key = reference["key"].as_str().unwrap_or_default();
        return match object["data"][key].as_str() {
            Some(value) if kind == "secret" => {
                let bytes = data_encoding::BASE64.decode(value.as_bytes()).unwrap_or_default();
                Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
            }
            Some(value) => Ok(Some(value.to_owned())),
            None if is_optional => Ok(None),
            None => Err(PlanError::Config(format!(
                "couldn't find key {key} in {kind} {}/{name}",
                run.key.namespace
            ))),
        };
    }
    Ok(None)
}

fn command(
    spec: &Value,
    image: &ImageFixture,
    env: &BTreeMap<String, String>,
) -> Result<Vec<String>, PlanError> {
    let words = |field: &str| -> Vec<String> {
        let words = spec[field].as_array().into_iter().flatten().filter_map(Value::as_str);
        words.map(|word| expand(word, env)).collect()
    };
    let mut command = words("command");
    if command.is_empty() {
        command.clone_from(&image.entrypoint);
    }
    command.extend(words("args"));
    if command.is_empty() {
        let name = spec["name"].as_str().unwrap_or_default();
        return Err(PlanError::Create(format!(
            "failed to generate container \"{name}\" spec: failed to generate spec: no command \
             specified"
        )));
    }
    Ok(command)
}

/// Replaces `$(NAME)` in commands and values; `$$` stands for `$`, and unknown names stay.
pub(super) fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        rest = after;
        if let Some(after) = after.strip_prefix('$') {
            expanded.push('$');
            rest = after;
        } else if let Some((name, after)) =
            after.strip_prefix('(').and_then(|after| after.split_once(')'))
        {
            match variables.get(name) {
                Some(value) => expanded.push_str(value),
                None => expanded.push_str(&format!("$({name})")),
            }
            rest = after;
        } else {
            expanded.push('$');
        }
    }
    expanded.push_str(rest);
    expanded
}

/// The files of a volume: those that `items` lists, or one for each key.
fn projected<'a>(source: &'a Value, data: &'a Value) -> Result<Vec<(&'a str, &'a str)>, PlanError> {
    let text = |value: &'a Value| value.as_str().unwrap_or_default();
    let Some(items) = source["items"].as_array() else {
        let all = data.as_object().into_iter().flatten();
        return Ok(all.map(|(key, value)| (key.as_str(), text(value))).collect());
    };
    let listed = items.iter().map(|item| {
        let key = text(&item["key"]);
        let value = data[key].as_str().ok_or_else(|| {
            PlanError::Config(format!("references non-existent secret key: {key}"))
        })?;
        Ok((text(&item["path"]), value))
    });
    listed.collect()
}

fn mounts(
    run: &PodRun,
    pod: &Value,
    spec: &Value,
) -> Result<Vec<(PathBuf, String, bool)>, PlanError> {
    let mut mounts = Vec::new();
    for mount in spec["volumeMounts"].as_array().into_iter().flatten() {
        let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
        let Some(volume) = volumes.clone().find(|volume| volume["name"] == mount["name"]) else {
            continue;
        };
        let name = volume["name"].as_str().unwrap_or_default();
        let mut source = run.directory().join("volumes").join(name);
        let failed = |error: std::io::Error| PlanError::Create(error.to_string());
        fs::create_dir_all(&source).map_err(failed)?;
        // Nodes make volumes that every user may write to.
        fs::set_permissions(&source, fs::Permissions::from_mode(0o777)).map_err(failed)?;
        for (field, plural, kind, name_field) in [
            ("secret", "secrets", "secret", "secretName"),
            ("configMap", "configmaps", "configmap", "name"),
        ] {
            let Some(object) = volume[field][name_field].as_str() else { continue };
            let key = ObjectKey::new(plural, &run.key.namespace, object);
            let Some(object) = run.cluster.pod(&key) else {
                return Err(PlanError::Config(format!("{kind} \"{object}\" not found")));
            };
            for (file, value) in projected(&volume[field], &object["data"])? {
                let value = value.as_bytes();
                let bytes = match kind {
                    "secret" => data_encoding::BASE64.decode(value).unwrap_or_default(),
                    _ => value.to_vec(),
                };
                fs::write(source.join(file), bytes).map_err(failed)?;
            }
        }
        if let Some(path) = mount["subPath"].as_str() {
            source.push(path);
            if !source.exists() {
                fs::create_dir_all(&source).map_err(failed)?;
            }
        }
        let target = mount["mountPath"].as_str().unwrap_or_default().to_owned();
        mounts.push((source, target, mount["readOnly"] == true));
    }
    Ok(mounts)
}
