//! Installation of an agent in an image.

use std::collections::BTreeMap;
use std::time::Duration;

use rollout_protocol::spec::environment::ProviderSpec;

use super::{BuildProxies, EnvironmentLabels};

/// Request to install an agent in an image.
#[derive(Debug, Clone)]
pub struct InstallRequest {
    /// Bash script that installs it, run as root.
    pub script: String,
    /// Variables of the script. They can be read in the image, so none may be a secret.
    pub env: BTreeMap<String, String>,
    /// Time limit.
    pub timeout: Duration,
    /// Proxies for the script. No instruction of the image has them.
    pub proxies: BuildProxies,
    /// The provider's settings in the job.
    pub settings: ProviderSpec,
    /// Labels of the requester.
    pub labels: EnvironmentLabels,
}
