//! Tests of copying hostile archives into clean ones.

use std::fs;

use tempfile::TempDir;

use super::*;

#[tokio::test]
async fn sanitize_hostile_archive_skips_links_and_captures_file() {
    let temp = TempDir::new().expect("a directory");
    let to = temp.path().join("clean.tar");
    let long = format!("logs/agent/{}", "n".repeat(150));
    let archive = tar_of(&[
        raw("logs/", b'5', b""),
        raw("logs/agent/", b'5', b""),
        RawMember { how: NameEncoding::Pax, ..raw(&long, b'0', &[b'x'; 600]) },
        link("logs/agent/passwd", b'2', "/etc/passwd"),
        raw("logs/../../evil", b'0', b"evil"),
        raw("logs/verifier/reward.txt", b'0', b"0.5\n"),
    ]);
    let clean = sanitize(source(archive), &to, logs()).await;
    let packed = clean.archive.expect("an archive");
    assert_eq!(clean.captured, [CapturedFile::Found("0.5\n".into())]);
    assert_eq!((clean.report.files, clean.report.directories, clean.report.bytes), (2, 1, 604));
    assert_eq!((clean.report.skipped.links, clean.report.skipped.names), (1, 1));
    let bytes = fs::read(&to).expect("readable");
    assert_eq!(packed.digest, Digest::sha256(&bytes));
    assert_eq!((packed.entries, packed.size_bytes), (3, bytes.len() as u64));
    let out = temp.path().join("out");
    extract_trusted(source(bytes), &out, SMALL).await.expect("extracted");
    assert_eq!(tree(&out)["verifier/reward.txt"], "file 644 0.5\n");
    assert_eq!(tree(&out).len(), 4);
}

#[tokio::test]
async fn capture_failed_or_found_reports_reason() {
    let temp = TempDir::new().expect("a directory");
    let name = "logs/verifier/reward.txt";
    let filler = raw("logs/agent/big", b'0', &vec![1; 5000]);
    let cases = [
        (vec![filler.clone()], CapturedFile::Missing),
        (vec![link(name, b'2', "/etc/passwd")], CapturedFile::NotRegular),
        (vec![filler.clone(), link(name, b'1', "logs/agent/big")], CapturedFile::HardLink),
        (vec![raw(name, b'5', b"")], CapturedFile::NotRegular),
        (vec![raw(name, b'6', b"")], CapturedFile::NotRegular),
        (vec![raw(name, b'0', &[b'1'; 17])], CapturedFile::TooLarge(17)),
        (
            vec![RawMember { size: Some(1 << 40), ..raw(name, b'0', b"") }],
            CapturedFile::TooLarge(1 << 40),
        ),
        (
            vec![RawMember { size: Some(1 << 40), ..filler.clone() }, raw(name, b'0', b"1")],
            CapturedFile::NotReached,
        ),
        (
            vec![raw(name, b'0', b"1"), RawMember { size: Some(1 << 40), ..filler.clone() }],
            CapturedFile::Found("1".into()),
        ),
    ];
    for (n, (members, expected)) in cases.into_iter().enumerate() {
        let to = temp.path().join(n.to_string());
        let clean = sanitize(source(tar_of(&members)), &to, logs()).await;
        assert_eq!(clean.captured, [expected], "case {n}");
        list(source(fs::read(&to).expect("readable")), SMALL).await.expect("a whole archive");
    }
}

#[tokio::test]
async fn sanitize_of_cut_source_or_bad_disk_keeps_captured_file() {
    let temp = TempDir::new().expect("a directory");
    let mut bytes = tar_of(&[
        raw("logs/a", b'0', b"whole"),
        raw("logs/verifier/reward.txt", b'0', b"1"),
        raw("logs/z", b'0', &[1; 200_000]),
    ]);
    bytes.truncate(150_000);
    let to = temp.path().join("clean.tar");
    let clean = sanitize(source(bytes.clone()), &to, logs()).await;
    assert_eq!(clean.report.cut, Some(ArchiveTruncation::Incomplete));
    assert_eq!(clean.captured, [CapturedFile::Found("1".into())]);
    let packed = clean.archive.expect("an archive");
    let kept = fs::read(&to).expect("readable");
    assert_eq!((packed.entries, packed.digest), (2, Digest::sha256(&kept)));
    assert_eq!(list(source(kept), SMALL).await.expect("listed").len(), 2);

    let nowhere = temp.path().join("missing/clean.tar");
    let clean = sanitize(source(bytes), &nowhere, logs()).await;
    assert!(matches!(clean.archive, Err(ArchiveError::Io { .. })));
    assert_eq!(clean.captured, [CapturedFile::Found("1".into())]);
}

#[tokio::test]
async fn sanitize_faithful_keeps_modes_and_inner_symlinks() {
    let temp = TempDir::new().expect("a directory");
    let members = [
        raw("app/", b'5', b""),
        raw("app/run", b'0', b"#!"),
        link("app/again", b'2', "run"),
        link("app/out", b'2', "../../etc"),
        raw("app/cache/", b'5', b""),
        raw("app/cache/x.txt", b'0', b"x"),
        raw("app/a.pyc", b'0', b"y"),
    ];
    let options = || SanitizeOptions {
        root: RootHandling::DropUnlessFile,
        exclude: ExcludePatterns::new(["cache", "*.pyc"]),
        faithful: true,
        captures: Vec::new(),
        ..logs()
    };
    let to = temp.path().join("clean.tar");
    let clean = sanitize(source(tar_of(&members)), &to, options()).await;
    assert_eq!((clean.first, clean.report.skipped.links), (Some(MemberKind::Directory), 1));
    let alone = temp.path().join("alone.tar");
    let clean = sanitize(source(tar_of(&[raw("note.txt", b'0', b"n")])), &alone, options()).await;
    assert_eq!(clean.first, Some(MemberKind::File));
    let joined = temp.path().join("joined.tar");
    join(vec![to, alone], &joined).await.expect("joined");
    let out = temp.path().join("out");
    extract_trusted(source(fs::read(&joined).expect("readable")), &out, SMALL)
        .await
        .expect("extracted");
    let expected = [("again", "link run"), ("note.txt", "file 755 n"), ("run", "file 755 #!")];
    let expected = expected.map(|(name, what)| (name.to_owned(), what.to_owned()));
    assert_eq!(tree(&out), expected.into());
}
