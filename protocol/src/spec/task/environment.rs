//! Environments as tasks describe them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::blob::BlobRef;
use crate::spec::resources::Resources;
use crate::template::Template;

/// An environment that a task describes: the one its agent works in, or one of its verifier's own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskEnvironment {
    /// Image to use instead of building one.
    pub docker_image: Option<String>,
    /// The build context: a deterministic tar archive.
    #[serde(default)]
    pub context: Option<BlobRef>,
    /// File in the build context that describes further services beside the environment, in the
    /// format of Docker Compose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compose: Option<String>,
    /// Time limit of the image's build or pull, seconds.
    pub build_sec: f64,
    /// Ceilings, after the job's overrides.
    pub resources: Resources,
    /// Variables of everything that runs in it; values unexpanded.
    #[serde(default)]
    pub env: BTreeMap<String, Template>,
    /// Directory in which scripts run; the image's when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// What it may reach, unless a phase says otherwise.
    #[serde(default, skip_serializing_if = "NetworkPolicy::is_public")]
    pub network: NetworkPolicy,
    /// How to tell that it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthcheck: Option<Healthcheck>,
}

/// What an environment may reach.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkPolicy {
    /// Whatever the provider's network reaches.
    #[default]
    Public,
    /// Nothing but itself and the services beside it.
    NoNetwork,
    /// These hosts: names, `*.names`, addresses, networks.
    Allowlist(Vec<String>),
}

impl Default for TaskEnvironment {
    fn default() -> Self {
        Self {
            docker_image: None,
            context: None,
            compose: None,
            build_sec: 600.0,
            resources: Resources::default(),
            env: BTreeMap::new(),
            workdir: None,
            network: NetworkPolicy::Public,
            healthcheck: None,
        }
    }
}

impl NetworkPolicy {
    /// Whether nothing is forbidden.
    pub const fn is_public(&self) -> bool {
        matches!(self, Self::Public)
    }
}

/// A command that ends with code 0 when the environment is ready.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Healthcheck {
    /// Run by the environment's shell.
    pub command: String,
    /// Between the end of one check and the next, seconds.
    pub interval_sec: f64,
    /// Time limit of one check, seconds.
    pub timeout_sec: f64,
    /// How long failures do not count, seconds.
    pub start_period_sec: f64,
    /// Between checks while failures do not count, seconds.
    pub start_interval_sec: f64,
    /// Failures in a row that make it a failure.
    pub retries: u32,
}
