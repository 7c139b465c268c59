//! Reading of text files with a size limit.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use rollout_base::confined::{ConfinedDir, leads_outside};
use rollout_protocol::limits::CONFIG_FILE_BYTES;

use super::diagnostics::{ConfigError, Diagnostics, ErrorKind};
use super::location::SourceLocation;

/// The text of a file that the command line names; `None` with a recorded error if it cannot be
/// read. It may be a pipe.
pub(super) fn text(file: &Path, problems: &mut Diagnostics) -> Option<String> {
    text_of(File::open(file), file, problems)
}

/// The text of a file of the task in `dir`, which is regular; `None` with a recorded error if it cannot
/// be read.
pub(crate) fn task_text(dir: &Path, path: &Path, problems: &mut Diagnostics) -> Option<String> {
    let file = dir.join(path);
    match ConfinedDir::open(dir).and_then(|dir| dir.file(path)) {
        Err(error) if leads_outside(&error) => {
            problems.error(outside_task(&file));
            None
        }
        opened => text_of(opened, &file, problems),
    }
}

/// The error of a path that leads out of its task.
pub(crate) fn outside_task(file: &Path) -> ConfigError {
    let spot = SourceLocation { key: String::new(), line: None };
    let found = "a symlink out of the task's directory";
    spot.error(file, ErrorKind::BadFile, found, "files and directories inside it")
}

fn text_of(opened: io::Result<File>, file: &Path, problems: &mut Diagnostics) -> Option<String> {
    let spot = SourceLocation { key: String::new(), line: None };
    let expected = "a readable file";
    let mut bytes = Vec::new();
    let read = opened.and_then(|f| f.take(CONFIG_FILE_BYTES + 1).read_to_end(&mut bytes));
    let (kind, found) = match read {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            (ErrorKind::NotFound, "no such file".to_owned())
        }
        Err(error) => {
            let message = format!("cannot read the file: {error}");
            problems.error(spot.failure(file, ErrorKind::Unreadable, message));
            return None;
        }
        Ok(read) if read as u64 > CONFIG_FILE_BYTES => {
            (ErrorKind::TooLarge, format!("more than {CONFIG_FILE_BYTES} bytes"))
        }
        Ok(_) => match String::from_utf8(bytes) {
            Ok(text) => return Some(text),
            Err(error) => (ErrorKind::Syntax, format!("text that is not UTF-8: {error}")),
        },
    };
    problems.error(spot.error(file, kind, found, expected));
    None
}
