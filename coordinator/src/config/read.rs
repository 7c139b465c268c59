//! Reading of text files with a size limit.

use std::io::{ErrorKind as IoErrorKind, Read as _};
use std::path::Path;

use rollout_protocol::limits::CONFIG_FILE_BYTES;

use super::diagnostics::{Diagnostics, ErrorKind};
use super::location::SourceLocation;

/// The text of `file`; `None` with a recorded error if it cannot be read.
pub(crate) fn text(file: &Path, problems: &mut Diagnostics) -> Option<String> {
    let spot = SourceLocation { key: String::new(), line: None };
    let expected = "a readable file";
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file)
        .and_then(|f| f.take(CONFIG_FILE_BYTES + 1).read_to_end(&mut bytes));
    let (kind, found) = match opened {
        Err(error) if error.kind() == IoErrorKind::NotFound => {
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
