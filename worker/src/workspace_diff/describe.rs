//! Changes as entries of the document, with secrets masked.

use data_encoding::BASE64;
use rollout_base::secrets::{RedactionStyle, Redactor};
use rollout_protocol::workspace_diff::{WorkspaceChange, WorkspaceEntry, WorkspaceEntryKind};
use serde::{Serialize, Serializer};

use super::compare::EntryChange;
use super::index::IndexEntry;

/// Changes that are described one at a time while they are written.
pub(super) struct DescribedChanges<'a> {
    pub(super) changes: &'a [EntryChange<'a>],
    pub(super) redactor: &'a Redactor,
}

impl Serialize for DescribedChanges<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.changes.iter().map(|change| describe(change, self.redactor)))
    }
}

fn describe(change: &EntryChange<'_>, redactor: &Redactor) -> WorkspaceChange {
    let path = masked(change.path, redactor);
    let is_text = std::str::from_utf8(&path).is_ok();
    WorkspaceChange {
        path_base64: (!is_text).then(|| BASE64.encode(&path)),
        path: String::from_utf8_lossy(&path).into_owned(),
        change: change.kind,
        before: change.before.map(|entry| describe_entry(entry, redactor)),
        after: change.after.map(|entry| describe_entry(entry, redactor)),
        not_in_files: change.not_in_files,
        not_in_patch: change.not_in_patch,
    }
}

fn describe_entry(entry: &IndexEntry, redactor: &Redactor) -> WorkspaceEntry {
    let plain = |kind| WorkspaceEntry {
        kind,
        mode: entry.mode().map(|mode| format!("{mode:04o}")),
        size_bytes: None,
        digest: None,
        target: None,
        masked: false,
    };
    match entry {
        IndexEntry::File { file, .. } => WorkspaceEntry {
            size_bytes: Some(file.size),
            digest: Some(file.masked.as_deref().copied().unwrap_or(file.digest)),
            masked: file.masked.is_some(),
            ..plain(WorkspaceEntryKind::File)
        },
        IndexEntry::Directory { .. } => plain(WorkspaceEntryKind::Directory),
        IndexEntry::Symlink { target, .. } => WorkspaceEntry {
            target: Some(String::from_utf8_lossy(&masked(target, redactor)).into_owned()),
            ..plain(WorkspaceEntryKind::Symlink)
        },
        IndexEntry::Special { .. } => plain(WorkspaceEntryKind::Special),
    }
}

/// A name without secrets, of the same length.
pub(super) fn masked(name: &[u8], redactor: &Redactor) -> Vec<u8> {
    let (mut masking, mut masked) = (redactor.stream(RedactionStyle::Mask), Vec::new());
    masking.push(name, &mut masked);
    masking.finish(&mut masked);
    masked
}
