//! Values of options: durations, amounts, counts.

use std::time::Duration;

use jiff::SignedDuration;
use rollout_protocol::spec::environment::ProviderKind;

use crate::config::quantity;
use crate::host::ALL_PROVIDERS;

/// A size class holds what needs at most 2 GiB per share, so that less holds nothing.
const LEAST_MEMORY_MB: u64 = 2048;

/// Longest duration: beyond it "for ever" is meant.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// A duration with units, `90s`, `10m`, `1h30m`; a bare number is seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let parsed = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => {
            let signed = text.parse::<SignedDuration>().ok();
            signed.and_then(|duration| Duration::try_from(duration).ok())
        }
    };
    match parsed {
        Some(duration) if duration <= LONGEST => Ok(duration),
        _ => Err("expected a duration of at most a year, such as `90s`, `10m` or `1h30m`".into()),
    }
}

/// A duration that may be given in days, `30d`.
#[cfg(feature = "docker")]
pub(super) fn age(text: &str) -> Result<Duration, String> {
    match text.strip_suffix('d').and_then(|days| days.parse::<u16>().ok()) {
        Some(days) => Ok(Duration::from_secs(u64::from(days) * 24 * 3600)),
        None => duration(text).map_err(|error| format!("{error}, or days such as `30d`")),
    }
}

/// Memory for trials, in MiB.
pub(super) fn memory(text: &str) -> Result<u64, String> {
    match quantity::mebibytes(text) {
        Some(memory) if memory.mib >= LEAST_MEMORY_MB => Ok(memory.mib),
        Some(_) => Err("expected at least 2G: less holds no trial of the smallest size".into()),
        None => Err(format!("expected {}", quantity::EXPECTED_MEBIBYTES)),
    }
}

/// A size, in MiB.
#[cfg(feature = "docker")]
pub(super) fn size(text: &str) -> Result<u64, String> {
    let size = quantity::mebibytes(text).map(|size| size.mib);
    size.ok_or_else(|| format!("expected {}", quantity::EXPECTED_MEBIBYTES))
}

/// A kind of environment that this program was built with.
pub(super) fn provider(text: &str) -> Result<ProviderKind, String> {
    let known = || ALL_PROVIDERS.iter();
    known().find(|kind| kind.to_string() == text).copied().ok_or_else(|| {
        let names: Vec<_> = known().map(|kind| format!("`{kind}`")).collect();
        format!("expected {}", names.join(" or "))
    })
}

/// How many trials at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slots {
    /// As many as there are processors.
    Auto,
    /// So many.
    Count(u32),
}

impl Slots {
    /// The number.
    pub(super) fn count(self) -> u32 {
        match self {
            Self::Count(count) => count,
            Self::Auto => std::thread::available_parallelism()
                .map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)),
        }
    }
}

/// Most trials at a time on one worker: far beyond what a host carries, and below every bound of
/// what is behind it.
const MOST_SLOTS: u32 = 4096;

/// `auto`, or a number.
pub(super) fn slots(text: &str) -> Result<Slots, String> {
    match (text, text.parse::<u32>()) {
        ("auto", _) => Ok(Slots::Auto),
        (_, Ok(count)) if (1..=MOST_SLOTS).contains(&count) => Ok(Slots::Count(count)),
        _ => Err(format!("expected `auto` or a number from 1 to {MOST_SLOTS}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_with_units_and_bounds() {
        for (text, seconds) in [("0", 0.0), ("1.5", 1.5), ("10m", 600.0), ("1h 30m", 5400.0)] {
            assert_eq!(duration(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        for bad in ["", "soon", "-3s", "-1", "nan", "10x", "9999999999", "1000000h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert_eq!(memory("8g"), Ok(8192));
        assert!(memory("1g").is_err() && memory("x").is_err());
        assert_eq!(slots("auto"), Ok(Slots::Auto));
        assert_eq!(slots("4"), Ok(Slots::Count(4)));
        assert!(["0", "-1", "many", "4097"].iter().all(|text| slots(text).is_err()));
        assert!(Slots::Auto.count() >= 1);
    }
}
