//! Options that name a blob store.

use std::path::Path;

use rollout_worker::store::{BadStoreUrl, StoreUrl};

use super::error::CliError;
use crate::launch::store::{StoreNotFound, find};
use crate::results::files::store::{NoStore, StoreNote};

/// The store that an option names.
pub(super) fn parse(text: &str) -> Result<StoreUrl, CliError> {
    Ok(text.parse::<StoreUrl>()?)
}

/// The store that an option names, if it does.
pub(super) fn parse_optional(text: Option<&str>) -> Result<Option<StoreUrl>, CliError> {
    text.map(parse).transpose()
}

/// The store of a run directory: the one that is named, or the one that the run used.
pub(super) fn of_run(named: Option<&str>, run_dir: &Path) -> Result<StoreUrl, CliError> {
    let named = parse_optional(named)?;
    find(named, run_dir).map_err(|error| match error {
        StoreNotFound::Unknown(error) => error.into(),
        StoreNotFound::Missing(_) => CliError::usage(error.to_string()).hint(&store_hint(run_dir)),
    })
}

/// Which store a run used.
pub(super) fn store_hint(run_dir: &Path) -> String {
    hint(StoreNote::read(run_dir).as_ref())
}

fn hint(note: Option<&StoreNote>) -> String {
    let used = note.map(|StoreNote { directory, identity, .. }| {
        format!(": it was {} (identity {identity})", directory.display())
    });
    format!("`--store DIR` names the store that the run used{}", used.unwrap_or_default())
}

impl From<BadStoreUrl> for CliError {
    fn from(error: BadStoreUrl) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<NoStore> for CliError {
    fn from(error: NoStore) -> Self {
        Self::usage(error.to_string()).hint(&hint(error.note.as_ref()))
    }
}
