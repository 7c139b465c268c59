//! Diffs of trees that are given as archives.

mod hostile;
mod limits;
mod patches;
mod properties;

use std::collections::BTreeMap;
use std::io::{Cursor, Read as _};
use std::path::Path;

use rollout_base::secrets::Redactor;
use rollout_protocol::workspace_diff::{
    CHANGES_FILE, ChangeKind, FILES_ARCHIVE, FilesOmission, PATCH_FILE, PatchOmission,
    WorkspaceChange, WorkspaceDiff, WorkspaceEntryKind,
};
use rollout_store::archive::ArchiveLimits;
use tar::{Archive, EntryType, Header};

use super::{FinishedDiff, WorkspaceDiffError, WorkspaceOptions, WorkspaceSnapshot};

/// An entry of a tree: a file with its mode, a directory with its mode, or a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    File(Vec<u8>, u32),
    Dir(u32),
    Link(String),
}

pub(super) type Tree = BTreeMap<String, Node>;

pub(super) fn file(text: &str) -> Node {
    Node::File(text.as_bytes().to_vec(), 0o644)
}

pub(super) fn tree<const N: usize>(entries: [(&str, Node); N]) -> Tree {
    entries.into_iter().map(|(path, node)| (path.to_owned(), node)).collect()
}

/// A member of an archive, without checks.
pub(super) fn member(
    name: &str,
    kind: EntryType,
    mode: u32,
    link: &str,
    content: &[u8],
) -> Vec<u8> {
    let mut header = Header::new_gnu();
    let fields = header.as_old_mut();
    fields.name[..name.len()].copy_from_slice(name.as_bytes());
    fields.linkname[..link.len()].copy_from_slice(link.as_bytes());
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(content.len() as u64);
    header.set_cksum();
    let padding = vec![0; content.len().next_multiple_of(512) - content.len()];
    [header.as_bytes().as_slice(), content, &padding].concat()
}

/// An archive of a directory `app` with these members.
pub(super) fn archive_of(members: &[Vec<u8>]) -> Cursor<Vec<u8>> {
    let root = member("app/", EntryType::Directory, 0o755, "", b"");
    Cursor::new([root, members.concat(), vec![0; 1024]].concat())
}

pub(super) fn archive(tree: &Tree) -> Cursor<Vec<u8>> {
    let members = tree.iter().map(|(path, node)| {
        let name = format!("app/{path}");
        match node {
            Node::File(content, mode) => member(&name, EntryType::Regular, *mode, "", content),
            Node::Dir(mode) => member(&name, EntryType::Directory, *mode, "", b""),
            Node::Link(target) => member(&name, EntryType::Symlink, 0o777, target, b""),
        }
    });
    archive_of(&members.collect::<Vec<_>>())
}

/// A diff as its reader sees it.
#[derive(Debug)]
pub(super) struct ReadDiff {
    pub(super) document: WorkspaceDiff,
    pub(super) patch: Option<Vec<u8>>,
    /// Contents of files, and targets of links, by path.
    pub(super) files: BTreeMap<String, Node>,
    pub(super) finished: FinishedDiff,
}

impl ReadDiff {
    pub(super) fn change(&self, path: &str) -> &WorkspaceChange {
        let found = self.document.changes.iter().find(|change| change.path == path);
        found.unwrap_or_else(|| panic!("no change of {path}: {:#?}", self.document))
    }

    pub(super) fn patch_text(&self) -> String {
        String::from_utf8_lossy(self.patch.as_deref().unwrap_or_default()).into_owned()
    }

    /// Paths with their changes.
    pub(super) fn kinds(&self) -> Vec<(&str, ChangeKind)> {
        let changes = self.document.changes.iter();
        changes.map(|change| (change.path.as_str(), change.change)).collect()
    }
}

/// The parameters of a diff.
pub(super) struct DiffRun {
    pub(super) scratch: tempfile::TempDir,
    pub(super) options: WorkspaceOptions,
    pub(super) files_bytes: u64,
}

impl DiffRun {
    pub(super) fn new() -> Self {
        let scratch = tempfile::tempdir().expect("a directory");
        let options = WorkspaceOptions {
            directory: "/app".into(),
            service: None,
            exclude: Vec::new(),
            scratch: scratch.path().join("artifacts"),
            limits: ArchiveLimits::WORKSPACE,
            text_bytes: 1 << 20,
            redactor: Redactor::default(),
        };
        Self { scratch, options, files_bytes: 1 << 20 }
    }

