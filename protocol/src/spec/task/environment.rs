//! Environments as tasks describe them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::blob::BlobRef;
use crate::spec::resources::Resources;
use crate::template::Template;

/// An environment described by a task: that of its agent, or a separate one of its verifier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskEnvironment {
    /// Image to use instead of building one.
    pub docker_image: Option<String>,
    /// The build context: a deterministic tar archive.
    #[serde(default)]
    pub context: Option<BlobRef>,
    /// Files for the working directory of a named image: a deterministic tar archive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir_files: Option<BlobRef>,
    /// File in the build context, in Docker Compose format, that describes further services next to
    /// the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compose: Option<String>,
    /// Time limit of the image's build or pull, seconds.
    pub build_sec: f64,
    /// Resource ceilings, after the job's overrides.
    pub resources: Resources,
    /// Variables of all processes in it; values unexpanded.
    #[serde(default)]
    pub env: BTreeMap<String, Template>,
    /// Directory in which scripts run; the image's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Network access, unless a phase overrides it.
    #[serde(default, skip_serializing_if = "NetworkPolicy::is_public")]
    pub network: NetworkPolicy,
    /// Readiness check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthcheck: Option<Healthcheck>,
    /// Time between its start and its first command, seconds; without it, programs of the environment
    /// are observed until they have settled. A readiness check decides instead of both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_grace_sec: Option<f64>,
}

/// Network access of an environment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkPolicy {
    /// Everything that the provider's network reaches.
    #[default]
    Public,
    /// Only itself and the services next to it.
    NoNetwork,
    /// Only these hosts: names, `*.names`, addresses, networks.
    Allowlist(Vec<String>),
}

impl Default for TaskEnvironment {
    fn default() -> Self {
        Self {
            docker_image: None,
            context: None,
            workdir_files: None,
            compose: None,
            build_sec: 600.0,
            resources: Resources::default(),
            env: BTreeMap::new(),
            workdir: None,
            network: NetworkPolicy::Public,
            healthcheck: None,
            start_grace_sec: None,
        }
    }
}

impl NetworkPolicy {
    /// Whether access is unrestricted.
    pub const fn is_public(&self) -> bool {
        matches!(self, Self::Public)
    }
}

/// A command that ends with code 0 when the environment is ready.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Healthcheck {
    /// The command, run by the environment's shell.
    pub command: String,
    /// Time between the end of one check and the next, seconds.
    pub interval_sec: f64,
    /// Time limit of one check, seconds.
    pub timeout_sec: f64,
    /// Time at the start during which failures do not count, seconds.
    pub start_period_sec: f64,
    /// Time between checks while failures do not count, seconds.
    pub start_interval_sec: f64,
    /// Number of consecutive failures that make the environment unhealthy.
    pub retries: u32,
}
