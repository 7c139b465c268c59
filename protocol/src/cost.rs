//! Costs, in the user's currency.

use serde::{Deserialize as _, Deserializer};

/// Largest accepted cost. Sums of costs stay exact to a cent far beyond it.
const MAX: f64 = 1e9;

/// Reads a cost. A negative or absurd cost counts as 0, so that no worker can lower or inflate the
/// cost of a run. The rest of the worker's message still counts.
///
/// # Errors
/// If it is not a number.
pub(crate) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let cost = f64::deserialize(deserializer)?;
    Ok(if (0.0..=MAX).contains(&cost) { cost } else { 0.0 })
}

#[cfg(test)]
mod tests {
    #[test]
    fn cost_out_of_range_is_read_as_zero() {
        let read = |text: &str| super::read(&mut serde_json::Deserializer::from_str(text));
        for (text, cost) in [("1.25", 1.25), ("0", 0.0), ("-1188", 0.0), ("1e300", 0.0)] {
            assert_eq!(read(text).ok(), Some(cost), "{text}");
        }
        assert!(read("null").is_err() && read("\"1\"").is_err());
    }
}
