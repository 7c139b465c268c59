//! The comparison of two indexes.

use std::cmp::Ordering;

use rollout_protocol::workspace_diff::{ChangeCounts, ChangeKind, FilesOmission, PatchOmission};

use super::index::{IndexEntry, WorkspaceIndex};

/// A changed entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EntryChange<'a> {
    pub(super) path: &'a [u8],
    pub(super) kind: ChangeKind,
    pub(super) before: Option<&'a IndexEntry>,
    pub(super) after: Option<&'a IndexEntry>,
    /// Why it is not among the files, once they are written.
    pub(super) not_in_files: Option<FilesOmission>,
    /// Why it is not in the patch, once that is written.
    pub(super) not_in_patch: Option<PatchOmission>,
}

impl EntryChange<'_> {
    /// Whether there is other content than before.
    pub(super) const fn has_new_content(&self) -> bool {
        matches!(self.kind, ChangeKind::Added | ChangeKind::Modified | ChangeKind::TypeChanged)
    }
}

/// The changes, ordered by path. An entry counts as added only if the index before is complete, and
/// as deleted only if the one after is.
pub(super) fn compare<'a>(
    before: &'a WorkspaceIndex,
    after: &'a WorkspaceIndex,
) -> (Vec<EntryChange<'a>>, ChangeCounts) {
    let (mut changes, mut counts) = (Vec::new(), ChangeCounts::default());
    let mut old = before.entries.iter().peekable();
    let mut new = after.entries.iter().peekable();
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((a, _)), Some((b, _))) => a.cmp(b),
        };
        let old = if order.is_le() { old.next() } else { None };
        let new = if order.is_ge() { new.next() } else { None };
        let Some((path, _)) = old.or(new) else { break };
        let (before_entry, after_entry) = (old.map(|(_, e)| e), new.map(|(_, e)| e));
        let kind = match (before_entry, after_entry) {
            (None, _) if !before.is_complete() => continue,
            (_, None) if !after.is_complete() => continue,
            (None, _) => ChangeKind::Added,
            (_, None) => ChangeKind::Deleted,
            (Some(a), Some(b)) => match entry_change(a, b) {
                Some(kind) => kind,
                None => {
                    counts.unchanged += 1;
                    continue;
                }
            },
        };
        *count(&mut counts, kind) += 1;
        changes.push(EntryChange {
            path,
            kind,
            before: before_entry,
            after: after_entry,
            not_in_files: None,
            not_in_patch: None,
        });
    }
    (changes, counts)
}

fn entry_change(before: &IndexEntry, after: &IndexEntry) -> Option<ChangeKind> {
    if !before.is_same_kind(after) {
        Some(ChangeKind::TypeChanged)
    } else if !before.has_same_content(after) {
        Some(ChangeKind::Modified)
    } else if before.mode() != after.mode() {
        Some(ChangeKind::ModeChanged)
    } else {
        None
    }
}

const fn count(counts: &mut ChangeCounts, kind: ChangeKind) -> &mut u64 {
    match kind {
        ChangeKind::Added => &mut counts.added,
        ChangeKind::Modified => &mut counts.modified,
        ChangeKind::Deleted => &mut counts.deleted,
        ChangeKind::TypeChanged => &mut counts.type_changed,
        ChangeKind::ModeChanged => &mut counts.mode_changed,
    }
}