    pub(super) async fn try_run(
        &self,
        before: Option<Cursor<Vec<u8>>>,
        after: Option<Cursor<Vec<u8>>>,
    ) -> Result<ReadDiff, WorkspaceDiffError> {
        let to = self.scratch.path().join("artifacts/diff.tar");
        let _former = std::fs::remove_file(&to);
        let snapshot = WorkspaceSnapshot::take(before, self.options.clone()).await?;
        let finished = snapshot.finish(after, &to, self.files_bytes).await?;
        Ok(read(&to, finished))
    }

    pub(super) async fn run(&self, before: Cursor<Vec<u8>>, after: Cursor<Vec<u8>>) -> ReadDiff {
        self.try_run(Some(before), Some(after)).await.expect("a diff")
    }
}

fn read(artifact: &Path, finished: FinishedDiff) -> ReadDiff {
    let (mut document, mut patch, mut files) = (None, None, BTreeMap::new());
    let artifact = std::fs::read(artifact).expect("the artifact");
    assert_eq!(rollout_protocol::digest::Digest::sha256(&artifact), finished.archive.digest);
    for (name, node) in members(&artifact) {
        let Node::File(content, 0o644) = node else { panic!("{name}: {node:?}") };
        match name.as_str() {
            CHANGES_FILE => document = Some(serde_json::from_slice(&content).expect("a document")),
            PATCH_FILE => patch = Some(content),
            FILES_ARCHIVE => files = members(&content),
            other => panic!("unexpected {other}"),
        }
    }
    ReadDiff { document: document.expect("it has a document"), patch, files, finished }
}

fn members(archive: &[u8]) -> BTreeMap<String, Node> {
    let mut archive = Archive::new(archive);
    let entries = archive.entries().expect("an archive").map(|entry| {
        let mut entry = entry.expect("an entry");
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let mode = entry.header().mode().expect("a mode");
        let node = match entry.header().entry_type() {
            EntryType::Directory => Node::Dir(mode),
            EntryType::Symlink => {
                let target = entry.link_name_bytes().expect("a target").into_owned();
                Node::Link(String::from_utf8(target).expect("text"))
            }
            _ => {
                let mut content = Vec::new();
                entry.read_to_end(&mut content).expect("content");
                Node::File(content, mode)
            }
        };
        (name.trim_end_matches('/').to_owned(), node)
    });
    entries.collect()
}

/// The tree that results from a diff, by its list and its files.
pub(super) fn apply(before: &Tree, diff: &ReadDiff) -> Tree {
    let mut tree = before.clone();
    for change in &diff.document.changes {
        if matches!(change.change, ChangeKind::Deleted | ChangeKind::TypeChanged) {
            tree.remove(&change.path);
        }
    }
    tree.extend(diff.files.clone());
    for change in &diff.document.changes {
        let Some(after) = &change.after else { continue };
        let mode = || {
            let mode = after.mode.as_deref().expect("a mode");
            u32::from_str_radix(mode, 8).expect("octal digits")
        };
        match (after.kind, tree.get_mut(&change.path)) {
            (WorkspaceEntryKind::File, Some(Node::File(_, old)))
            | (WorkspaceEntryKind::Directory, Some(Node::Dir(old))) => *old = mode(),
            (WorkspaceEntryKind::Symlink, _) => {
                let target = after.target.clone().expect("a target");
                tree.insert(change.path.clone(), Node::Link(target));
            }
            other => panic!("{}: {other:?}", change.path),
        }
    }
    tree
}

#[tokio::test]
async fn workspace_diff_lists_every_kind_of_change() {
    use ChangeKind::{Added, Deleted, ModeChanged, Modified, TypeChanged};
    let before = tree([
        ("dir", Node::Dir(0o755)),
        ("dir/gone", file("x\n")),
        ("kept", file("same\n")),
        ("link", Node::Link("kept".into())),
        ("mode", file("#!/bin/sh\n")),
        ("text", file("one\ntwo\n")),
        ("type", file("a file\n")),
    ]);
    let after = tree([
        ("kept", file("same\n")),
        ("link", Node::Link("text".into())),
        ("mode", Node::File(b"#!/bin/sh\n".to_vec(), 0o755)),
        ("new", Node::Dir(0o700)),
        ("new/out", Node::Link("/etc/passwd".into())),
        ("text", file("one\n2\n")),
        ("type", Node::Link("kept".into())),
    ]);
    let diff = DiffRun::new().run(archive(&before), archive(&after)).await;
    assert_eq!(
        diff.kinds(),
        [
            ("dir", Deleted),
            ("dir/gone", Deleted),
            ("link", Modified),
            ("mode", ModeChanged),
            ("new", Added),
            ("new/out", Added),
            ("text", Modified),
            ("type", TypeChanged),
        ]
    );
    let counts = diff.document.counts;
    assert_eq!((counts.added, counts.modified, counts.deleted), (2, 2, 2));
    assert_eq!((counts.type_changed, counts.mode_changed, counts.unchanged), (1, 1, 1));
    assert!(!diff.document.truncated, "{:?}", diff.document.truncated_because);
    assert_eq!(diff.document.changed_bytes, 6);
    assert_eq!(diff.finished.files_bytes, 6);
    let text = diff.change("text");
    let digest = rollout_protocol::digest::Digest::sha256;
    assert_eq!(text.before.as_ref().and_then(|entry| entry.digest), Some(digest(b"one\ntwo\n")));
    assert_eq!(text.after.as_ref().and_then(|entry| entry.digest), Some(digest(b"one\n2\n")));
    assert_eq!(apply(&before, &diff), after);
}

