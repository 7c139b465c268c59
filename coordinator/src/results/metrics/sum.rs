//! Compensated summation, almost independent of the order of the summands.

/// A compensated sum (Neumaier): keeps the low-order bits that additions lose.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct NeumaierSum {
    total: f64,
    compensation: f64,
}

impl NeumaierSum {
    /// Adds a value.
    pub fn add(&mut self, value: f64) {
        let total = self.total + value;
        self.compensation += if self.total.abs() >= value.abs() {
            (self.total - total) + value
        } else {
            (value - total) + self.total
        };
        self.total = total;
    }

    /// The sum. An overflow yields an infinity.
    pub fn value(&self) -> f64 {
        if self.total.is_finite() { self.total + self.compensation } else { self.total }
    }
}

#[cfg(test)]
mod tests {
    use super::NeumaierSum;

    #[test]
    fn sum_of_mixed_magnitudes_keeps_precision() {
        let mut sum = NeumaierSum::default();
        for value in [1.0, 1e100, 1.0, -1e100] {
            sum.add(value);
        }
        assert_eq!(sum.value(), 2.0);
        let mut large = NeumaierSum::default();
        large.add(f64::MAX);
        large.add(f64::MAX);
        assert_eq!(large.value(), f64::INFINITY);
    }
}
