//! Patches, applied by Git.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use rollout_protocol::workspace_diff::PatchOmission;

use crate::testing::report_ignored_part;

use super::{DiffRun, Node, Tree, archive, file, tree};

/// Writes a tree to disk.
fn write(tree: &Tree, to: &Path) {
    for (path, node) in tree {
        let path = to.join(path);
        match node {
            Node::File(content, mode) => {
                fs::write(&path, content).expect("written");
                fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).expect("set");
            }
            Node::Dir(_) => fs::create_dir(&path).expect("created"),
            Node::Link(target) => symlink(target, &path).expect("linked"),
        }
    }
}

/// The files and links of a directory of this host, with whether files are executable.
fn read(directory: &Path, below: &str, tree: &mut Tree) {
    for entry in fs::read_dir(directory).expect("listed") {
        let entry = entry.expect("an entry");
        let path = format!("{below}{}", entry.file_name().to_str().expect("text"));
        let kind = entry.file_type().expect("a type");
        if kind.is_dir() {
            read(&entry.path(), &format!("{path}/"), tree);
        } else if kind.is_symlink() {
            let target = fs::read_link(entry.path()).expect("a link");
            tree.insert(path, Node::Link(target.to_str().expect("text").to_owned()));
        } else {
            let mode = entry.metadata().expect("a file").permissions().mode() & 0o777;
            tree.insert(path, Node::File(fs::read(entry.path()).expect("read"), mode));
        }
    }
}

/// Applies the patch of two trees with a program, and compares the files.
async fn assert_applies(before: &Tree, after: &Tree, program: &[&str]) {
    let diff = DiffRun::new().run(archive(before), archive(after)).await;
    for change in &diff.document.changes {
        assert_eq!(change.not_in_patch, None, "{change:?}");
    }
    let work = tempfile::tempdir().expect("a directory");
    let patch = work.path().join("changes.patch");
    fs::write(&patch, diff.patch.as_deref().expect("a patch")).expect("written");
    let tree = work.path().join("tree");
    fs::create_dir(&tree).expect("created");
    write(before, &tree);
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).arg(&patch).current_dir(&tree);
    let output = command.env("GIT_CEILING_DIRECTORIES", work.path()).output().expect("it runs");
    assert!(output.status.success(), "{output:?}\n{}", diff.patch_text());
    let mut applied = Tree::new();
    read(&tree, "", &mut applied);
    let files = after.iter().filter(|(_, node)| !matches!(node, Node::Dir(_)));
    let expected: Tree = files.map(|(path, node)| (path.clone(), node.clone())).collect();
    assert_eq!(applied, expected, "{}", diff.patch_text());
}

fn lines(numbers: impl IntoIterator<Item = u32>) -> String {
    numbers.into_iter().map(|number| format!("line {number}\n")).collect()
}

/// Two trees whose files are edited, created and deleted, and stay of the same kind.
fn edited_trees() -> (Tree, Tree) {
    let long: String = lines(0..60);
    let edited = long.replace("line 3\n", "").replace("line 9\n", "9\n").replace("line 50\n", "");
    let script = |text: &str, mode| Node::File(text.as_bytes().to_vec(), mode);
    let before = tree([
        ("deleted", file("x\ny")),
        ("deleted-empty", file("")),
        ("emptied", file("x\n")),
        ("latin", Node::File(b"caf\xe9\n".to_vec(), 0o644)),
        ("link", Node::Link("long".into())),
        ("long", file(&long)),
        ("mode", script("x\n", 0o644)),
        ("mode-binary", script("x\0", 0o644)),
        ("mode-and-text", script("x\n", 0o755)),
        ("newline-added", file("x\ny")),
        ("newline-removed", file("x\ny\n")),
    ]);
    let after = tree([
        ("crlf", file("a\r\nb\r\n")),
        ("emptied", file("")),
        ("latin", Node::File(b"caf\xe9s\n".to_vec(), 0o644)),
        ("link", Node::Link("mode".into())),
        ("long", file(&edited)),
        ("mode", script("x\n", 0o755)),
        ("mode-binary", script("x\0", 0o755)),
        ("mode-and-text", script("y\n", 0o644)),
        ("new", file("--- a\n+++ b\n@@ -1 +1 @@\n")),
        ("new-empty", file("")),
        ("new space \"quoted\" \\ tab\t umläut", file("x")),
        ("newline-added", file("x\ny\n")),
        ("newline-removed", file("x\ny")),
    ]);
    (before, after)
}

