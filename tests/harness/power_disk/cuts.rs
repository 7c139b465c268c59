//! Cuts at random moments, repeatable by a seed.

use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::page_log::LateWrites;
use crate::print_notice;

/// Most writes and flushes that are done between the moment of a cut and the cut: many more than there
/// are between two steps of a program that stores something.
const MAX_REQUESTS: u64 = 40;

/// A cut to be made.
#[derive(Debug, Clone, Copy)]
pub struct PowerCut {
    /// When it is due.
    pub after: Duration,
    /// Writes and flushes that are still done then.
    pub requests: u64,
    /// What is left of those that no flush covers.
    pub late: LateWrites,
}

/// Random cuts. A test that fails prints their seed.
#[derive(Debug)]
pub struct PowerCuts {
    seed: u64,
    random: StdRng,
    left: usize,
    longest: Duration,
    made: Vec<PowerCut>,
}

impl PowerCuts {
    /// This many cuts, each within `longest` after it was asked for.
    pub fn new(seed: u64, count: usize, longest: Duration) -> Self {
        let random = StdRng::seed_from_u64(seed);
        Self { seed, random, left: count, longest, made: Vec::new() }
    }
}

impl Iterator for PowerCuts {
    type Item = PowerCut;

    fn next(&mut self) -> Option<PowerCut> {
        self.left = self.left.checked_sub(1)?;
        let after = self.longest.mul_f64(self.random.random());
        let late = match self.random.random_range(0..6) {
            0..3 => LateWrites::Lost,
            3..5 => LateWrites::Half { seed: self.random.random() },
            _ => LateWrites::Kept,
        };
        let requests = self.random.random_range(0..MAX_REQUESTS);
        let cut = PowerCut { after, requests, late };
        self.made.push(cut);
        Some(cut)
    }
}

impl Drop for PowerCuts {
    fn drop(&mut self) {
        if thread::panicking() {
            print_notice(&format!("power cuts of seed {}: {:?}", self.seed, self.made));
        }
    }
}
