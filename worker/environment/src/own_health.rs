//! Healthchecks that an environment has besides that of its task.

use std::time::Duration;

/// A healthcheck of an environment's image, or of `main` in a compose file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnHealthcheck {
    /// The creation of the environment has waited for it, this long.
    Awaited(Duration),
    /// That of the image, which nothing has run yet.
    OfImage(ImageHealthcheck),
}

/// The `HEALTHCHECK` of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageHealthcheck {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Time before the first check that counts, and between two checks.
    pub interval: Duration,
    /// Time limit of one check.
    pub timeout: Duration,
    /// Time at the start during which failures do not count.
    pub start_period: Duration,
    /// Time between two checks while failures do not count, if the image names one.
    pub start_interval: Option<Duration>,
    /// Number of consecutive failures that make the environment unhealthy.
    pub retries: u32,
}
