//! Seeded random numbers, identical on every machine.

/// A SplitMix64 generator.
#[derive(Debug)]
pub(super) struct ChaosRng(u64);

impl ChaosRng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Number below `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).expect("64 bits");
        usize::try_from(self.next() % bound).expect("smaller than a usize")
    }

    /// Number from `from` to `to`.
    pub(super) fn between(&mut self, from: f64, to: f64) -> f64 {
        // 53 bits: the precision of a float.
        let share = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        from + share * (to - from)
    }
}
