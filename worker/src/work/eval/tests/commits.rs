use rollout_protocol::record::CheckoutChanges;

use super::*;

/// A repository with every kind of entry, and the tree that changes nothing of it.
async fn repository_with_all_kinds(world: &MirrorFixture) -> (RepositorySpec, TreeArchive) {
    world.user.write("src/main.py", "print(1)\n");
    world.user.write("windows.txt", "one\r\ntwo\r\n");
    world.user.write(".gitattributes", "*.txt text eol=crlf\n*.bin filter=evil diff=evil\n");
    world.user.write("data.bin", [0, 1, 2]);
    world.user.write(".gitignore", "*.log\nbuild/\n");
    let program = world.user.write("run.sh", "echo");
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("set");
    for (target, name) in [("src/main.py", "inside"), ("/etc/passwd", "outside")] {
        std::os::unix::fs::symlink(target, world.user.path().join(name)).expect("linked");
    }
    world.user.git(&["add", "-A"]);
    let submodule = format!("160000,{},vendor/sub", "1".repeat(40));
    world.user.git(&["update-index", "--add", "--cacheinfo", &submodule]);
    world.user.git(&["commit", "-q", "-m", "root"]);
    let root = world.root_spec(&world.user.git(&["rev-parse", "HEAD"])).await;
    (root, unchanged_tree())
}

fn unchanged_tree() -> TreeArchive {
    TreeArchive::default()
        .dir("")
        .file("src/main.py", "print(1)\n")
        .file("windows.txt", "one\ntwo\n")
        .file(".gitattributes", "*.txt text eol=crlf\n*.bin filter=evil diff=evil\n")
        .file("data.bin", [0, 1, 2])
        .file(".gitignore", "*.log\nbuild/\n")
        .program("run.sh", "echo")
        .link("inside", "src/main.py")
}

#[tokio::test]
async fn commit_of_equal_changes_is_identical_and_of_none_absent() {
    let world = MirrorFixture::new();
    let (root, tree) = repository_with_all_kinds(&world).await;
    let none = world.commit(&root, tree, "x").await.expect("compared");
    assert_eq!(none, CandidateOutcome::NoChanges(CheckoutChanges::default()));
    let ignored =
        unchanged_tree().file("a.log", "x").file("build/out", "x").file(".git/config", "x");
    let none = world.commit(&root, ignored, "x").await.expect("compared");
    let changes = CheckoutChanges { ignored: 2, refused: 1, ..CheckoutChanges::default() };
    assert_eq!(none, CandidateOutcome::NoChanges(changes));

    let change = || unchanged_tree().file("src/main.py", "print(2)\n").file("new.txt", "a\nb\n");
    let one = candidate(world.commit(&root, change(), "Print two\r\n\nIt is more.").await);
    let other = MirrorFixture::new();
    let (root_again, _) = repository_with_all_kinds(&other).await;
    assert_eq!(root.root.commit, root_again.root.commit);
    let two = candidate(other.commit(&root_again, change(), "Print two\n\nIt is more.\n").await);
    assert_eq!(one.commit, two.commit);
    assert_eq!(one.changes, CheckoutChanges { written: 2, ..CheckoutChanges::default() });
    let different = candidate(other.commit(&root_again, change(), "Other words").await);
    assert_ne!(one.commit, different.commit);

    let mut repository = root.clone();
    world.add(&mut repository, &one).await;
    let mirror = world.repositories.mirrors.get(&repository).await.expect("a mirror");
    let bare = mirror.bare();
    assert_eq!(
        bare.parents(&one.commit).await.expect("asked"),
        std::slice::from_ref(&root.root.commit)
    );
    assert_eq!(bare.seconds(&one.commit).await.expect("asked"), 1_700_000_001);
    let shown = bare.git().call(["show", "-s", "--format=%an <%ae> %cn %B", &one.commit]);
    let shown = shown.run_line().await.expect("shown");
    assert_eq!(shown.trim_end(), "rollout <rollout@localhost> rollout Print two\n\nIt is more.");
    // Withheld paths and the submodule's commit are still there.
    let listing = world.listing(&repository).await;
    for kept in ["120000 outside", "120000 inside", "160000 vendor/sub", "100755 run.sh"] {
        assert!(listing.iter().any(|line| line == kept), "{kept} in {listing:?}");
    }
    let raw = bare.git().call(["cat-file", "blob", &format!("{}:windows.txt", one.commit)]);
    assert_eq!(raw.run().await.expect("read"), b"one\ntwo\n", "as the repository has it");
}

