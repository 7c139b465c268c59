//! The clock of a manifest.

use jiff::SignedDuration;
use rollout_protocol::Timestamp;

/// Source of a manifest's times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ManifestClock {
    /// The system clock.
    System,
    /// The manifest itself: one second per write. Equal searches have equal manifests.
    Counted,
}

impl ManifestClock {
    /// The time of a manifest block that follows one at `last`.
    pub fn after(self, last: Timestamp) -> Timestamp {
        match self {
            Self::System => Timestamp::now(),
            Self::Counted => {
                last.saturating_add(SignedDuration::from_secs(1)).unwrap_or(Timestamp::MAX)
            }
        }
    }

    /// The time of an event outside the blocks.
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
