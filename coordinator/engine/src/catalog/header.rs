//! Headers of runs: which runs a catalog has.

use rollout_protocol::Timestamp;
use rollout_protocol::id::RunId;
use serde::{Deserialize, Serialize};
use tokio_util::bytes::Bytes;

use super::{CATALOG, Catalog, CatalogError, run_prefix};

/// Name of the document of a header.
pub(super) const HEADER: &str = "header";

/// Newest format of a run in a catalog.
const FORMAT: u32 = 1;

/// Fewest characters of a run id that select it.
const MIN_ID_PREFIX: usize = 6;

/// A run in a catalog.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CatalogHeader {
    /// Format of the run in the catalog.
    pub format: u32,
    /// The run.
    pub run: RunId,
    /// Name of its job.
    pub job: String,
    /// When the run was added to the catalog.
    pub created_at: Timestamp,
}

impl CatalogHeader {
    pub(super) fn new(run: RunId, job: &str) -> Self {
        Self { format: FORMAT, run, job: job.to_owned(), created_at: Timestamp::now() }
    }

    pub(super) fn path(run: RunId) -> String {
        format!("{}{HEADER}", run_prefix(run))
    }

    pub(super) fn to_bytes(&self) -> Bytes {
        serde_json::to_vec(self).expect("text keys only").into()
    }
}

impl Catalog {
    /// All runs, by their start.
    ///
    /// # Errors
    /// [`CatalogError`].
    pub async fn runs(&self) -> Result<Vec<CatalogHeader>, CatalogError> {
        let mut found = Vec::new();
        for path in self.store.list_documents(CATALOG).await? {
            if path.rsplit('/').next() != Some(HEADER) {
                continue;
            }
            // Removed meanwhile.
            let Some(text) = self.store.get_document(&path).await? else { continue };
            found.push(parse(&path, &text)?);
        }
        found.sort_by_key(|header| (header.created_at, header.run));
        Ok(found)
    }

    /// The run that a selector means: its id, the beginning of its id, or the name of its job.
    /// Without a selector, the only run.
    ///
    /// # Errors
    /// [`CatalogError::NoRun`] or [`CatalogError::Ambiguous`].
    pub async fn find(&self, selector: Option<&str>) -> Result<CatalogHeader, CatalogError> {
        let mut runs = self.runs().await?;
        if let Some(selector) = selector {
            let is_id = selector.len() >= MIN_ID_PREFIX;
            runs.retain(|run| {
                run.job == selector || is_id && run.run.to_string().starts_with(selector)
            });
        }
        let name = selector.map_or_else(String::new, |selector| format!(" named {selector}"));
        match runs.len() {
            0 => Err(CatalogError::NoRun(selector.unwrap_or("at all").to_owned())),
            1 => Ok(runs.remove(0)),
            _ => Err(CatalogError::Ambiguous { name, runs }),
        }
    }
}

fn parse(path: &str, text: &[u8]) -> Result<CatalogHeader, CatalogError> {
    let unusable = |reason| CatalogError::Document { path: path.to_owned(), reason };
    let header: CatalogHeader =
        serde_json::from_slice(text).map_err(|error| unusable(error.to_string()))?;
    match header.format <= FORMAT {
        true => Ok(header),
        false => Err(unusable(format!(
            "it has format {}, this version reads up to {FORMAT}",
            header.format
        ))),
    }
}
