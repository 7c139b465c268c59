//! Resources of an environment.

use serde::{Deserialize, Serialize};

/// Resources that one environment takes of its host, and which of them are ceilings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Resources {
    /// Processors.
    pub cpus: u32,
    /// Memory, MiB.
    pub memory_mb: u64,
    /// Storage, MiB.
    pub storage_mb: u64,
    /// Graphics processors.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub gpus: u32,
    /// Which of the values are ceilings.
    #[serde(default, skip_serializing_if = "ResourceCeilings::are_all")]
    pub ceilings: ResourceCeilings,
}

/// Which values of [`Resources`] are ceilings. The others still count for placement and for cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ResourceCeilings {
    /// Processors.
    pub cpus: bool,
    /// Memory.
    pub memory: bool,
    /// Storage.
    pub storage: bool,
}

impl ResourceCeilings {
    /// All values are ceilings.
    pub const ALL: Self = Self { cpus: true, memory: true, storage: true };

    /// No value is a ceiling.
    pub const NONE: Self = Self { cpus: false, memory: false, storage: false };

    fn are_all(&self) -> bool {
        *self == Self::ALL
    }
}

impl Default for ResourceCeilings {
    fn default() -> Self {
        Self::ALL
    }
}

impl Default for Resources {
    fn default() -> Self {
        Self {
            cpus: 1,
            memory_mb: 2048,
            storage_mb: 10_240,
            gpus: 0,
            ceilings: ResourceCeilings::ALL,
        }
    }
}

impl Resources {
    /// Processors, if they are a ceiling.
    pub fn cpu_ceiling(&self) -> Option<u32> {
        self.ceilings.cpus.then_some(self.cpus).filter(|cpus| *cpus > 0)
    }

    /// Memory in MiB, if it is a ceiling.
    pub fn memory_ceiling_mb(&self) -> Option<u64> {
        self.ceilings.memory.then_some(self.memory_mb).filter(|mb| *mb > 0)
    }

    /// Storage in MiB, if it is a ceiling.
    pub fn storage_ceiling_mb(&self) -> Option<u64> {
        self.ceilings.storage.then_some(self.storage_mb).filter(|mb| *mb > 0)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde asks for")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}
