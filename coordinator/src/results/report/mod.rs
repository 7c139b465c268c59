//! The result of a run, folded from its settlements: `result.json` and the facts around it.

mod facts;
mod job_result;
mod ledger;

pub use facts::{DatasetFacts, TaskFacts, TasksFacts};
pub(crate) use job_result::Frame;
pub use job_result::{
    AgentSummary, Headline, InOrder, JobResult, KeyFigures, KeyMetrics, Metrics, Scored,
    TrialSummary,
};
pub use ledger::FailureGroup;
pub(crate) use ledger::Ledger;
