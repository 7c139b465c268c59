//! Offers: tries of items, published for workers with free slots.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::model_calls::ModelCallState;
use super::stage::PermitKinds;
use crate::digest::Digest;
use crate::id::{ItemId, RunId, TryId};
use crate::limits;
use crate::spec::resources::Resources;
use crate::spec::trial::TrialRef;

/// One offered try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Run.
    pub run: RunId,
    /// Item.
    pub item: ItemId,
    /// Try.
    #[serde(rename = "try")]
    pub try_id: TryId,
    /// Digest of the try's spec.
    pub spec: Digest,
    /// Size class; workers ask for work that fits by it.
    pub class: SizeClass,
    /// The kind of work.
    pub work: OfferedWork,
    /// Rate limits of the run, per worker.
    #[serde(default, rename = "pacing", skip_serializing_if = "RunRateLimits::is_default")]
    pub rate_limits: RunRateLimits,
    /// State of the run's model calls when it was offered, for workers that know of no newer one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_calls: Option<ModelCallState>,
}

/// Limits on how fast one worker processes one run. They do not affect the work itself, so they
/// travel with offers and are not part of the specs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRateLimits {
    /// Environments started per minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_per_minute: Option<u32>,
    /// Agents executing at once; setup, verification and collection do not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents_at_once: Option<u32>,
    /// Eval commands that start only with a permit of the coordinator.
    #[serde(default, rename = "tickets", skip_serializing_if = "PermitKinds::is_none")]
    pub permits: PermitKinds,
    /// Longest time that an execution waits for a service that does not answer, seconds;
    /// [`MAX_PARK`](crate::limits::MAX_PARK) when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_park_sec: Option<u32>,
    /// Whether the limits of its model servers hold for all workers together: a worker calls a
    /// server only within a lease of the coordinator.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub model_leases: bool,
}

impl RunRateLimits {
    /// Longest time that an execution waits for a service that does not answer.
    pub fn max_park(&self) -> Duration {
        self.max_park_sec.map_or(limits::MAX_PARK, |sec| Duration::from_secs(sec.into()))
    }

    /// Whether no limit slows the worker down.
    pub fn is_unlimited(&self) -> bool {
        Self { max_park_sec: None, model_leases: false, ..*self } == Self::default()
    }

    /// Whether all fields have their defaults.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The kind of work that an offer asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum OfferedWork {
    /// A trial: agent x task x attempt.
    Trial(TrialRef),
    /// An eval: one idea tried on one commit. The offer's spec is the digest of its
    /// [`EvalSpec`](crate::spec::eval::EvalSpec) document.
    Eval,
    /// A command that writes ideas for a node of a search. The offer's spec is the digest of its
    /// [`IdeasSpec`](crate::spec::ideas::IdeasSpec) document. Workers of versions without this kind
    /// leave the offer to others.
    Ideas,
}

/// A size class: powers of four of the larger of the cpu and the memory share, where a share is one
/// processor or 2 GiB. Class n holds items that need at most 4^n shares.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct SizeClass(pub u8);

impl SizeClass {
    /// The class of items that run alone on their worker: those suspected of killing workers.
    pub const SOLO: Self = Self(u8::MAX);

    /// Shares that a member of the class may need, one share being one processor and 2 GiB.
    pub fn shares(self) -> u64 {
        4u64.saturating_pow(u32::from(self.0))
    }

    /// The class of an environment with these ceilings.
    pub fn for_resources(resources: &Resources) -> Self {
        let shares = u64::from(resources.cpus).max(resources.memory_mb.div_ceil(2048)).max(1);
        let mut class = 0;
        let mut bound = 1u64;
        while bound < shares {
            bound = bound.saturating_mul(4);
            class += 1;
        }
        Self(class)
    }
}

impl fmt::Display for SizeClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::SOLO { f.write_str("solo") } else { write!(f, "c{}", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_class_boundaries_are_powers_of_four() {
        let class = |cpus, memory_mb| {
            SizeClass::for_resources(&Resources { cpus, memory_mb, ..Resources::default() }).0
        };
        assert_eq!(class(1, 2048), 0);
        assert_eq!(class(1, 2049), 1);
        assert_eq!(class(4, 1024), 1);
        assert_eq!(class(5, 1024), 2);
        assert_eq!(class(64, 1024), 3);
        assert_eq!(class(0, 0), 0);
    }
}
