//! Numbers over a run, folded from its events: pure, without clock or input and output.
//!
//! # Invariants
//! * Counts add up: total = completed + failed + cancelled + unverified + owed, over the run and for
//!   every agent.
//! * What says nothing has no value: with nothing completed there is no mean and no pass rate.
//! * Retries and lost executions are counted when their trial settles, from its record, so that a
//!   run that was stopped and resumed counts the same as one that was not.
//! * Every failed trial has exactly one [`FailureParty`]. The headline ([`Score`]) is over completed trials
//!   and failures that count; infrastructure failures, unsupported, unverified, cancelled and owed
//!   trials are in no mean and no denominator.
//! * The order of events matters at most in the last bits of sums; final results are folded again
//!   in the plan's order and do not depend on it at all.
//! * A trial that completed counts, also with an error beside its reward. Its several numbers are
//!   followed key by key, each over the completed trials that have the key.

mod failure;
mod keys;
mod score;
mod stats;
mod sum;
mod tally;
#[cfg(test)]
mod tests;

pub use failure::{FailureCounts, FailureParty};
pub use keys::KeyRewards;
pub use score::{Score, ThresholdOutcome};
pub use stats::{AgentTally, AgentTotal, RunStats};
pub use sum::NeumaierSum;
pub use tally::{Rewards, Tally, TrialScore, total_cost};
