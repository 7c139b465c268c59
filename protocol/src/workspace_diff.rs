//! The document of a workspace diff: the changes that an agent made in a directory of its
//! environment. It is the file [`CHANGES_FILE`] of the artifact.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// Value of [`WorkspaceDiff::schema_version`].
pub const WORKSPACE_DIFF_VERSION: &str = "workspace_diff_v1";
/// Name of the document in the artifact.
pub const CHANGES_FILE: &str = "changes.json";
/// Name of the patch of text files in the artifact. Absent when it would be empty.
pub const PATCH_FILE: &str = "changes.patch";
/// Name of the archive of added and changed files in the artifact. Absent when it would be empty.
pub const FILES_ARCHIVE: &str = "files.tar";

/// The changes of a directory. `C` are the changes, ordered by the bytes of their paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceDiff<C = Vec<WorkspaceChange>> {
    /// [`WORKSPACE_DIFF_VERSION`].
    pub schema_version: String,
    /// Absolute path of the directory inside the environment.
    pub directory: String,
    /// Service of the directory; the agent's environment when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Patterns of entries that were not compared.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Number of entries by change.
    pub counts: ChangeCounts,
    /// Bytes of the added and changed files, as they are after the agent.
    pub changed_bytes: u64,
    /// Whether changes may be missing.
    pub truncated: bool,
    /// Why changes may be missing, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub truncated_because: Vec<String>,
    /// The changes.
    pub changes: C,
}

/// Number of entries of a directory by change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeCounts {
    /// See [`ChangeKind::Added`].
    pub added: u64,
    /// See [`ChangeKind::Modified`].
    pub modified: u64,
    /// See [`ChangeKind::Deleted`].
    pub deleted: u64,
    /// See [`ChangeKind::TypeChanged`].
    pub type_changed: u64,
    /// See [`ChangeKind::ModeChanged`].
    pub mode_changed: u64,
    /// Entries that are equal before and after.
    pub unchanged: u64,
}

/// Kinds of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It exists only after.
    Added,
    /// A file has other content, or a symbolic link another target. Its mode may have changed too.
    Modified,
    /// It exists only before.
    Deleted,
    /// It is of another kind: a file became a symbolic link.
    TypeChanged,
    /// Only its mode changed.
    ModeChanged,
}

/// A changed entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceChange {
    /// Its path below the directory. Declared secrets are masked; bytes that are not UTF-8 are replaced.
    pub path: String,
    /// The bytes of the path in base64, if they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// The change.
    pub change: ChangeKind,
    /// Its state before the agent; absent if it was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<WorkspaceEntry>,
    /// Its state after the agent; absent if it was deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<WorkspaceEntry>,
    /// Why it is not in [`FILES_ARCHIVE`], if its content changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_in_files: Option<FilesOmission>,
    /// Why the change is not in [`PATCH_FILE`]. Directories never are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_in_patch: Option<PatchOmission>,
}

/// State of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceEntry {
    /// Its kind.
    pub kind: WorkspaceEntryKind,
    /// Permission bits in octal digits, such as `0644`. Absent for symbolic links.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Size of a file in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Digest of the content of a file, with secrets masked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// Target of a symbolic link, with secrets masked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Whether the content of the file has declared secrets. The digest is that of the content with
    /// masks; the content is not kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub masked: bool,
}

/// Kinds of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkspaceEntryKind {
    /// A regular file, also one with several names.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// Anything else, such as a device. Its content is not compared.
    Special,
}

/// Why a changed entry is not in [`FILES_ARCHIVE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilesOmission {
    /// The files would be larger than the limit.
    Limit,
    /// It is another name of a file that did not change and has the same digest.
    UnchangedContent,
    /// It is a symbolic link that leads outside of the directory.
    LinkOutside,
    /// It is neither a file, a directory nor a symbolic link.
    Special,
    /// Its path, its content or the target of the link has a declared secret.
    Masked,
}

/// Why a change is not in [`PATCH_FILE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PatchOmission {
    /// The content is not text: it has a NUL byte.
    Binary,
    /// The file is larger than a patch describes.
    FileTooLarge,
    /// The earlier text was not kept: the directory has more text than the limit.
    EarlierTextNotKept,
    /// The later text was not kept, see [`WorkspaceChange::not_in_files`].
    LaterTextNotKept,
    /// The patch would be larger than the limit.
    PatchTooLarge,
    /// A patch cannot describe the change of the mode: it knows only whether a file is executable.
    Mode,
    /// Its path, its content or its target has declared secrets.
    Masked,
    /// It is below a directory `.git`, which Git does not let a patch change.
    GitDirectory,
    /// It is a symbolic link that leads outside of the directory.
    LinkOutside,
    /// It is neither a file, a directory nor a symbolic link.
    Special,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workspace_diff_document_is_read_back_and_ignores_later_keys() {
        let entry = |size_bytes| WorkspaceEntry {
            kind: WorkspaceEntryKind::File,
            mode: Some("0644".into()),
            size_bytes: Some(size_bytes),
            digest: Some(Digest::sha256(b"x")),
            target: None,
            masked: false,
        };
        let diff = WorkspaceDiff {
            schema_version: WORKSPACE_DIFF_VERSION.to_owned(),
            directory: "/app".into(),
            service: None,
            exclude: vec!["*.o".into()],
            counts: ChangeCounts { modified: 1, ..ChangeCounts::default() },
            changed_bytes: 2,
            truncated: true,
            truncated_because: vec!["after the agent: it is incomplete".into()],
            changes: vec![WorkspaceChange {
                path: "a".into(),
                path_base64: None,
                change: ChangeKind::Modified,
                before: Some(entry(1)),
                after: Some(entry(2)),
                not_in_files: Some(FilesOmission::Limit),
                not_in_patch: Some(PatchOmission::Binary),
            }],
        };
        let mut value = serde_json::to_value(&diff).expect("JSON");
        assert_eq!(value["changes"][0]["change"], "modified");
        assert_eq!(value["changes"][0]["not_in_files"], "limit");
        assert!(value.get("service").is_none() && value["changes"][0]["after"]["target"].is_null());
        value["later"] = true.into();
        let read: WorkspaceDiff = serde_json::from_value(value).expect("read");
        assert_eq!(read, diff);
    }
}
