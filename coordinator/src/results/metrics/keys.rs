//! Rewards by their keys, for verifiers that give several numbers.

use std::collections::BTreeMap;

use super::tally::Rewards;

/// Keys that are followed: far more than a verifier has figures, few enough that keys made up by
/// agents, new ones in every trial, cost no memory.
const MAX_KEYS: usize = 64;

/// Rewards of completed trials by key. A trial counts for the keys that it has: one that a trial
/// lacks says nothing about it, so it is not taken for 0.
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

    /// The rewards of each key, by its name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Rewards)> {
        self.keys.iter().map(|(key, rewards)| (key.as_str(), rewards))
    }

    /// The rewards of one key; nothing when no trial has it.
    pub fn get(&self, key: &str) -> Option<&Rewards> {
        self.keys.get(key)
    }

    /// Numbers that were not added because there were too many keys already.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}
