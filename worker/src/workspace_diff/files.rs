//! The archive of added and changed files.

use std::io::{self, Write};

use rollout_base::secrets::Redactor;
use rollout_protocol::workspace_diff::FilesOmission;
use rollout_store::archive::ArchiveWriter;

use super::compare::EntryChange;
use super::contents::ContentFile;
use super::describe::masked;
use super::index::IndexEntry;

/// Size and number of what was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct WrittenFiles {
    /// Bytes of contents.
    pub(super) bytes: u64,
    /// Members of any kind.
    pub(super) members: u64,
}

/// Writes the files, directories and links with new content, ordered by path, and notes which are
/// left out. Since every directory is listed before its entries, the result can be unpacked: one with a
/// secret in its name is left out with everything below it.
pub(super) fn write(
    writer: impl Write,
    changes: &mut [EntryChange<'_>],
    contents: &ContentFile,
    redactor: &Redactor,
    most_bytes: u64,
) -> io::Result<WrittenFiles> {
    let mut archive = ArchiveWriter::new(writer);
    let mut written = WrittenFiles::default();
    for change in changes.iter_mut().filter(|change| change.has_new_content()) {
        let Some(entry) = change.after else { continue };
        let path = change.path;
        let has_secret = |text: &[u8]| masked(text, redactor) != text;
        let omission = match entry {
            _ if has_secret(path) => Some(FilesOmission::Masked),
            IndexEntry::Symlink { target, .. } if has_secret(target) => Some(FilesOmission::Masked),
            IndexEntry::Directory { .. } => {
                archive.directory(path)?;
                None
            }
            IndexEntry::Symlink { target, stays_inside: true } => {
                archive.symlink(path, target)?;
                None
            }
            IndexEntry::Symlink { stays_inside: false, .. } => Some(FilesOmission::LinkOutside),
            IndexEntry::Special { .. } => Some(FilesOmission::Special),
            IndexEntry::File { file, .. } if file.masked.is_some() => Some(FilesOmission::Masked),
            IndexEntry::File { mode, file } => match file.content {
                Some(position) if written.bytes.saturating_add(file.size) <= most_bytes => {
                    archive.begin_file(path, mode & 0o111 != 0, file.size)?;
                    contents.copy(position, file.size, |bytes| archive.content(bytes))?;
                    archive.end_file(file.size)?;
                    written.bytes += file.size;
                    None
                }
                None if file.unchanged => Some(FilesOmission::UnchangedContent),
                _ => Some(FilesOmission::Limit),
            },
        };
        written.members += u64::from(omission.is_none());
        change.not_in_files = omission;
    }
    archive.finish()?;
    Ok(written)
}