#[tokio::test]
async fn patch_of_many_changes_applies_with_git_and_with_patch() {
    let (before, after) = edited_trees();
    assert_applies(&before, &after, &["git", "apply"]).await;
    assert_applies(&after, &before, &["git", "apply"]).await;
    if Command::new("patch").arg("--version").output().is_err() {
        report_ignored_part("needs the program `patch`");
        return;
    }
    assert_applies(&before, &after, &["patch", "-p1", "-s", "-i"]).await;
    assert_applies(&after, &before, &["patch", "-p1", "-s", "-i"]).await;
}

#[tokio::test]
async fn patch_that_changes_kinds_of_entries_applies_with_git() {
    let before = tree([
        ("becomes-dir", file("x\n")),
        ("becomes-file", Node::Dir(0o755)),
        ("becomes-file/inner", file("x\ny\n")),
        ("becomes-link", file("x\n")),
    ]);
    let after = tree([
        ("becomes-dir", Node::Dir(0o755)),
        ("becomes-dir/inner", file("y\n")),
        ("becomes-file", file("z\n")),
        ("becomes-link", Node::Link("becomes-file".into())),
    ]);
    assert_applies(&before, &after, &["git", "apply"]).await;
    assert_applies(&after, &before, &["git", "apply"]).await;
}

#[tokio::test]
async fn patch_hunks_merge_when_their_context_touches() {
    let old = lines(0..40);
    let near = old.replace("line 10\n", "a\n").replace("line 17\n", "b\n");
    let far = old.replace("line 10\n", "a\n").replace("line 18\n", "b\n");
    for (new, hunks) in [(near, 1), (far, 2)] {
        let [before, after] = [&old, &new].map(|text| tree([("f", file(text))]));
        let diff = DiffRun::new().run(archive(&before), archive(&after)).await;
        let patch = diff.patch_text();
        assert_eq!(patch.matches("\n@@ ").count(), hunks, "{patch}");
        assert_applies(&before, &after, &["git", "apply"]).await;
    }
}

#[tokio::test]
async fn change_that_a_patch_cannot_describe_says_why() {
    let large =
        "x".repeat(usize::try_from(rollout_protocol::limits::PATCH_FILE_BYTES).unwrap() + 1);
    let before = tree([
        (".git", Node::Dir(0o755)),
        (".git/HEAD", file("a\n")),
        ("binary", Node::File(b"a\0".to_vec(), 0o644)),
        ("mode", file("x\n")),
    ]);
    let after = tree([
        (".git", Node::Dir(0o755)),
        (".git/HEAD", file("b\n")),
        (".gitignore", file("*.o\n")),
        ("binary", Node::File(b"b\0".to_vec(), 0o644)),
        ("large", file(&large)),
        ("mode", Node::File(b"x\n".to_vec(), 0o600)),
        ("out", Node::Link("../../etc".into())),
    ]);
    let mut run = DiffRun::new();
    run.files_bytes = 4 << 20;
    let diff = run.run(archive(&before), archive(&after)).await;
    let reasons: Vec<_> =
        diff.document.changes.iter().map(|c| (c.path.as_str(), c.not_in_patch)).collect();
    assert_eq!(
        reasons,
        [
            (".git/HEAD", Some(PatchOmission::GitDirectory)),
            (".gitignore", None),
            ("binary", Some(PatchOmission::Binary)),
            ("large", Some(PatchOmission::FileTooLarge)),
            ("mode", Some(PatchOmission::Mode)),
            ("out", Some(PatchOmission::LinkOutside)),
        ]
    );
    assert_eq!(diff.files["large"], file(&large), "it is kept as a file");
}
