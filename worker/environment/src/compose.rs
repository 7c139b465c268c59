//! Rules of compose files that every provider with services shares.

use std::path::Path;

use rollout_base::supervise;
use rollout_protocol::spec::resources::Resources;
use serde_json::Value;
use serde_saphyr::{DuplicateKeyPolicy, Error};

use crate::ImageSource;

/// The service that is the environment.
pub const MAIN: &str = "main";

/// Limit of containers beside the environment: more than any application needs for a test, few
/// enough for every host.
pub const CONTAINERS: u64 = 20;

/// The variable that holds the path of the build context.
pub const CONTEXT: &str = "CONTEXT_DIR";

/// Prefix of references to compose files instead of images; not valid in an image name. The
/// services beside the environment are described in the context, which has no Dockerfile, so their
/// compose file defines the environment's image.
pub const SERVICES_REFERENCE_PREFIX: &str = "services of ";

/// Names of compose files.
const COMPOSE_FILE_NAMES: [&str; 4] =
    ["docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml"];

/// Least memory (MiB) and least processors of one container: engines read smaller values as none.
const LEAST_MEMORY_MB: u64 = 16;
const LEAST_CPUS: f64 = 0.01;

const MIB: u64 = 1024 * 1024;

/// Reads a compose file, with aliases and merges (`<<`) resolved. Plain values have the types that
/// `docker compose` gives them: `0440` is octal, `yes` is a text.
///
/// # Errors
/// The reason why it is no document. Tags such as `!reset` are not supported.
pub fn parse(text: &str) -> Result<Value, String> {
    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::Error,
        legacy_octal_numbers: true,
        strict_booleans: true,
        reject_unsupported_tags: true,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| message(&error))
}

/// The message of a fault. For a key that is there twice, that of the reader of YAML names its own options.
fn message(error: &Error) -> String {
    let mut inner = error;
    while let Error::AliasError { error, .. } | Error::WithSnippet { error, .. } = inner {
        inner = error;
    }
    let Error::DuplicateMappingKey { key, location } = inner else { return error.to_string() };
    let key = key.as_ref().map_or_else(|| "a key".to_owned(), |key| format!("the key `{key}`"));
    format!("line {}: {key} is there twice", location.line())
}

/// Whether a source is a context without a Dockerfile, so that its compose file names the environment's
/// image.
pub async fn names_own_image(source: &ImageSource) -> bool {
    let ImageSource::Context { dir, .. } = source else { return false };
    let dir = dir.clone();
    supervise::blocking(move || defines_image(&dir)).await
}

/// Whether a context has no Dockerfile, so that its compose file names the environment's image. Blocks.
pub fn defines_image(context: &Path) -> bool {
    !context.join("Dockerfile").is_file()
        && COMPOSE_FILE_NAMES.iter().any(|name| context.join(name).is_file())
}

/// A directory of the environment that services can share, in place of a directory of the host.
#[derive(Debug, PartialEq, Eq)]
pub struct HostPath {
    /// The part of the variable names between `HOST_` or `ENV_` and `_PATH`.
    pub name: &'static str,
    /// The value of the `HOST_` variable: a path that no host has.
    pub host: &'static str,
    /// The value of the `ENV_` variable: the directory of the environment.
    pub inside: &'static str,
    /// Name of the volume that holds it.
    pub volume: &'static str,
}

/// All of them.
pub const HOST_PATHS: [HostPath; 3] = [
    HostPath {
        name: "VERIFIER_LOGS",
        host: "/.rollout/verifier-logs",
        inside: "/logs/verifier",
        volume: "rollout-verifier-logs",
    },
    HostPath {
        name: "AGENT_LOGS",
        host: "/.rollout/agent-logs",
        inside: "/logs/agent",
        volume: "rollout-agent-logs",
    },
    HostPath {
        name: "ARTIFACTS",
        host: "/.rollout/artifacts",
        inside: "/logs/artifacts",
        volume: "rollout-artifacts",
    },
];

impl HostPath {
    /// The variables by which a file refers to the host paths.
    pub fn variables() -> impl Iterator<Item = (String, &'static str)> {
        HOST_PATHS.iter().flat_map(|path| {
            let variable = |of: &str| format!("{of}_{}_PATH", path.name);
            [(variable("HOST"), path.host), (variable("ENV"), path.inside)]
        })
    }

