//! The index of a directory: everything but the contents of its files.

use std::collections::BTreeMap;

use rollout_protocol::digest::Digest;

/// The entries of a directory, by the bytes of their paths.
#[derive(Debug, Default)]
pub(super) struct WorkspaceIndex {
    pub(super) entries: BTreeMap<Vec<u8>, IndexEntry>,
    /// Why the directory was not read to its end.
    pub(super) cut: Option<String>,
    /// Entries with invalid names, or below a file or a link.
    pub(super) unlisted: u64,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum IndexEntry {
    File { mode: u32, file: FileState },
    Directory { mode: u32 },
    Symlink { target: Vec<u8>, stays_inside: bool },
    Special { mode: u32 },
}

/// The state of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileState {
    pub(super) size: u64,
    /// Digest of the true content, which is compared and never written.
    pub(super) digest: Digest,
    /// Digest with secrets masked, if there are any in it.
    pub(super) masked: Option<Box<Digest>>,
    /// Whether it has a NUL byte.
    pub(super) binary: bool,
    /// Whether the first of its names had the same content before.
    pub(super) unchanged: bool,
    /// Position of the masked content, if it is kept.
    pub(super) content: Option<u64>,
}

impl IndexEntry {
    /// Whether two entries are of the same kind.
    pub(super) const fn is_same_kind(&self, other: &Self) -> bool {
        matches!(
            (self, other),
            (Self::File { .. }, Self::File { .. })
                | (Self::Directory { .. }, Self::Directory { .. })
                | (Self::Symlink { .. }, Self::Symlink { .. })
                | (Self::Special { .. }, Self::Special { .. })
        )
    }

    /// Whether two entries of the same kind have the same content.
    pub(super) fn has_same_content(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File { file: a, .. }, Self::File { file: b, .. }) => {
                (a.size, a.digest) == (b.size, b.digest)
            }
            (Self::Symlink { target: a, .. }, Self::Symlink { target: b, .. }) => a == b,
            _ => true,
        }
    }

    /// Permission bits. Those of symbolic links mean nothing.
    pub(super) const fn mode(&self) -> Option<u32> {
        match self {
            Self::File { mode, .. } | Self::Directory { mode } | Self::Special { mode } => {
                Some(*mode)
            }
            Self::Symlink { .. } => None,
        }
    }
}

impl WorkspaceIndex {
    /// Whether every entry of the directory is known.
    pub(super) const fn is_complete(&self) -> bool {
        self.cut.is_none()
    }

    /// Why entries may be missing, for people.
    pub(super) fn incomplete_reasons(&self) -> impl Iterator<Item = String> {
        let unlisted = (self.unlisted > 0).then(|| {
            format!(
                "{} entries are not compared: their names are too long, too deep or lead outside",
                self.unlisted
            )
        });
        self.cut.clone().into_iter().chain(unlisted)
    }

    /// Removes entries below a file or a link, which a directory cannot have.
    pub(super) fn remove_impossible(&mut self) {
        let is_impossible = |path: &[u8]| {
            let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
            slashes.map(|(at, _)| &path[..at]).any(|above| {
                let above = self.entries.get(above);
                above.is_some_and(|entry| !matches!(entry, IndexEntry::Directory { .. }))
            })
        };
        let impossible: Vec<_> =
            self.entries.keys().filter(|path| is_impossible(path)).cloned().collect();
        for path in impossible {
            self.entries.remove(&path);
            self.unlisted += 1;
        }
    }
}
