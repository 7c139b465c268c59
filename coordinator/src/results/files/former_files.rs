//! Files that a former session wrote for the same execution, and whose content is lost since.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs as unix;
use std::path::Path;

use super::durable::FileError;
use super::layout::{ERROR, MISSING, RESULT};

/// Files of a trial directory that are written anew.
const REWRITTEN: [&str; 3] = [RESULT, ERROR, MISSING];

/// Links the files of the trial directory `former` into `staging`, except those that are there. Both are of
/// the same execution and on one file system. An agent may have made any of the files: symbolic
/// links are copied, never followed.
///
/// # Errors
/// [`FileError`].
pub(super) fn keep(former: &Path, staging: &Path) -> Result<(), FileError> {
    let mut directories = vec![(former.to_owned(), staging.to_owned())];
    while let Some((from, to)) = directories.pop() {
        let entries = fs::read_dir(&from).map_err(FileError::with_context("list", &from))?;
        for entry in entries {
            let entry = entry.map_err(FileError::with_context("list", &from))?;
            let (source, target) = (entry.path(), to.join(entry.file_name()));
            let kind = entry.file_type().map_err(FileError::with_context("look at", &source))?;
            if from == former && REWRITTEN.iter().any(|name| entry.file_name() == *name) {
                continue;
            }
            if kind.is_dir() {
                let made = unless_there(fs::create_dir(&target));
                made.map_err(FileError::with_context("create", &target))?;
                let is_directory = fs::symlink_metadata(&target).is_ok_and(|found| found.is_dir());
                if is_directory {
                    directories.push((source, target));
                }
            } else if kind.is_symlink() {
                let linked = fs::read_link(&source).and_then(|link| unix::symlink(link, &target));
                unless_there(linked).map_err(FileError::with_context("create", &target))?;
            } else if kind.is_file() {
                let linked = fs::hard_link(&source, &target);
                unless_there(linked).map_err(FileError::with_context("create", &target))?;
            }
        }
    }
    Ok(())
}

fn unless_there(made: io::Result<()>) -> io::Result<()> {
    match made {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}