#[tokio::test]
async fn commit_contains_every_kind_of_change() {
    let world = MirrorFixture::new();
    let (mut root, _) = repository_with_all_kinds(&world).await;
    let tree = TreeArchive::default()
        .file("src", "a file where a directory was")
        .program("windows.txt", "one\ntwo\n")
        .file("run.sh/inner", "a directory where a file was")
        .link("inside", "windows.txt")
        .file("inside.txt", "x")
        .file("data.bin", [9, 9])
        .file(".gitignore", "nothing")
        .file("kept.log", "the rules of the parent hold, not these");
    let made = candidate(world.commit(&root, tree, "x").await);
    assert_eq!(made.changes, CheckoutChanges { written: 7, removed: 3, ignored: 1, refused: 0 });
    world.add(&mut root, &made).await;
    assert_eq!(
        world.listing(&root).await,
        [
            "100644 .gitignore",
            "100644 data.bin",
            "120000 inside",
            "100644 inside.txt",
            "120000 outside",
            "100644 run.sh/inner",
            "100644 src",
            "160000 vendor/sub",
            "100755 windows.txt",
        ]
    );
}

#[tokio::test]
async fn commit_of_hostile_tree_runs_no_hook_or_filter() {
    let world = MirrorFixture::new();
    let (mut root, _) = repository_with_all_kinds(&world).await;
    let mark = world.dir.path().join("it-ran");
    let touch = format!("touch {}", mark.display());
    let config = format!(
        "[core]\n\tfsmonitor = {touch}\n\thooksPath = hooks\n\tsshCommand = {touch}\n\
         [filter \"evil\"]\n\tclean = {touch}\n\tsmudge = {touch}\n\trequired = true\n\
         [diff \"evil\"]\n\ttextconv = {touch}\n\texternal = {touch}\n[include]\n\tpath = ../evil\n"
    );
    let hook = format!("#!/bin/sh\n{touch}\n");
    let tree = unchanged_tree()
        .file(".git/config", &config)
        .file(".git/HEAD", "ref: refs/heads/main\n")
        .dir(".git/objects")
        .dir(".git/refs")
        .program(".git/hooks/post-checkout", &hook)
        .program("hooks/pre-commit", &hook)
        .file("vendor/sub/.git", "gitdir: ../../.git\n")
        .file("vendor/sub/new", "of another repository")
        .file("nested/.git/config", &config)
        .file("nested/.GIT/config", &config)
        .file("nested/git~1", "x")
        .link("nested/.Git", "../.git")
        .file("nested/.g\u{200c}it", "x")
        .file("nested/kept", "x")
        .link("up", "../../../outside")
        .link("absolute", "/etc")
        .file("absolute/passwd", "through a link")
        .link("loop", "loop")
        .entry("hard", EntryType::Link, "repository/run.sh", b"", 0o644)
        .entry("device", EntryType::Char, "", b"", 0o666)
        .file("a\nb \u{fc}\t\"c\"", "newline")
        .file(":(top)x", "magic")
        .file("-rf", "option")
        .file(".gitattributes", "* filter=evil diff=evil\n")
        .file("data.bin", [5])
        .entry("../escaped", EntryType::Regular, "", b"x", 0o644);
    let made = candidate(world.commit(&root, tree, "-m evil\0 --amend").await);
    assert!(!exists(&mark), "something ran");
    world.add(&mut root, &made).await;
    let listing = world.listing(&root).await;
    let expected = [
        "100644 -rf",
        "100644 .gitattributes",
        "100644 .gitignore",
        "100644 :(top)x",
        "100644 a\nb \u{fc}\t\"c\"",
        "100644 absolute/passwd",
        "100644 data.bin",
        "100755 hooks/pre-commit",
        "120000 inside",
        "120000 loop",
        "100644 nested/kept",
        "120000 outside",
        "100755 run.sh",
        "100644 src/main.py",
        "160000 vendor/sub",
        "100644 windows.txt",
    ];
    assert_eq!(listing, expected);
    assert!(!exists(&mark), "something ran");
}

