//! Statistics of a run, folded from its events: pure, without clock or I/O.
//!
//! # Invariants
//! * Counts add up: total = completed + failed + cancelled + unverified + pending, over the run and
//!   for every agent.
//! * Undefined values are `None`, not 0: without completed trials there is no mean and no pass
//!   rate.
//! * Retries and lost executions are counted when their trial settles, from its record, so that a
//!   resumed run counts the same as an uninterrupted one.
//! * Every failed trial has exactly one [`FailureParty`]. The headline ([`Score`]) is over
//!   completed trials and failures that count; infrastructure failures, failures of tasks before the
//!   agent began, and unsupported, unverified, cancelled and pending trials are in no mean and no
//!   denominator.
//! * The order of events affects at most the last bits of sums; final results are folded again in
//!   the plan's order and do not depend on the order of events.
//! * A completed trial counts even with an error beside its reward. Several rewards are aggregated
//!   per key, each over the completed trials that have the key.

mod failure;
mod harness;
mod keys;
mod primary;
mod score;
mod stats;
mod sum;
mod tally;
#[cfg(test)]
mod tests;

pub use failure::{FailureCounts, FailureParty};
pub use harness::{EventTypeTally, HarnessTally, event_counts};
pub use keys::KeyRewards;
pub use primary::PrimaryMetric;
pub use score::{Score, ThresholdOutcome};
pub use stats::{AgentTally, AgentTotal, RunStats};
pub use sum::NeumaierSum;
pub use tally::{Rewards, Tally, TrialScore, total_cost};
