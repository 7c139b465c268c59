//! Archives that no honest environment sends.

use std::io::Cursor;

use rollout_protocol::workspace_diff::{ChangeKind, FilesOmission, WorkspaceEntryKind};
use tar::EntryType;

use super::{DiffRun, Tree, archive, archive_of, file, member, tree};
use crate::workspace_diff::WorkspaceDiffError;

fn regular(name: &str, content: &[u8]) -> Vec<u8> {
    member(name, EntryType::Regular, 0o644, "", content)
}

fn hard_link(name: &str, target: &str) -> Vec<u8> {
    member(name, EntryType::Link, 0o644, target, b"")
}

#[tokio::test]
async fn hard_links_have_the_content_of_their_target() {
    let before = archive_of(&[regular("app/old", b"old\n"), regular("app/large", &[0; 64])]);
    let after = archive_of(&[
        regular("app/new", b"new\n"),
        hard_link("app/new-too", "app/new"),
        regular("app/old", b"old\n"),
        hard_link("app/old-too", "app/old"),
        regular("app/large", &[0; 64]),
        hard_link("app/large-too", "app/large"),
        hard_link("app/outside", "../../etc/passwd"),
        hard_link("app/absolute", "/etc/passwd"),
    ]);
    let diff = DiffRun::new().run(before, after).await;
    assert_eq!(diff.files["new-too"], file("new\n"));
    assert_eq!(diff.files["old-too"], file("old\n"), "from the text that was kept");
    let large = diff.change("large-too");
    assert_eq!(large.not_in_files, Some(FilesOmission::UnchangedContent));
    for outside in ["outside", "absolute"] {
        let change = diff.change(outside);
        let kind = change.after.as_ref().map(|entry| entry.kind);
        assert_eq!(kind, Some(WorkspaceEntryKind::Special), "{change:?}");
        assert_eq!(change.not_in_files, Some(FilesOmission::Special));
    }
    assert_eq!(diff.kinds().len(), 6);
}

#[tokio::test]
async fn order_of_hard_links_does_not_matter() {
    let before = archive_of(&[regular("app/a", b"x\n"), hard_link("app/b", "app/a")]);
    let after = archive_of(&[regular("app/b", b"x\n"), hard_link("app/a", "app/b")]);
    let diff = DiffRun::new().run(before, after).await;
    assert_eq!(diff.kinds(), []);
}

#[tokio::test]
async fn entries_outside_or_below_links_are_left_out_and_counted() {
    let after = archive_of(&[
        member("app/link", EntryType::Symlink, 0o777, "/etc", b""),
        regular("app/link/passwd", b"root\n"),
        regular("app/file", b""),
        regular("app/file/below", b"x"),
        regular("app/../../etc/passwd", b"root\n"),
        member("app/device", EntryType::Char, 0o666, "", b""),
        member("app/pipe", EntryType::Fifo, 0o666, "", b""),
    ]);
    let diff = DiffRun::new().run(archive(&Tree::new()), after).await;
    let names: Vec<_> = diff.kinds().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["device", "file", "link", "pipe"]);
    assert_eq!(diff.files.keys().collect::<Vec<_>>(), ["file"], "no link that leads outside");
    assert_eq!(diff.change("link").not_in_files, Some(FilesOmission::LinkOutside));
    let why = &diff.document.truncated_because;
    assert!(why.len() == 1 && why[0].contains("3 entries"), "{why:?}");
}

#[tokio::test]
async fn repeated_entry_counts_as_its_last_state() {
    let after = archive_of(&[regular("app/a", b"first\n"), regular("app/a", b"last\n")]);
    let diff = DiffRun::new().run(archive(&Tree::new()), after).await;
    assert_eq!(diff.files["a"], file("last\n"));
    assert_eq!(diff.document.changes.len(), 1);
}

#[tokio::test]
async fn archive_that_ends_early_is_truncated() {
    let whole = archive(&tree([("a", file("x\n")), ("b", file("y\n"))])).into_inner();
    // The content of `b` is missing.
    let part = Cursor::new(whole[..512 * 4].to_vec());
    let before = tree([("a", file("w\n")), ("b", file("y\n")), ("c", file("z\n"))]);
    let diff = DiffRun::new().run(archive(&before), part).await;
    assert_eq!(diff.kinds(), [("a", ChangeKind::Modified)]);
    assert_eq!(diff.document.truncated_because, ["after the agent: it is incomplete"]);
    assert_eq!(diff.files, tree([("a", file("x\n"))]));
}

#[tokio::test]
async fn source_that_is_no_directory_is_refused() {
    let run = DiffRun::new();
    let single = || Cursor::new([regular("app", b"x"), vec![0; 1024]].concat());
    let link = member("app", EntryType::Symlink, 0o777, "/etc", b"");
    let link = Cursor::new([link, vec![0; 1024]].concat());
    let good = || Some(archive(&Tree::new()));
    for (before, after) in
        [(Some(single()), good()), (good(), Some(single())), (good(), Some(link))]
    {
        let refused = run.try_run(before, after).await.expect_err("no directory");
        assert!(matches!(refused, WorkspaceDiffError::NotDirectory), "{refused:?}");
    }
}

#[tokio::test]
async fn disk_error_is_no_diff() {
    let mut run = DiffRun::new();
    let occupied = run.scratch.path().join("file");
    std::fs::write(&occupied, "x").expect("written");
    run.options.scratch = occupied.join("below");
    let refused = run.try_run(None, None).await.expect_err("no disk");
    assert!(matches!(refused, WorkspaceDiffError::Disk { .. }), "{refused:?}");
}

#[tokio::test]
async fn name_that_is_not_utf8_is_kept_in_base64() {
    let mut odd = regular("app/xyz", b"a\n");
    // The header's checksum is that of the changed name.
    let mut header = tar::Header::from_byte_slice(&odd[..512]).clone();
    header.as_old_mut().name[4] = 0xff;
    header.set_cksum();
    odd[..512].copy_from_slice(header.as_bytes());
    let diff = DiffRun::new().run(archive(&Tree::new()), archive_of(&[odd])).await;
    let change = &diff.document.changes[0];
    assert_eq!(change.path, "\u{fffd}yz");
    assert_eq!(change.path_base64.as_deref(), Some("/3l6"));
    let patch = diff.patch_text();
    assert!(patch.contains("+++ \"b/\\377yz\"\n"), "{patch}");
}
