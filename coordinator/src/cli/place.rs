//! Where a blob store is, as an option says it.

use std::path::{Path, PathBuf};

use super::error::CliError;
use crate::results::files::store::{self, NoStore, StoreNote};

/// The directory of a store: a path, or `file://` and an absolute path.
pub(super) fn directory(text: &str) -> Result<PathBuf, CliError> {
    let Some((scheme, rest)) = text.split_once("://") else { return Ok(PathBuf::from(text)) };
    match scheme {
        "file" if rest.starts_with('/') => Ok(PathBuf::from(rest)),
        "file" => Err(CliError::usage(format!(
            "`{text}`: a file URL has an absolute path, `file:///path`"
        ))),
        "s3" => Err(CliError::usage(
            "stores in S3 are not supported yet: give a directory that all hosts share".to_owned(),
        )),
        _ => Err(CliError::usage(format!(
            "`{text}`: expected a directory or a `file://` URL as a blob store"
        ))),
    }
}

/// The store of a run directory: the one that is named, or the one that the run used.
pub(super) fn of_run(named: Option<&str>, run_dir: &Path) -> Result<PathBuf, CliError> {
    let Some(named) = named else { return Ok(store::find(run_dir)?) };
    let directory = directory(named)?;
    if store::identity_of(&directory).is_some() {
        return Ok(directory);
    }
    let what = format!("there is no blob store in {}", directory.display());
    Err(CliError::usage(what).hint(&store_hint(run_dir)))
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

impl From<NoStore> for CliError {
    fn from(error: NoStore) -> Self {
        Self::usage(error.to_string()).hint(&hint(error.note.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_directories() {
        let good = |text| directory(text).expect(text);
        assert_eq!(good("blobs"), PathBuf::from("blobs"));
        assert_eq!(good("file:///shared/blobs"), PathBuf::from("/shared/blobs"));
        for bad in ["file://blobs", "s3://bucket/x", "http://x/y"] {
            assert!(directory(bad).is_err(), "{bad}");
        }
    }
}
