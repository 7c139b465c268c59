//! Diffs that reach limits.

use rollout_protocol::workspace_diff::{ChangeKind, FilesOmission, PatchOmission};

use super::{DiffRun, Node, Tree, archive, file, tree};

fn many(count: usize) -> Tree {
    (0..count).map(|number| (format!("f{number}"), file("x\n"))).collect()
}

#[tokio::test]
async fn too_many_entries_before_give_no_false_additions() {
    let mut run = DiffRun::new();
    // The directory itself counts.
    run.options.limits.entries = 4;
    let after = tree([("f0", file("y\n")), ("f2", file("x\n")), ("new", file("x\n"))]);
    let diff = run.run(archive(&many(5)), archive(&after)).await;
    use ChangeKind::{Deleted, Modified};
    assert_eq!(diff.kinds(), [("f0", Modified), ("f1", Deleted)], "`new` may be older");
    assert!(diff.document.truncated);
    let why = &diff.document.truncated_because;
    assert_eq!(why, &["before the agent: it has more than 4 entries"]);
    assert_eq!(&diff.finished.truncated_because, why);
}

#[tokio::test]
async fn too_many_bytes_after_give_no_false_deletions() {
    let mut run = DiffRun::new();
    run.options.limits.bytes = 10;
    let after = tree([("f0", file("y\n")), ("f1", file(&"y".repeat(9))), ("f2", file("x\n"))]);
    let diff = run.run(archive(&many(3)), archive(&after)).await;
    assert_eq!(diff.kinds(), [("f0", ChangeKind::Modified)]);
    assert_eq!(diff.document.truncated_because, ["after the agent: it has more than 10 bytes"]);
}

#[tokio::test]
async fn file_beyond_the_limit_is_listed_without_content() {
    let mut run = DiffRun::new();
    run.files_bytes = 10;
    let after = tree([
        ("a", file("12345678")),
        ("b", file("12345678")),
        ("c", file("12")),
        ("d", Node::Dir(0o755)),
    ]);
    let diff = run.run(archive(&Tree::new()), archive(&after)).await;
    let omitted: Vec<_> = diff.document.changes.iter().map(|c| c.not_in_files).collect();
    assert_eq!(omitted, [None, Some(FilesOmission::Limit), None, None]);
    assert_eq!(diff.change("b").not_in_patch, Some(PatchOmission::LaterTextNotKept));
    assert_eq!(diff.document.changed_bytes, 18);
    assert_eq!(diff.finished.files_bytes, 10);
    assert_eq!(diff.files.len(), 3);
    assert!(diff.document.changes.iter().all(|change| change.after.is_some()));
}

#[tokio::test]
async fn earlier_text_beyond_the_limit_costs_the_patch_only() {
    let mut run = DiffRun::new();
    run.options.text_bytes = 8;
    let before = tree([("a", file("old a\n")), ("b", file("old b\n"))]);
    let after = tree([("a", file("new a\n")), ("b", file("new b\n"))]);
    let diff = run.run(archive(&before), archive(&after)).await;
    assert_eq!(diff.change("a").not_in_patch, None);
    assert_eq!(diff.change("b").not_in_patch, Some(PatchOmission::EarlierTextNotKept));
    assert_eq!(diff.files["b"], file("new b\n"));
    assert!(!diff.document.truncated, "nothing is missing from the list");
}
