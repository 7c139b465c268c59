//! The archive of the artifact: the document, the patch and the files.

use std::fs::File;
use std::io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use rollout_protocol::workspace_diff::{
    CHANGES_FILE, ChangeCounts, FILES_ARCHIVE, PATCH_FILE, WORKSPACE_DIFF_VERSION, WorkspaceDiff,
};
use rollout_store::archive::{ArchiveWriter, PackedArchive};

use super::WorkspaceOptions;
use super::compare::EntryChange;
use super::contents::ContentFile;
use super::describe::DescribedChanges;
use super::index::IndexEntry;
use super::{files, patch};

/// Bytes copied at once.
const BUFFER_BYTES: usize = 64 * 1024;

/// Writes the archive of one comparison.
pub(super) struct DiffWriter<'a> {
    pub(super) options: &'a WorkspaceOptions,
    pub(super) contents: &'a ContentFile,
    /// Most bytes of changed files.
    pub(super) files_bytes: u64,
}

impl DiffWriter<'_> {
    /// Writes the archive to a new file; returns it and the bytes of changed files in it.
    pub(super) fn write(
        &self,
        changes: &mut [EntryChange<'_>],
        counts: ChangeCounts,
        truncated_because: &[String],
        to: &Path,
    ) -> io::Result<(PackedArchive, u64)> {
        let (options, redactor) = (self.options, &self.options.redactor);
        let mut files_file = tempfile::tempfile_in(&options.scratch)?;
        let buffered = BufWriter::with_capacity(BUFFER_BYTES, &mut files_file);
        let files = files::write(buffered, changes, self.contents, redactor, self.files_bytes)?;
        let mut patch_file = tempfile::tempfile_in(&options.scratch)?;
        let buffered = BufWriter::with_capacity(BUFFER_BYTES, &mut patch_file);
        let patch_bytes = patch::write(buffered, changes, self.contents, redactor)?;
        let document = WorkspaceDiff {
            schema_version: WORKSPACE_DIFF_VERSION.to_owned(),
            directory: options.directory.clone(),
            service: options.service.clone(),
            exclude: options.exclude.clone(),
            counts,
            changed_bytes: changes.iter().map(changed_bytes).sum(),
            truncated: !truncated_because.is_empty(),
            truncated_because: truncated_because.to_vec(),
            changes: DescribedChanges { changes, redactor },
        };
        let mut document_file = tempfile::tempfile_in(&options.scratch)?;
        let mut buffered = BufWriter::with_capacity(BUFFER_BYTES, &mut document_file);
        serde_json::to_writer_pretty(&mut buffered, &document)?;
        buffered.write_all(b"\n")?;
        buffered.flush()?;
        drop(buffered);

        let file = BufWriter::with_capacity(BUFFER_BYTES, File::create_new(to)?);
        let mut archive = ArchiveWriter::new(file);
        add(&mut archive, CHANGES_FILE, document_file)?;
        if patch_bytes > 0 {
            add(&mut archive, PATCH_FILE, patch_file)?;
        }
        if files.members > 0 {
            add(&mut archive, FILES_ARCHIVE, files_file)?;
        }
        let (_, packed) = archive.finish()?;
        Ok((packed, files.bytes))
    }
}

fn changed_bytes(change: &EntryChange<'_>) -> u64 {
    match change.after {
        Some(IndexEntry::File { file, .. }) if change.has_new_content() => file.size,
        _ => 0,
    }
}

fn add(archive: &mut ArchiveWriter<BufWriter<File>>, name: &str, mut file: File) -> io::Result<()> {
    let size = file.seek(SeekFrom::End(0))?;
    file.rewind()?;
    archive.begin_file(name.as_bytes(), false, size)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match file.read(&mut buffer)? {
            0 => return archive.end_file(size),
            read => archive.content(&buffer[..read])?,
        }
    }
}
