//! Offers: a try of an item, published for whoever has a free slot.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

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
    /// Digest of what the try runs under.
    pub spec: Digest,
    /// Size class, by which workers ask for work that fits.
    pub class: SizeClass,
    /// What to do.
    pub work: OfferedWork,
    /// How fast the worker may go about the run's work.
    #[serde(default, skip_serializing_if = "RunRateLimits::is_default")]
    pub pacing: RunRateLimits,
}

/// How fast one worker may go about the work of one run. The work itself does not depend on it, so
/// it travels with offers and is no part of what they ask for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRateLimits {
    /// Environments begun per minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_per_minute: Option<u32>,
    /// Agents executing at once, whatever is set up, verified or collected beside them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents_at_once: Option<u32>,
    /// Commands of evals that begin only with a ticket of the coordinator.
    #[serde(default, skip_serializing_if = "PermitKinds::is_none")]
    pub tickets: PermitKinds,
    /// Longest time in which an execution waits for a service that gives no answer, seconds;
    /// [`MAX_PARK`](crate::limits::MAX_PARK) when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_park_sec: Option<u32>,
}

impl RunRateLimits {
    /// Longest time in which an execution waits for a service that gives no answer.
    pub fn max_park(&self) -> Duration {
        self.max_park_sec.map_or(limits::MAX_PARK, |sec| Duration::from_secs(sec.into()))
    }

    /// Whether the worker may go as fast as it can.
    pub fn is_unlimited(&self) -> bool {
        Self { max_park_sec: None, ..*self } == Self::default()
    }

    /// Whether nothing is said.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What an offer asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum OfferedWork {
    /// A trial: agent x task x attempt.
    Trial(TrialRef),
    /// An eval: one idea tried on one commit. The offer's spec is the digest of its
    /// [`EvalSpec`](crate::spec::eval::EvalSpec) document.
    Eval,
    /// A command that writes ideas for a node of a search. The offer's spec is the digest of its
    /// [`IdeasSpec`](crate::spec::ideas::IdeasSpec) document. Workers of versions that do not know
    /// this kind leave the offer to others.
    Ideas,
}

/// A size class: powers of four of the larger of the cpu and the memory share, where a share is one
/// processor or 2 GiB. Class n holds what needs at most 4^n shares.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct SizeClass(pub u8);

impl SizeClass {
    /// The class of what runs alone on its worker: an item under suspicion of killing workers.
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
