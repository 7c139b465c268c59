//! The tables `event_counts_by_trial` and `event_counts_by_agent`: events of harnesses by type. A
//! type without an event has no row.

use super::TableSink;
use super::agent_summary::AgentRow;
use super::settled_trial::{TableTrial, count};
use crate::results::metrics::{EventTypeTally, event_counts};
use crate::results::rows::{Column, RowsError, Table, columns};

/// The table of trials.
pub(super) struct EventCountsByTrial;

/// Events of one type in a trial.
pub(super) struct TrialEventsRow<'a> {
    trial: &'a TableTrial<'a>,
    event_type: &'static str,
    count: u64,
}

/// The table of agents.
pub(super) struct EventCountsByAgent;

/// Events of one type in the trials of an agent.
pub(super) struct AgentEventsRow<'a> {
    of: &'a AgentRow<'a>,
    event_type: &'static str,
    tally: EventTypeTally,
}

impl Table for EventCountsByTrial {
    const NAME: &'static str = "event_counts_by_trial";
    type Row<'a> = TrialEventsRow<'a>;
    const COLUMNS: &'static [Column<Self>] = columns! {
        "run_id": Text = |row| Some(row.trial.run);
        "trial_id": Text = |row| Some(row.trial.id.as_str());
        "agent": Text = |row| Some(row.trial.name.agent.as_str());
        "dataset": Text = |row| Some(row.trial.name.dataset.as_str());
        "task": Text = |row| Some(row.trial.name.task.as_str());
        "attempt": Integer = |row| Some(row.trial.name.attempt);
        "event_type": Text = |row| Some(row.event_type);
        "count": Integer = |row| count(row.count);
    };
}

impl Table for EventCountsByAgent {
    const NAME: &'static str = "event_counts_by_agent";
    type Row<'a> = AgentEventsRow<'a>;
    const COLUMNS: &'static [Column<Self>] = columns! {
        "run_id": Text = |row| Some(row.of.run);
        "agent": Text = |row| Some(row.of.agent.name.as_str());
        "event_type": Text = |row| Some(row.event_type);
        "count": Integer = |row| count(row.tally.count);
        "trials": Integer = |row| count(row.tally.trials);
    };
}

/// Adds the events of a trial.
pub(super) fn add_trial(
    trial: &TableTrial<'_>,
    sink: &mut impl TableSink,
) -> Result<(), RowsError> {
    for (event_type, count) in trial.events().map(event_counts).unwrap_or_default() {
        sink.add::<EventCountsByTrial>(&TrialEventsRow { trial, event_type, count })?;
    }
    Ok(())
}

/// Adds the events of an agent.
pub(super) fn add_agent(of: &AgentRow<'_>, sink: &mut impl TableSink) -> Result<(), RowsError> {
    for (event_type, tally) in of.harness.event_types() {
        sink.add::<EventCountsByAgent>(&AgentEventsRow { of, event_type, tally })?;
    }
    Ok(())
}
