//! Errors and warnings of one file. The first ones are kept, and the others counted: a file of a user may
//! have hundreds of thousands.

use std::cell::{Cell, RefCell};
use std::path::Path;

use rollout_protocol::limits::CONFIG_ERRORS;

use super::diagnostics::{ConfigError, ConfigWarning, Diagnostics, ErrorKind};
use super::location::SourceLocation;

/// Collects the errors and warnings of a file.
#[derive(Default)]
pub(super) struct FileDiagnostics {
    kept: RefCell<Diagnostics>,
    /// Numbers of further errors and of further warnings.
    omitted: [Cell<usize>; 2],
}

impl FileDiagnostics {
    /// Records an error, made only if it is kept.
    pub(super) fn error(&self, error: impl FnOnce() -> ConfigError) {
        if is_kept(self.kept.borrow().counts().0, &self.omitted[0]) {
            let error = error();
            self.kept.borrow_mut().error(error);
        }
    }

    /// Records a warning, made only if it is kept.
    pub(super) fn warning(&self, warning: impl FnOnce() -> ConfigWarning) {
        if is_kept(self.kept.borrow().counts().1, &self.omitted[1]) {
            let warning = warning();
            self.kept.borrow_mut().warning(warning);
        }
    }

    /// The errors and warnings of the file, with the numbers of those that were not kept.
    pub(super) fn into_diagnostics(self, file: &Path) -> Diagnostics {
        let mut kept = self.kept.into_inner();
        let [errors, warnings] = self.omitted.map(Cell::into_inner);
        if errors > 0 {
            // It comes after the others.
            let spot = SourceLocation { key: String::new(), line: kept.last_line() };
            let message = format!("{errors} more errors are not shown");
            kept.error(spot.failure(file, ErrorKind::BadValue, message));
        }
        if warnings > 0 {
            let message = format!("{warnings} more warnings are not shown");
            let (file, key) = (file.to_owned(), String::new());
            kept.warning(ConfigWarning { file, line: None, key, message });
        }
        kept
    }
}

/// Whether one more is kept beside so many; otherwise it is counted.
fn is_kept(kept: usize, omitted: &Cell<usize>) -> bool {
    let is_kept = kept < CONFIG_ERRORS;
    omitted.set(omitted.get() + usize::from(!is_kept));
    is_kept
}
