//! Values of a worker's options: slots, memory, providers.

use rollout_protocol::spec::environment::ProviderKind;

use crate::config::units;
use crate::providers;

/// A share of a size class is 2 GiB, so no trial fits into less.
const MIN_MEMORY_MB: u64 = 2048;

/// Memory for trials, in MiB.
pub(super) fn memory(text: &str) -> Result<u64, String> {
    match units::mebibytes(text) {
        Some(memory) if memory.mib >= MIN_MEMORY_MB => Ok(memory.mib),
        Some(_) => {
            Err("expected at least 2G: even the smallest trial does not fit into less".into())
        }
        None => Err(format!("expected {}", units::EXPECTED_MEBIBYTES)),
    }
}

/// A kind of environment that this program was built with.
pub(super) fn provider(text: &str) -> Result<ProviderKind, String> {
    providers::kind_by_name(text).ok_or_else(|| {
        let names: Vec<_> = providers::names().map(|name| format!("`{name}`")).collect();
        format!("expected {}", names.join(" or "))
    })
}

/// Number of trials at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotCount {
    /// One per processor.
    Auto,
    /// A fixed number.
    Count(u32),
}

impl SlotCount {
    /// The number.
    pub(super) fn count(self) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::Auto => std::thread::available_parallelism()
                .map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)),
        }
    }
}

/// Maximum trials at a time on one worker: far more than a host can run, and below the limits of
/// the server.
const MAX_SLOTS: u32 = 4096;

/// `auto`, or a number.
pub(super) fn slots(text: &str) -> Result<SlotCount, String> {
    match (text, text.parse::<u32>()) {
        ("auto", _) => Ok(SlotCount::Auto),
        (_, Ok(count)) if (1..=MAX_SLOTS).contains(&count) => Ok(SlotCount::Count(count)),
        _ => Err(format!("expected `auto` or a number from 1 to {MAX_SLOTS}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_slots_out_of_bounds_are_refused() {
        assert_eq!(memory("8g"), Ok(8192));
        assert!(memory("1g").is_err() && memory("x").is_err());
        assert_eq!(slots("auto"), Ok(SlotCount::Auto));
        assert_eq!(slots("4"), Ok(SlotCount::Count(4)));
        assert!(["0", "-1", "many", "4097"].iter().all(|text| slots(text).is_err()));
        assert!(SlotCount::Auto.count() >= 1);
    }
}
