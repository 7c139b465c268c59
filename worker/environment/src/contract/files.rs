//! Checks of files: uploads, replacement and reads.

use tar::EntryType;
use tokio::io::AsyncReadExt as _;

use super::{Environment, ProviderUnderTest, Upload, file, output, read, run, upload};

pub(super) async fn upload_at_creation_is_present(
    subject: &ProviderUnderTest,
    _: &dyn Environment,
) {
    let tar = subject.archive(&[("solve.sh", "#!/bin/sh\necho solved\n"), ("data/x", "y")]);
    let uploads = vec![
        Upload::Dir { path: "/logs".into() },
        Upload::Dir { path: "/logs/agent".into() },
        file("/deep/er/note.txt", "hello"),
        Upload::Archive { path: "/oracle".into(), tar },
    ];
    let made = subject.create(uploads).await;
    let environment = made.unwrap_or_else(|f| panic!("not created: {}", f.chain()));
    let seen = output(
        environment.as_ref(),
        "test -d /logs/agent; cat /deep/er/note.txt; cat /oracle/data/x; cat /oracle/solve.sh",
    )
    .await;
    environment.destroy().await.expect("destroyed");
    assert_eq!(seen, "helloy#!/bin/sh\necho solved\n");
}

pub(super) async fn file_is_placed_with_its_parents(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    upload(environment, vec![file("/made/by/upload/a.txt", "one")]).await;
    assert_eq!(output(environment, "cat /made/by/upload/a.txt").await, "one");
    upload(environment, vec![file("/made/by/upload/a.txt", "two")]).await;
    assert_eq!(output(environment, "cat /made/by/upload/a.txt").await, "two");
}

pub(super) async fn directory_existing_keeps_its_content(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    upload(environment, vec![file("/keep/a.txt", "a")]).await;
    upload(environment, vec![Upload::Dir { path: "/keep".into() }]).await;
    assert_eq!(output(environment, "cat /keep/a.txt").await, "a");
    upload(environment, vec![Upload::Dir { path: "/new/one".into() }]).await;
    output(environment, "test -d /new/one").await;
}

async fn fresh(environment: &dyn Environment, path: &str) {
    upload(environment, vec![Upload::FreshDir { path: path.into() }]).await;
    let is_empty_directory = vec![(path.trim_start_matches('/').to_owned(), EntryType::Directory)];
    let found = read(environment, path).await.expect("it exists");
    let found: Vec<_> = found.into_iter().map(|(name, kind, _)| (name, kind)).collect();
    assert_eq!(found, is_empty_directory);
}

pub(super) async fn fresh_directory_replaces_tree(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    let content = vec![file("/fresh/a.txt", "a"), file("/fresh/.hidden/deep/b.txt", "b")];
    upload(environment, content).await;
    fresh(environment, "/fresh").await;
    fresh(environment, "/fresh").await;
}

pub(super) async fn fresh_directory_replaces_symlink_and_not_its_target(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    upload(environment, vec![file("/target/precious.txt", "p")]).await;
    output(environment, "ln -s /target /fresh").await;
    fresh(environment, "/fresh").await;
    assert_eq!(output(environment, "cat /target/precious.txt").await, "p");
}

pub(super) async fn fresh_directory_replaces_file(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    upload(environment, vec![file("/fresh", "a file")]).await;
    fresh(environment, "/fresh").await;
}

/// Replacements of a directory that an agent can leave.
const REPLACEMENTS: [&str; 7] = [
    "true",
    "ln -s /nowhere /logs",
    "mkdir -p /tmp/elsewhere; ln -s /tmp/elsewhere /logs",
    "ln -s /logs /logs",
    "echo x > /logs",
    "mkfifo /logs",
    "mkdir -p /logs/verifier/old; chmod 000 /logs/verifier /logs",
];

pub(super) async fn directory_replaces_any_other_file_type(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    for script in REPLACEMENTS {
        output(environment, &format!("rm -rf /logs; {script}")).await;
        let uploads = vec![
            Upload::Dir { path: "/logs".into() },
            Upload::FreshDir { path: "/logs/verifier".into() },
        ];
        upload(environment, uploads).await;
        output(environment, "echo 1 > /logs/verifier/reward.txt").await;
        let found = read(environment, "/logs").await.expect(script);
        let found: Vec<_> = found.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(found, ["logs", "logs/verifier", "logs/verifier/reward.txt"], "{script}");
    }
}

pub(super) async fn reading_below_a_file_returns_none(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    for script in &REPLACEMENTS[..6] {
        output(environment, &format!("rm -rf /logs; {script}")).await;
        for path in ["/logs/artifacts", "/logs/verifier/reward.txt"] {
            assert!(read(environment, path).await.is_none(), "{script}: {path}");
        }
    }
}