#[tokio::test]
async fn directory_that_appears_or_vanishes_is_added_or_deleted_as_a_whole() {
    let some = tree([("a", file("a\n"))]);
    let run = DiffRun::new();
    let appeared = run.try_run(None, Some(archive(&some))).await.expect("a diff");
    assert_eq!(appeared.kinds(), [("a", ChangeKind::Added)]);
    let vanished = run.try_run(Some(archive(&some)), None).await.expect("a diff");
    assert_eq!(vanished.kinds(), [("a", ChangeKind::Deleted)]);
    assert!(vanished.files.is_empty());
    let same = run.run(archive(&some), archive(&some)).await;
    assert_eq!((same.kinds(), &same.patch), (vec![], &None), "an empty diff is a document");
}

#[tokio::test]
async fn excluded_entries_are_not_compared() {
    let mut run = DiffRun::new();
    run.options.exclude = vec![".git".into(), "*.pyc".into()];
    let before = tree([(".git", Node::Dir(0o755)), (".git/HEAD", file("a\n"))]);
    let after = tree([("x.pyc", file("a")), ("y", file("a"))]);
    let diff = run.run(archive(&before), archive(&after)).await;
    assert_eq!(diff.kinds(), [("y", ChangeKind::Added)]);
    assert_eq!(diff.document.exclude, [".git", "*.pyc"]);
}

#[tokio::test]
async fn secrets_are_left_out_of_all_files_and_still_compared() {
    let mut run = DiffRun::new();
    run.options.redactor = Redactor::new([("KEY", "hunter2hunter2")]);
    let before = tree([("old-hunter2hunter2", file("x\n")), ("same", file("hunter2hunter2\n"))]);
    let after = tree([
        ("link", Node::Link("hunter2hunter2".into())),
        ("new", file("key hunter2hunter2\n")),
        ("same", file("hunter2hunter2\n")),
    ]);
    let diff = run.run(archive(&before), archive(&after)).await;
    let artifact = std::fs::read(run.scratch.path().join("artifacts/diff.tar")).expect("kept");
    assert!(!artifact.windows(14).any(|bytes| bytes == b"hunter2hunter2"));
    assert!(!diff.files.contains_key("new"), "a file with a secret is left out");
    assert_eq!(diff.change("new").not_in_files, Some(FilesOmission::Masked));
    // With another target it could lead outside.
    assert!(!diff.files.contains_key("link"));
    assert_eq!(diff.change("link").not_in_files, Some(FilesOmission::Masked));
    let new = diff.change("new").after.clone().expect("a file");
    let digest = rollout_protocol::digest::Digest::sha256(b"key **************\n");
    assert_eq!((new.masked, new.digest), (true, Some(digest)), "no digest of the secret");
    assert_eq!(diff.document.counts.unchanged, 1);
    let in_patch: Vec<_> = diff.document.changes.iter().map(|c| c.not_in_patch).collect();
    assert_eq!(in_patch, [Some(PatchOmission::Masked); 3], "a masked patch does not apply");
    assert_eq!(diff.patch, None);
    // Of two secrets in one place only the comparison knows that they differ.
    run.options.redactor = Redactor::new([("A", "aaaaaaaa"), ("B", "bbbbbbbb")]);
    let [before, after] = ["aaaaaaaa", "bbbbbbbb"].map(|text| tree([("f", file(text))]));
    let diff = run.run(archive(&before), archive(&after)).await;
    assert_eq!(diff.kinds(), [("f", ChangeKind::Modified)]);
    assert_eq!(diff.change("f").before, diff.change("f").after);
}
