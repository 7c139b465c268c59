//! HTTP servers of Rollout's processes.

mod listener;
mod monitoring;

pub use self::monitoring::{Monitoring, MonitoringServer, ReadinessCheck};
