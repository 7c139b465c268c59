//! The small documents of a run directory, as bytes.

use std::path::Path;

use rollout_engine::journal::RunLayout;
use rollout_engine::{ObservedOwner, RunError, RunManifest};

use super::RunViewError;
use crate::plan::{JobPlan, JobPlanError, PlanDocument};

/// The small documents of a run, as they were read; `None` for a missing one. They may come from a
/// directory or from anywhere else.
#[derive(Debug, Default, Clone)]
pub struct RunDocuments {
    /// `manifest.json`, or `engine.json` of a search.
    pub manifest: Option<Vec<u8>>,
    /// `plan.json`; a search has none.
    pub plan: Option<Vec<u8>>,
    /// `run.lock.json`.
    pub lock: Option<Vec<u8>>,
}

/// The parsed documents of a run.
#[derive(Debug)]
pub(super) struct ParsedDocuments {
    pub(super) manifest: Option<RunManifest>,
    pub(super) plan: Option<JobPlan>,
    pub(super) owner: Option<ObservedOwner>,
}

impl RunDocuments {
    /// Parses the documents; errors name the paths of `layout`. A lock file that cannot be read is
    /// as good as none: it is for people.
    pub(super) fn parse(&self, layout: &RunLayout) -> Result<ParsedDocuments, RunViewError> {
        let manifest = self.manifest.as_deref();
        let manifest =
            manifest.map(|bytes| RunManifest::parse(&layout.manifest(), bytes)).transpose()?;
        let plan = self.plan.as_deref();
        let plan = plan.map(|bytes| parse_plan(&layout.plan(), bytes)).transpose()?;
        let owner = self.lock.as_deref().and_then(ObservedOwner::parse);
        Ok(ParsedDocuments { manifest, plan, owner })
    }
}

/// Parses the plan that was read from `path`.
///
/// # Errors
/// [`RunError`] when it is damaged, or of a newer format.
pub(crate) fn parse_plan(path: &Path, bytes: &[u8]) -> Result<JobPlan, RunError> {
    let damaged = |reason| RunError::Damaged { path: path.to_owned(), reason };
    let document: PlanDocument =
        serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    JobPlan::try_from(document).map_err(|error| match error {
        JobPlanError::Newer { found, known } => {
            RunError::Newer { path: path.to_owned(), found, known }
        }
        error => damaged(error.to_string()),
    })
}
