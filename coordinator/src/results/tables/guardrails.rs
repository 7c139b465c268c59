//! The table `guardrails`: the bounds that the job states. Metadata of the other tables.

use rollout_protocol::spec::guardrail::Guardrail;

use super::{TableSink, TablesError};
use crate::plan::JobPlan;
use crate::results::rows::{Column, Table, columns};

/// The table.
pub(super) struct Guardrails;

/// A guardrail of a run.
pub(super) struct GuardrailRow<'a> {
    run: &'a str,
    guardrail: &'a Guardrail,
}

/// Adds a row for each guardrail of the plan.
pub(super) fn add_rows(
    run: &str,
    plan: &JobPlan,
    sink: &mut impl TableSink,
) -> Result<(), TablesError> {
    for guardrail in plan.guardrails() {
        sink.add::<Guardrails>(&GuardrailRow { run, guardrail })?;
    }
    Ok(())
}

impl Table for Guardrails {
    const NAME: &'static str = "guardrails";
    type Row<'a> = GuardrailRow<'a>;
    const COLUMNS: &'static [Column<Self>] = columns! {
        "run_id": Text = |row| Some(row.run);
        "metric_id": Text = |row| Some(row.guardrail.metric_id.as_str());
        "max": Number = |row| row.guardrail.max;
    };
}