    /// The host path that is the source of a mount.
    ///
    /// # Errors
    /// The reason why a source below a host path cannot be mounted.
    pub fn for_source(source: &str) -> Result<Option<&'static Self>, String> {
        let source = source.trim_end_matches('/');
        for path in &HOST_PATHS {
            match source.strip_prefix(path.host) {
                Some("") => return Ok(Some(path)),
                Some(below) if below.starts_with('/') => {
                    return Err(format!(
                        "`HOST_{}_PATH` can only be mounted as a whole, not its `{below}`",
                        path.name
                    ));
                }
                _ => {}
            }
        }
        Ok(None)
    }
}

/// The limits that a service requests.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RequestedLimits {
    /// Its number of containers.
    pub containers: u64,
    /// Processors of each.
    pub cpus: Option<f64>,
    /// Memory of each.
    pub memory_bytes: Option<f64>,
}

/// The limits of a service's containers that request none.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct EvenShare {
    /// Processors of each.
    pub cpus: Option<f64>,
    /// Memory of each.
    pub memory_bytes: Option<f64>,
}

/// The even share of the services beside an environment. Together they get as many processors and
/// as much memory as the environment itself. The part that they do not request is divided evenly.
///
/// # Errors
/// The message about requests above the total.
pub fn even_share(
    services: &[RequestedLimits],
    resources: &Resources,
) -> Result<EvenShare, String> {
    let mut even = EvenShare::default();
    if let Some(ceiling) = resources.cpu_ceiling() {
        let asked: Vec<_> = services.iter().map(|asked| (asked.containers, asked.cpus)).collect();
        even.cpus = Some(divide(&asked, f64::from(ceiling), LEAST_CPUS, |sum| {
            format!(
                "the services request {sum} cpus in total, but the environment has {ceiling}: raise \
                 `cpus` of the task"
            )
        })?);
    }
    if let Some(ceiling) = resources.memory_ceiling_mb() {
        let asked: Vec<_> =
            services.iter().map(|asked| (asked.containers, asked.memory_bytes)).collect();
        let (most, least) = ((ceiling * MIB) as f64, (LEAST_MEMORY_MB * MIB) as f64);
        even.memory_bytes = Some(divide(&asked, most, least, |sum| {
            let sum = (sum / MIB as f64).ceil();
            format!(
                "the services request {sum} MiB of memory in total, but the environment has \
                 {ceiling}: raise `memory_mb` of the task"
            )
        })?);
    }
    Ok(even)
}

/// Divides a limit among several containers. Each gets its own request, else an even part of the
/// rest.
fn divide(
    requested: &[(u64, Option<f64>)],
    ceiling: f64,
    least: f64,
    message: impl Fn(f64) -> String,
) -> Result<f64, String> {
    let named: f64 = requested.iter().filter_map(|(n, figure)| Some(*n as f64 * (*figure)?)).sum();
    let others: u64 = requested.iter().filter(|(_, f)| f.is_none()).map(|(n, _)| *n).sum();
    let left = ceiling - named;
    // The values are rounded on their way through the file.
    if left < -ceiling * 1e-6 {
        return Err(message(named));
    }
    let share = left.max(0.0) / others.max(1) as f64;
    if others > 0 && share < least {
        return Err(message(named + others as f64 * least));
    }
    Ok(share)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn plain_values_have_the_types_of_docker_compose() {
        for (text, expected) in [
            ("yes", json!("yes")),
            ("True", json!(true)),
            ("0440", json!(288)),
            ("08", json!(8.0)),
            ("22:22", json!("22:22")),
            ("3.8", json!(3.8)),
            ("~", json!(null)),
            ("2020-01-01", json!("2020-01-01")),
            ("'1'", json!("1")),
            ("!!str 1", json!("1")),
        ] {
            assert_eq!(parse(&format!("a: {text}\n")), Ok(json!({"a": expected})), "{text}");
        }
        let merged = parse("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\n").expect("valid");
        assert_eq!(merged["y"], json!({"a": 1, "b": 3}));
    }

    #[test]
    fn file_that_readers_take_in_different_ways_is_refused() {
        for text in ["a: !reset null", "a: !override [1]", "a: 1\na: 2", "a: 1\n---\na: 2"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn key_that_is_there_twice_is_named_with_its_line() {
        for (text, words) in [
            ("a: 1\nb: 2\na: 3\n", "line 3: the key `a` is there twice"),
            ("x: &x\n  1: a\n  0x1: b\ny: *x\n", "line 3: the key `0x1` is there twice"),
        ] {
            let refused = parse(text).expect_err(text);
            assert!(refused.starts_with(words), "{refused}");
            assert!(!refused.contains("Policy"), "{refused}");
        }
    }
}
