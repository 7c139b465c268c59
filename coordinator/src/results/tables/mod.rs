//! Analysis tables of a job's run, derived from its settlements and its plan. No blob is read, so a
//! table does not depend on the blob store or on `--materialize`.
//!
//! | Table | A row per |
//! | --- | --- |
//! | `trials` | settled trial |
//! | `tries` | execution of a settled trial |
//! | `metrics_long` | number or text of a settled trial |
//! | `event_counts_by_trial` | type of events of a settled trial with a harness |
//! | `event_counts_by_agent` | type of events of an agent with a harness |
//! | `agent_summary` | agent |
//! | `comparisons` | agent that is compared with the baseline, the first of the plan |
//! | `guardrails` | guardrail of the job: metadata |
//!
//! * Rows are in plan order. The same settlements give the same tables, byte for byte.
//! * Trials are read one at a time. The totals of each agent and two bits per trial of the baseline
//!   are kept.
//! * The figures of agents are those of `result.json`, computed by the same code
//!   ([`crate::results::metrics`]).

mod agent_summary;
mod comparisons;
mod directory;
mod event_counts;
mod guardrails;
mod metrics_long;
mod settled_trial;
#[cfg(test)]
mod tests;
mod trials;
mod tries;

use std::path::PathBuf;

use rollout_base::shown_path::shown;
use rollout_protocol::id::RunId;
use rollout_protocol::record::Settlement;

use self::agent_summary::{AgentRow, AgentSummaries};
use self::comparisons::{Comparisons, PairedOutcomes};
use self::settled_trial::TableTrial;
use crate::plan::JobPlan;
use crate::results::metrics::{AgentTotal, HarnessTally, RunStats};
use crate::results::rows::{RowsError, Table};
use crate::results::settlements::SettlementsError;
pub(crate) use directory::{remove_from_run, write_directory, write_settlements, write_to_run};

/// Why tables could not be written.
#[derive(Debug, thiserror::Error)]
pub enum TablesError {
    /// The settlements of the run cannot be read.
    #[error(transparent)]
    Settlements(#[from] SettlementsError),
    /// The rows cannot be written.
    #[error(transparent)]
    Rows(#[from] RowsError),
    /// The output is a file, or a directory that has entries.
    #[error("{} already exists and is not an empty directory", shown(.0))]
    NotEmpty(PathBuf),
    /// The records of a complete run do not have all of its trials.
    #[error("the records have {found} of {expected} settled trials")]
    Incomplete {
        /// Trials in the records.
        found: u64,
        /// Settled trials.
        expected: u64,
    },
}

/// Receives the rows of all tables.
trait TableSink {
    /// Adds a row at the end of its table.
    fn add<T: Table>(&mut self, row: &T::Row<'_>) -> Result<(), RowsError>;
}

/// Derives every table. `settled` are the settled trials with their ordinals, in plan order; they
/// are trials of the plan.
fn derive(
    run: RunId,
    plan: &JobPlan,
    settled: impl Iterator<Item = Result<(u64, Settlement), SettlementsError>>,
    sink: &mut impl TableSink,
) -> Result<(), TablesError> {
    let run = run.to_string();
    let each = plan.trials_per_agent();
    let agents = plan.agents().iter().map(|agent| agent.spec.name.clone());
    let agents: Vec<_> = agents.map(|name| AgentTotal { name, total: each }).collect();
    let mut stats = RunStats::new(&agents);
    let mut harnesses = vec![HarnessTally::default(); agents.len()];
    let mut paired = PairedOutcomes::new(plan);
    guardrails::add_rows(&run, plan, sink)?;
    for next in settled {
        let (ordinal, settlement) = next?;
        let trial = TableTrial::new(&run, plan, ordinal, &settlement);
        let Some(trial) = trial else { continue };
        stats.add(&trial.name.agent, &trial.score, settlement.verdict.numbers());
        harnesses[(ordinal / each) as usize].add(&settlement, &trial.score);
        paired.add(plan, ordinal, &trial.score);
        sink.add::<trials::Trials>(&trial)?;
        tries::add_rows(&trial, sink)?;
        metrics_long::add_rows(&trial, sink)?;
        event_counts::add_trial(&trial, sink)?;
    }
    let rows: Vec<_> = (stats.agents().iter().zip(&harnesses))
        .map(|(agent, harness)| AgentRow::new(&run, agent, harness))
        .collect();
    let Some(baseline) = rows.first() else { return Ok(()) };
    for row in &rows {
        sink.add::<AgentSummaries>(&row.against(baseline))?;
        event_counts::add_agent(row, sink)?;
    }
    for (agent, pairs) in rows.iter().zip(paired.counts()).skip(1) {
        sink.add::<Comparisons>(&comparisons::ComparisonRow { baseline, agent, pairs })?;
    }
    Ok(())
}
