//! Rewards by key, for verifiers that report several numbers.

use std::collections::BTreeMap;

use super::tally::Rewards;

/// Maximum number of keys: far more than a verifier reports, few enough to bound memory when agents
/// invent new keys in every trial.
const MAX_KEYS: usize = 64;

/// Rewards of completed trials by key. A trial counts only for the keys that it has: a missing key
/// is not a reward of 0.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KeyRewards {
    keys: BTreeMap<String, Rewards>,
    left_out: u64,
}

impl KeyRewards {
    /// Adds one number of one completed trial.
    pub fn add(&mut self, key: &str, number: f64) {
        if let Some(rewards) = self.keys.get_mut(key) {
            rewards.add(number);
        } else if self.keys.len() < MAX_KEYS {
            self.keys.entry(key.to_owned()).or_default().add(number);
        } else {
            self.left_out += 1;
        }
    }

    /// Takes out one number of one completed trial that was added.
    pub(super) fn remove(&mut self, key: &str, number: f64) {
        match self.keys.get_mut(key) {
            Some(rewards) => rewards.remove(number),
            None => self.left_out = self.left_out.saturating_sub(1),
        }
    }

    /// The rewards of each key, in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Rewards)> {
        self.keys.iter().map(|(key, rewards)| (key.as_str(), rewards))
    }

    /// The rewards of one key; `None` when no trial has it.
    pub fn get(&self, key: &str) -> Option<&Rewards> {
        self.keys.get(key)
    }

    /// Numbers that were not added because the key limit was reached.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}
