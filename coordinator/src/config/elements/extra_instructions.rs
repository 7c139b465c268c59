//! `extra_instructions` and `extra_instruction_paths`: texts after the instruction of every task.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use rollout_base::regular_file;

use super::super::diagnostics::ErrorKind;
use super::super::job_file::JobKeys;
use super::super::reader::{Field, Fields};

/// Most bytes of all texts.
pub(crate) const MAX_BYTES: usize = 256 * 1024;

/// The fields.
pub(crate) struct ExtraInstructionFields<'a> {
    texts: Field<'a>,
    paths: Field<'a>,
}

/// Reads a file with such a text that an option of the command line names. It may be a pipe.
///
/// # Errors
/// Those of the file; it is too large, or no text.
pub(crate) fn read_file(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_BYTES as u64 + 1).read_to_string(&mut text)?;
    if text.len() > MAX_BYTES {
        return Err(io::Error::other(format!("it has more than {MAX_BYTES} bytes")));
    }
    Ok(text)
}

impl<'a> ExtraInstructionFields<'a> {
    pub(crate) fn take(fields: &mut Fields<'a>) -> Self {
        Self {
            texts: fields.take(JobKeys::extra_instructions),
            paths: fields.take(JobKeys::extra_instruction_paths),
        }
    }

    /// The texts, then those of the files; relative paths begin where the job `file` is. Errors are
    /// recorded.
    pub(crate) fn read(&self, file: &Path) -> Vec<String> {
        let items = self.texts.items().unwrap_or_default();
        let mut texts: Vec<String> = items.iter().filter_map(Field::non_empty_string).collect();
        let base = file.parent().unwrap_or(Path::new(""));
        for item in self.paths.items().unwrap_or_default() {
            let Some(path) = item.path() else { continue };
            match regular_file::read_text(&base.join(path), MAX_BYTES as u64) {
                Ok(text) => texts.push(text),
                Err(error) => {
                    let found = format!("a file that cannot be read: {error}");
                    item.reject(ErrorKind::Unreadable, found, "a text file");
                }
            }
        }
        if texts.iter().map(String::len).sum::<usize>() > MAX_BYTES {
            let found = "too long texts".to_owned();
            self.texts.reject(ErrorKind::TooLarge, found, format!("at most {MAX_BYTES} bytes"));
        }
        texts
    }
}
