//! Runs on the command line of commands for a live coordinator.

use std::path::Path;
use std::sync::Arc;

use rollout_engine::RunManifest;
use rollout_engine::catalog::Catalog;
use rollout_engine::journal::RunLayout;
use rollout_protocol::id::RunId;

use crate::cli::error::CliError;
use crate::cli::run_place::{self, CatalogAddress};

fn not_a_run(path: &Path) -> CliError {
    run_place::not_a_run(path, "manifest.json")
}

/// The id of a run: that of a directory, of a run in a catalog, or the text itself.
pub(super) async fn run_id(text: &str) -> Result<RunId, CliError> {
    if let Some(address) = CatalogAddress::parse(Path::new(text))? {
        let catalog = Catalog::new(Arc::clone(&address.open_store().await?));
        return Ok(catalog.find(address.run.as_deref()).await?.run);
    }
    let directory = Path::new(text);
    if directory.is_dir() {
        let manifest = RunManifest::read(&RunLayout::new(directory))?;
        return manifest.map(|manifest| manifest.run).ok_or_else(|| not_a_run(directory));
    }
    if directory.exists() {
        return Err(not_a_run(directory));
    }
    text.parse().map_err(|_| {
        CliError::refused(format!("`{text}` is neither a run directory, a URL nor a run id"))
    })
}
