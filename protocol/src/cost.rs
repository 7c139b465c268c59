//! Costs, in the user's currency.

use serde::{Deserialize as _, Deserializer};

/// No environment costs more. Sums of costs stay exact to a cent far beyond it.
const MAX: f64 = 1e9;

/// Reads a cost. A worker that says a negative or absurd one is not believed: it counts as 0, so
/// that nobody lowers or drowns the cost of a run. The rest of what it says still counts.
///
/// # Errors
/// When it is no number.
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
