//! The result of a run, folded from its settlements: `result.json` and facts about datasets and
//! tasks.

mod facts;
mod job_result;
mod ledger;

pub use facts::{DatasetFacts, TaskFacts, TaskFactsIndex};
pub(crate) use job_result::RunOverview;
pub use job_result::{
    AgentSummary, Headline, JobResult, KeyFigures, KeyMetrics, MetricValues, OrderedMap,
    ScoreFigures, TrialSummary,
};
pub use ledger::FailureGroup;
pub(crate) use ledger::Ledger;
