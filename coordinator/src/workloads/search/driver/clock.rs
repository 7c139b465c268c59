//! Time, as a manifest records it.

use jiff::SignedDuration;
use rollout_protocol::Timestamp;

/// Where a manifest's times come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManifestClock {
    /// The system.
    System,
    /// The manifest itself: a second for every time that it was written. Equal searches have equal
    /// manifests.
    Counted,
}

impl ManifestClock {
    /// The time of a block that follows one of time `last`.
    pub fn after(self, last: Timestamp) -> Timestamp {
        match self {
            Self::System => Timestamp::now(),
            Self::Counted => {
                last.saturating_add(SignedDuration::from_secs(1)).unwrap_or(Timestamp::MAX)
            }
        }
    }

    /// The time of what happens beside the blocks.
    pub fn beside(self, last: Timestamp) -> Timestamp {
        match self {
            Self::System => Timestamp::now(),
            Self::Counted => last,
        }
    }

    /// The time at which a search begins.
    pub fn start(self) -> Timestamp {
        self.beside(Timestamp::UNIX_EPOCH)
    }
}
