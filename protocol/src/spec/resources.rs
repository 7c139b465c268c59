//! Resources of an environment.

use serde::{Deserialize, Serialize};

/// Ceilings of one environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Resources {
    /// Processors.
    pub cpus: u32,
    /// Memory, MiB.
    pub memory_mb: u64,
    /// Storage, MiB.
    pub storage_mb: u64,
}

impl Default for Resources {
    fn default() -> Self {
        Self { cpus: 1, memory_mb: 2048, storage_mb: 10_240 }
    }
}
