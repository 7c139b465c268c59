//! Options that name a blob store.

use std::path::Path;
use std::sync::Arc;

use rollout_protocol::exit::ExitCode;
use rollout_store::{BlobStore, InvalidStoreUrl, StoreError, StoreUrl, open_existing};

use super::error::CliError;
use crate::launch::store::find;
use crate::results::files::store::{NoStore, StoreReference};

/// Parses the store that an option names. Commands refuse a store in memory: workers are separate
/// processes, and later commands read what a run stored.
pub(super) fn parse(text: &str) -> Result<StoreUrl, CliError> {
    match text.parse::<StoreUrl>()? {
        StoreUrl::Memory => {
            let what = format!("cannot use `{text}` as the blob store of a command");
            let hint = "a store in memory ends with its process: workers and later commands \
                        cannot read it; give a directory or an `s3://` URL";
            Err(CliError::usage(what).hint(hint))
        }
        url => Ok(url),
    }
}

/// Parses the store that an option names, if it is given.
pub(super) fn parse_optional(text: Option<&str>) -> Result<Option<StoreUrl>, CliError> {
    text.map(parse).transpose()
}

/// The store of a run directory: `named`, or the one that the run used.
pub(super) fn for_run(named: Option<&str>, run_dir: &Path) -> Result<StoreUrl, CliError> {
    Ok(find(parse_optional(named)?, run_dir)?)
}

/// Opens the store of a run directory: `named`, or the one that the run used.
pub(super) async fn open_for_run(
    named: Option<&str>,
    run_dir: &Path,
) -> Result<Arc<dyn BlobStore>, CliError> {
    open_found(&for_run(named, run_dir)?, run_dir).await
}

/// Opens the store that an option names, which must exist.
pub(super) async fn open_named(url: &StoreUrl) -> Result<Arc<dyn BlobStore>, CliError> {
    open_existing(url).await.map_err(|error| match error {
        StoreError::Absent { .. } => CliError::usage(error.to_string()),
        error => error.into(),
    })
}

/// Opens the store at `url`, which holds results of the run.
pub(super) async fn open_found(
    url: &StoreUrl,
    run_dir: &Path,
) -> Result<Arc<dyn BlobStore>, CliError> {
    open_existing(url).await.map_err(|error| match error {
        StoreError::Absent { .. } => CliError::usage(error.to_string()).hint(&store_hint(run_dir)),
        error => error.into(),
    })
}

/// The hint for a store that lacks what a run stored: names the store that the run used.
pub(super) fn store_hint(run_dir: &Path) -> String {
    hint(StoreReference::read(run_dir).as_ref())
}

fn hint(reference: Option<&StoreReference>) -> String {
    match reference {
        Some(StoreReference { place, identity }) => format!(
            "restore {place} (identity {identity}), or give its new place with `--store URL`"
        ),
        None => "give the store that the run used with `--store URL`".to_owned(),
    }
}

impl From<InvalidStoreUrl> for CliError {
    fn from(error: InvalidStoreUrl) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<NoStore> for CliError {
    fn from(error: NoStore) -> Self {
        Self::new(ExitCode::Failure, error.to_string()).hint(&hint(error.reference.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::files::store::StorePlace;

    #[test]
    fn store_missing_is_failure_that_names_former_store() {
        let reference = StoreReference {
            identity: "1a9d".to_owned(),
            place: StorePlace::Directory {
                directory: "/jobs/.rollout/blobs".into(),
                relative: "../.rollout/blobs".into(),
            },
        };
        let searched = vec!["/jobs/.rollout/blobs".into()];
        let error = CliError::from(NoStore { searched, reference: Some(reference) });
        assert_eq!(error.code, ExitCode::Failure);
        assert_eq!(
            error.hints,
            ["restore /jobs/.rollout/blobs (identity 1a9d), or give its new place with `--store \
              URL`"]
        );
    }

    #[test]
    fn store_url_memory_is_refused_by_commands() {
        let error = format!("{:?}", parse("memory:").expect_err("refused"));
        assert!(error.contains("`memory:`") && error.contains("give a directory"), "{error}");
        assert!(parse_optional(Some("memory:")).is_err());
        assert_eq!(
            parse("./memory:").expect("a directory"),
            Path::new("./memory:").to_owned().into()
        );
    }
}