pub(super) async fn archive_replaces_directory_and_is_not_nested(
    subject: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    let first = subject.archive(&[("old.txt", "old"), ("test.sh", "one")]);
    upload(environment, vec![Upload::Archive { path: "/tests".into(), tar: first }]).await;
    output(environment, "ln -s /etc /tests/link").await;
    let second = subject.archive(&[("sub/", ""), ("sub/b.txt", "b"), ("test.sh", "two")]);
    let uploads = vec![
        Upload::FreshDir { path: "/logs/verifier".into() },
        Upload::Archive { path: "/tests".into(), tar: second },
    ];
    upload(environment, uploads).await;
    let found = read(environment, "/tests").await.expect("it exists");
    let files: Vec<_> = found
        .iter()
        .filter(|(_, kind, _)| *kind != EntryType::Directory)
        .map(|(name, _, content)| (name.as_str(), content.as_slice()))
        .collect();
    assert_eq!(files, [("tests/sub/b.txt", b"b".as_slice()), ("tests/test.sh", b"two")]);
    output(environment, "test -d /logs/verifier").await;
}

pub(super) async fn archive_is_merged_with_existing_directory(
    subject: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    let there = vec![file("/merge/old.txt", "old"), file("/merge/sub/kept.txt", "kept")];
    upload(environment, there).await;
    let tar = subject.archive(&[("sub/", ""), ("sub/new.txt", "n"), ("old.txt", "replaced")]);
    for path in ["/merge", "/merged/into/nothing"] {
        upload(environment, vec![Upload::Merge { path: path.into(), tar: tar.clone() }]).await;
        let seen = format!("cat {path}/old.txt; cat {path}/sub/new.txt");
        assert_eq!(output(environment, &seen).await, "replacedn");
    }
    assert_eq!(output(environment, "cat /merge/sub/kept.txt").await, "kept");
}

pub(super) async fn placed_files_are_readable_by_every_user(
    subject: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    let tar = subject.archive(&[("run.sh", "#!/bin/sh\n")]);
    let uploads = vec![
        Upload::Dir { path: "/logs".into() },
        Upload::FreshDir { path: "/logs/verifier".into() },
        Upload::Archive { path: "/tests".into(), tar },
        file("/rollout/plain.txt", ""),
        Upload::File {
            path: "/rollout/run.sh".into(),
            bytes: bytes::Bytes::from_static(b"#!/bin/sh\necho ran\n"),
            executable: true,
        },
    ];
    upload(environment, uploads).await;
    for path in ["/logs", "/logs/verifier"] {
        let mode = output(environment, &format!("stat -c %a {path}")).await;
        assert!(mode.trim_end().ends_with("777"), "{path}: {mode}");
    }
    for path in ["/tests", "/tests/run.sh", "/rollout", "/rollout/run.sh"] {
        let mode = output(environment, &format!("stat -c %a {path}")).await;
        assert!(mode.trim_end().ends_with('5'), "{path}: {mode}");
    }
    let mode = output(environment, "stat -c %a /rollout/plain.txt").await;
    assert!(mode.trim_end().ends_with('4'), "{mode}");
    assert_eq!(output(environment, "/rollout/run.sh").await, "ran\n");
}

pub(super) async fn reading_names_entries_by_base_name(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    upload(environment, vec![file("/some/where/a.txt", "a"), file("/some/where/b/c", "c")]).await;
    let found = read(environment, "/some/where").await.expect("it exists");
    let expected = [
        ("where".to_owned(), EntryType::Directory, Vec::new()),
        ("where/a.txt".to_owned(), EntryType::Regular, b"a".to_vec()),
        ("where/b".to_owned(), EntryType::Directory, Vec::new()),
        ("where/b/c".to_owned(), EntryType::Regular, b"c".to_vec()),
    ];
    assert_eq!(found, expected);
}

pub(super) async fn reading_file_returns_one_entry(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    upload(environment, vec![file("/logs/verifier/reward.txt", "0.5\n")]).await;
    let found = read(environment, "/logs/verifier/reward.txt").await.expect("it exists");
    assert_eq!(found, [("reward.txt".to_owned(), EntryType::Regular, b"0.5\n".to_vec())]);
}

pub(super) async fn reading_missing_path_returns_none(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    assert!(read(environment, "/nowhere").await.is_none());
    assert!(read(environment, "/nowhere/at/all").await.is_none());
}

pub(super) async fn reading_does_not_follow_symlinks(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    upload(environment, vec![file("/secret/s.txt", "s"), file("/box/a.txt", "a")]).await;
    output(environment, "ln -s /secret /box/link; ln -s ../../.. /box/up").await;
    let found = read(environment, "/box").await.expect("it exists");
    assert!(found.iter().all(|(_, _, content)| content != b"s"), "{found:?}");
    let links = found.iter().filter(|(_, kind, _)| *kind == EntryType::Symlink).count();
    let leads_through = found.iter().any(|(name, ..)| name.contains("s.txt"));
    assert!(links <= 2 && !leads_through, "{found:?}");
}

pub(super) async fn transfer_dropped_leaves_environment_usable(
    _: &ProviderUnderTest,
    environment: &dyn Environment,
) {
    output(environment, "mkdir -p /large; head -c 50000000 /dev/zero > /large/zeros").await;
    let mut stream = environment.copy_from("/large").await.expect("a stream").expect("it exists");
    let mut start = [0; 512];
    stream.read_exact(&mut start).await.expect("the first block");
    drop(stream);
    assert_eq!(run(environment, "echo usable").await.1, "usable\n");
}
