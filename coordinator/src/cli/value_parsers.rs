//! Values of options: durations and amounts.

use std::time::Duration;

use jiff::SignedDuration;

use crate::config::units;

/// Default of `--max-offline`.
#[cfg(feature = "nats")]
pub(super) const MAX_OFFLINE: &str = "30m";

/// Default of `--lease`.
#[cfg(feature = "nats")]
pub(super) const LEASE: &str = "60s";

/// Longest accepted duration: a longer one would mean "no limit".
const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 3600);

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
        Some(duration) if duration <= MAX_DURATION => Ok(duration),
        _ => Err("expected a duration of at most a year, such as `90s`, `10m` or `1h30m`".into()),
    }
}

/// Default of `--grace`.
pub(super) const BLOB_GRACE: &str = "24h";

/// Default of `--lock-age`: as long as reports are kept.
#[cfg(feature = "nats")]
pub(super) const LOCK_AGE: &str = "30d";

/// A duration that may be given in days, `30d`.
pub(super) fn age(text: &str) -> Result<Duration, String> {
    match text.strip_suffix('d').and_then(|days| days.parse::<u16>().ok()) {
        Some(days) => Ok(Duration::from_secs(u64::from(days) * 24 * 3600)),
        None => duration(text).map_err(|error| format!("{error}, or days such as `30d`")),
    }
}

/// Default of `--store-cache`.
pub(super) const STORE_CACHE: &str = "2g";

/// The same in MiB.
#[cfg(any(feature = "nats", test))]
pub(super) const STORE_CACHE_MB: u64 = 2 * 1024;

/// A size, in MiB.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let size = units::mebibytes(text).map(|size| size.mib);
    size.ok_or_else(|| format!("expected {}", units::EXPECTED_MEBIBYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_with_invalid_unit_or_out_of_bounds_is_refused() {
        for (text, seconds) in [("0", 0.0), ("1.5", 1.5), ("10m", 600.0), ("1h 30m", 5400.0)] {
            assert_eq!(duration(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        for bad in ["", "soon", "-3s", "-1", "nan", "10x", "9999999999", "1000000h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[cfg(feature = "nats")]
    #[test]
    fn defaults_of_durations_equal_limits() {
        use rollout_protocol::limits;

        assert_eq!(duration(MAX_OFFLINE), Ok(limits::MAX_OFFLINE));
        assert_eq!(duration(LEASE), Ok(limits::LEASE));
    }

    #[test]
    fn default_of_grace_equals_limit() {
        assert_eq!(duration(BLOB_GRACE), Ok(rollout_protocol::limits::BLOB_GRACE));
    }

    #[test]
    fn age_with_unit_is_parsed() {
        assert_eq!(age("2d"), Ok(Duration::from_secs(2 * 24 * 3600)));
        assert_eq!(age("90s"), Ok(Duration::from_secs(90)));
        assert!(age("d").is_err() && age("-1d").is_err());
    }

    #[test]
    fn size_with_unit_is_parsed() {
        assert_eq!(size("20g"), Ok(20 * 1024));
        assert_eq!(size(STORE_CACHE), Ok(STORE_CACHE_MB));
        assert!(size("much").is_err());
    }
}
