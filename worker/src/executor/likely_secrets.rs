//! Values that look like secrets and are not declared: files that hold one are kept unchanged, and flagged.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use rollout_base::secrets::Redactor;
use rollout_base::supervise;

/// The variables of values that kept files hold and that look like secrets.
///
/// # Errors
/// Errors of the local disk.
pub(crate) async fn possible_secrets(
    files: Vec<PathBuf>,
    redactor: &Redactor,
) -> io::Result<BTreeSet<String>> {
    if redactor.is_empty() || files.is_empty() {
        return Ok(BTreeSet::new());
    }
    let redactor = redactor.clone();
    let scan = move || -> io::Result<BTreeSet<String>> {
        let mut variables = BTreeSet::new();
        for file in files {
            let found = redactor.found_in_file(&file)?;
            variables.extend(found.iter().map(ToString::to_string));
        }
        Ok(variables)
    };
    supervise::blocking(scan).await
}
