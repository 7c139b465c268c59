//! Properties of diffs of random trees.

use proptest::prelude::*;
use rollout_protocol::workspace_diff::WorkspaceEntryKind;
use tokio::runtime::Builder;

use super::{DiffRun, Node, Tree, apply, archive};

/// Trees of few names and contents, so that two of them have much in common.
fn trees() -> impl Strategy<Value = Tree> {
    let mode = prop::sample::select(vec![0o644, 0o755, 0o600]);
    let content = prop::sample::select(vec![
        b"".to_vec(),
        b"one\n".to_vec(),
        b"one\ntwo".to_vec(),
        b"a\0b".to_vec(),
        vec![b'x'; 3000],
    ]);
    let target = prop::sample::select(vec!["a", "../b", "/etc/passwd", "c/a"]);
    let node = prop_oneof![
        4 => (content, mode).prop_map(|(content, mode)| Node::File(content, mode)),
        2 => prop::sample::select(vec![0o755, 0o700]).prop_map(Node::Dir),
        1 => target.prop_map(|target| Node::Link(target.to_owned())),
    ];
    let name = prop::sample::select(vec!["a", "b", "c", "a/a", "a/b", "c/a", "c/a/b", "b-c"]);
    prop::collection::btree_map(name, node, 0..8).prop_map(|entries| {
        let mut tree = Tree::new();
        for (path, node) in entries {
            let parent = path.rsplit_once('/').map(|(parent, _)| parent);
            // Directories are always listed before their entries.
            if parent.is_none_or(|parent| matches!(tree.get(parent), Some(Node::Dir(_)))) {
                tree.insert(path.to_owned(), node);
            }
        }
        tree
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn diff_applied_to_tree_before_gives_tree_after(before in trees(), after in trees()) {
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let diff = runtime.block_on(DiffRun::new().run(archive(&before), archive(&after)));
        prop_assert_eq!(&apply(&before, &diff), &after);
        prop_assert!(!diff.document.truncated);
        let changes = &diff.document.changes;
        prop_assert!(changes.is_sorted_by(|a, b| a.path < b.path), "sorted, each once");
        let counts = diff.document.counts;
        let changed = counts.added + counts.modified + counts.deleted + counts.type_changed
            + counts.mode_changed;
        prop_assert_eq!(changed, changes.len() as u64);
        prop_assert_eq!(changed - counts.added + counts.unchanged, before.len() as u64);
        prop_assert_eq!(changed - counts.deleted + counts.unchanged, after.len() as u64);
        for change in changes {
            let states = change.before.iter().chain(&change.after);
            let is_file = states.into_iter().any(|e| e.kind != WorkspaceEntryKind::Directory);
            let section = format!("diff --git a/{0} b/{0}\n", change.path);
            let described = diff.patch_text().contains(&section);
            prop_assert_eq!(described, is_file && change.not_in_patch.is_none(), "{:?}", change);
        }
    }

    #[test]
    fn diff_of_a_tree_and_itself_is_empty(tree in trees()) {
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        let diff = runtime.block_on(DiffRun::new().run(archive(&tree), archive(&tree)));
        prop_assert_eq!(diff.document.changes, vec![]);
        prop_assert_eq!((diff.patch, diff.files.len()), (None, 0));
    }
}