#[tokio::test]
async fn commit_of_symlinked_git_dir_or_torn_checkout_is_refused() {
    let world = MirrorFixture::new();
    let (root, _) = repository_with_all_kinds(&world).await;
    let linked = unchanged_tree().link(".git", "src");
    let outcome = world.commit(&root, linked, "x").await.expect("compared");
    let changes = CheckoutChanges { refused: 1, ..CheckoutChanges::default() };
    assert_eq!(outcome, CandidateOutcome::NoChanges(changes));
    let link = raw_entry_with_mode(b"repository", EntryType::Symlink, b"/etc", b"", 0o777);
    let gone = world.commit(&root, TreeArchive(link), "x").await;
    assert!(matches!(gone, Err(EvalFilesError::NotCommittable { .. })), "{gone:?}");
    let torn = TreeArchive(unchanged_tree().0[..700].to_vec());
    let (checkout, _slot) = world.checkout(&root).await;
    let torn = checkout.extract(Box::new(Cursor::new(torn.0))).await;
    assert!(matches!(torn, Err(EvalFilesError::Unreadable { .. })), "{torn:?}");
}

#[tokio::test]
async fn commit_with_huge_file_is_refused() {
    let world = MirrorFixture::new();
    let (root, _) = repository_with_all_kinds(&world).await;
    // A header that announces far more than the limit.
    let mut header = tar::Header::new_gnu();
    header.set_path("repository/huge").expect("a path");
    header.set_size(1 << 42);
    header.set_mode(0o644);
    header.set_cksum();
    let tree =
        TreeArchive([unchanged_tree().0, header.as_bytes().to_vec(), vec![0; 4096]].concat());
    let refused = world.commit(&root, tree, "x").await;
    assert!(matches!(refused, Err(EvalFilesError::NotCommittable { .. })), "{refused:?}");
}

#[tokio::test]
async fn commit_with_secret_is_redacted() {
    let world = MirrorFixture::new();
    let (mut root, _) = repository_with_all_kinds(&world).await;
    let (checkout, _slot) = world.checkout(&root).await;
    let tree = unchanged_tree()
        .file("src/main.py", "key = 'hunter2-hunter2'\n")
        .file("hunter2-hunter2", "x");
    let taken = checkout.extract(Box::new(Cursor::new(tree.finish()))).await.expect("taken");
    let redactor = Redactor::new([("KEY", "hunter2-hunter2")]);
    let to = world.dir.path().join("bundle");
    let made = checkout.commit(&taken, "uses hunter2-hunter2", &redactor, &to).await;
    let made = candidate(made);
    assert_eq!((made.changes.written, made.changes.refused), (1, 1));
    world.add(&mut root, &made).await;
    let mirror = world.repositories.mirrors.get(&root).await.expect("a mirror");
    let shown = mirror.bare().git().call(["show", &made.commit]).run_line().await.expect("shown");
    assert!(shown.contains("+key = '") && !shown.contains("hunter2-hunter2"), "{shown}");
}

#[tokio::test]
async fn commit_with_likely_secret_is_flagged() {
    let world = MirrorFixture::new();
    let (root, _) = repository_with_all_kinds(&world).await;
    let (checkout, _slot) = world.checkout(&root).await;
    let tree = unchanged_tree()
        .file("src/main.py", "key = 'hunter2-hunter2'\n")
        .file("guessed-in-a-name", "x");
    let taken = checkout.extract(Box::new(Cursor::new(tree.finish()))).await.expect("taken");
    let guessed = [
        ("KEY", "hunter2-hunter2"),
        ("NAME_TOKEN", "guessed-in-a-name"),
        ("OTHER_KEY", "not-in-any-file"),
    ];
    let redactor = Redactor::with_guessed([], guessed);
    let to = world.dir.path().join("bundle");
    let made = candidate(checkout.commit(&taken, "x", &redactor, &to).await);
    let flagged: Vec<_> = made.possible_secrets.iter().map(String::as_str).collect();
    assert_eq!(flagged, ["KEY", "NAME_TOKEN"]);
    assert_eq!((made.changes.written, made.changes.refused), (2, 0));
}
