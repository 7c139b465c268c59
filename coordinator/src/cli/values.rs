//! Values of options.

use std::time::Duration;

/// A time such as `30s`, `10m` or `1h 30m`; a bare number is seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let expected = || "expected a time such as 30s, 10m or 1h 30m".to_owned();
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).map_err(|_| expected());
    }
    let signed: jiff::SignedDuration = text.parse().map_err(|_| expected())?;
    Duration::try_from(signed).map_err(|_| expected())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_or_are_seconds() {
        for (text, seconds) in [("30s", 30.0), ("10m", 600.0), ("1h 30m", 5400.0), ("1.5", 1.5)] {
            assert_eq!(duration(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        for bad in ["", "soon", "-3s", "-1", "nan", "10x"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
