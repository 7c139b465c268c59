//! `agents_dir` of jobs and searches: the directory with further agents of the catalogue.

use std::borrow::Cow;
use std::path::Path;

use super::catalogue::{AgentCatalogue, CatalogueError};
use super::diagnostics::ErrorKind;
use super::reader::Field;

/// The catalogue with the agents of the directory that a file names. Errors are recorded.
pub(super) fn catalogue(field: &Field<'_>, file: &Path) -> Cow<'static, AgentCatalogue> {
    let shipped = Cow::Borrowed(AgentCatalogue::shipped());
    let Some(path) = field.path() else { return shipped };
    let directory = file.parent().unwrap_or(Path::new("")).join(path);
    match AgentCatalogue::with_directory(&directory) {
        Ok(catalogue) => Cow::Owned(catalogue),
        Err(error) => {
            let expected = "a directory with a TOML file for each agent";
            field.reject(ErrorKind::BadValue, error_chain(&error), expected);
            shipped
        }
    }
}

fn error_chain(error: &CatalogueError) -> String {
    match error {
        CatalogueError::Read { source, .. } => format!("{error}: {source}"),
        CatalogueError::Entry { .. } | CatalogueError::Duplicate { .. } => error.to_string(),
    }
}
