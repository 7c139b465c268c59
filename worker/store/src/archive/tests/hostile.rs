//! Tests of extracting malicious archives.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use proptest::prelude::*;
use tempfile::TempDir;
use tokio::io::{AsyncRead, ReadBuf};

use super::*;

#[tokio::test]
async fn extract_hostile_archive_writes_only_files_and_dirs() {
    let temp = TempDir::new().expect("a directory");
    let out = temp.path().join("out");
    fs::write(temp.path().join("canary"), "alive").expect("written");
    let long = "l".repeat(200);
    let archive = tar_of(&[
        raw("logs/", b'5', b""),
        raw("logs/x", b'0', b"first"),
        raw("logs/x", b'0', b"last"),
        raw("/abs", b'0', b"abs"),
        raw("../canary", b'0', b"dead"),
        raw("logs/../../canary", b'0', b"dead"),
        link("up", b'2', "../"),
        raw("up/canary", b'0', b"not through the link"),
        link("hard", b'1', "../canary"),
        raw("fifo", b'6', b""),
        raw("device", b'3', b""),
        raw("sparse", b'S', b"map"),
        raw("unknown", b'Z', b"what"),
        raw("logs/x/below", b'0', b"a file is in the way"),
        raw("logs", b'0', b"a directory is in the way"),
        RawMember { how: NameEncoding::GnuLong, ..raw(&long, b'0', b"gnu") },
        RawMember { how: NameEncoding::Pax, ..raw(&format!("p/{long}"), b'0', b"pax") },
        RawMember { name: b"esc\x1b\n\xff".to_vec(), ..raw("", b'0', b"odd") },
        raw(&format!("d/{}", "e/".repeat(45)), b'5', b""),
        RawMember { how: NameEncoding::GnuLong, ..raw(&"e/".repeat(65), b'5', b"") },
        raw("old/", b'0', b""),
    ]);
    let report = extract(source(archive), &out, SMALL).await.expect("extracted");
    assert_eq!(report.cut, None);
    let skipped = SkippedMembers { links: 2, special: 4, names: 3, conflicts: 2 };
    assert_eq!(report.skipped, skipped);
    let found = tree(&out);
    assert_eq!(found["logs/x"], "file 644 last");
    assert_eq!(found["abs"], "file 644 abs");
    assert_eq!(found["up"], "dir 755");
    assert_eq!(found["up/canary"], "file 644 not through the link");
    assert_eq!(found[&long], "file 644 gnu");
    assert_eq!(found[&format!("p/{long}")], "file 644 pax");
    assert_eq!(found["esc\u{1b}\n\u{fffd}"], "file 644 odd");
    assert_eq!(found["old"], "dir 755");
    assert!(!found.contains_key("hard") && !found.contains_key("fifo"));
    assert_eq!(fs::read_to_string(temp.path().join("canary")).expect("readable"), "alive");
}

#[tokio::test]
async fn extract_over_existing_symlink_does_not_follow_it() {
    let temp = TempDir::new().expect("a directory");
    let out = temp.path().join("out");
    fs::create_dir(&out).expect("created");
    fs::write(temp.path().join("canary"), "alive").expect("written");
    symlink("..", out.join("up")).expect("linked");
    symlink("../canary", out.join("file")).expect("linked");
    let archive = tar_of(&[raw("up/canary", b'0', b"dead"), raw("file", b'0', b"fresh")]);
    let report = extract(source(archive), &out, SMALL).await.expect("extracted");
    assert_eq!(report.skipped.conflicts, 1);
    assert_eq!(tree(&out)["file"], "file 644 fresh");
    assert_eq!(fs::read_to_string(temp.path().join("canary")).expect("readable"), "alive");
}

#[tokio::test]
async fn extract_beyond_limits_is_cut_and_keeps_earlier_files() {
    let temp = TempDir::new().expect("a directory");
    let mut case = 0;
    let mut cut = async |bytes: Vec<u8>, limits: ArchiveLimits| {
        case += 1;
        let out = temp.path().join(case.to_string());
        let report = extract(source(bytes), &out, limits).await.expect("extracted");
        assert_eq!(tree(&out)["a"], "file 644 first", "case {case}");
        report.cut
    };
    let first = raw("a", b'0', b"first");
    let huge = RawMember { size: Some(107_374_182_400), ..raw("huge", b'0', b"") };
    let bytes = SMALL.bytes;
    assert_eq!(
        cut(tar_of(&[first.clone(), huge]), SMALL).await,
        Some(ArchiveTruncation::Bytes(bytes))
    );

    let pax = pax_record("size", b"99999999999");
    let mut lie = tar_of(std::slice::from_ref(&first));
    lie.truncate(1024);
    block(&mut lie, b"pax", b'x', pax.len() as u64, b"", &pax);
    block(&mut lie, b"huge", b'0', 0, b"", b"");
    assert_eq!(cut(lie, SMALL).await, Some(ArchiveTruncation::Bytes(bytes)));

    let mut long_name = tar_of(std::slice::from_ref(&first));
    long_name.truncate(1024);
    block(&mut long_name, b"././@LongLink", b'L', 1 << 40, b"", b"");
    let malformed = cut(long_name, SMALL).await;
    assert!(matches!(malformed, Some(ArchiveTruncation::Malformed(_))), "{malformed:?}");

    let many = [vec![first.clone()], vec![link("l", b'2', "x"); 200]].concat();
    assert_eq!(cut(tar_of(&many), SMALL).await, Some(ArchiveTruncation::Entries(100)));

    let mut ends = tar_of(&[first.clone(), raw("b", b'0', &[1; 3000])]);
    ends.truncate(2048);
    assert_eq!(cut(ends, SMALL).await, Some(ArchiveTruncation::Incomplete));
    let mut no_mark = tar_of(std::slice::from_ref(&first));
    no_mark.truncate(1024);
    assert_eq!(cut(no_mark, SMALL).await, Some(ArchiveTruncation::Incomplete));
    let mut noise = tar_of(&[first.clone(), raw("b", b'0', b"")]);
    noise[1024 + 5] ^= 1;
    assert!(matches!(cut(noise, SMALL).await, Some(ArchiveTruncation::Malformed(_))));
}

/// Yields a prefix and then blocks forever; signals when it is dropped.
struct HangingReader {
    prefix: std::io::Cursor<Vec<u8>>,
    dropped: Arc<AtomicBool>,
}

impl AsyncRead for HangingReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.prefix).poll_read(cx, buf);
        if buf.filled().len() == before { Poll::Pending } else { read }
    }
}

impl Drop for HangingReader {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn extract_cancelled_closes_source() {
    let temp = TempDir::new().expect("a directory");
    let dropped = Arc::new(AtomicBool::new(false));
    let mut bytes = tar_of(&[raw("a", b'0', b"x")]);
    bytes.truncate(1024);
    let source = HangingReader { prefix: source(bytes), dropped: Arc::clone(&dropped) };
    let out = temp.path().join("out");
    let reading = extract(source, &out, SMALL);
    assert!(tokio::time::timeout(Duration::from_millis(50), reading).await.is_err());
    let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
    while !dropped.load(Ordering::SeqCst) {
        assert!(tokio::time::Instant::now() < deadline, "the source is still open");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn nasty_name() -> impl Strategy<Value = Vec<u8>> {
    let component = prop_oneof![
        4 => "[a-c]{1}".prop_map(String::into_bytes),
        1 => Just(b"..".to_vec()),
        1 => Just(b".".to_vec()),
        1 => Just(b"".to_vec()),
        1 => Just(b"canary".to_vec()),
        1 => Just(vec![0xff, 0x1b, b'\n']),
        1 => Just(vec![b'n'; 300]),
        1 => Just(b"z\0z".to_vec()),
    ];
    (any::<bool>(), prop::collection::vec(component, 1..5)).prop_map(|(absolute, parts)| {
        let joined = parts.join(&b'/');
        if absolute { [b"/".as_slice(), &joined].concat() } else { joined }
    })
}

fn nasty_member() -> impl Strategy<Value = RawMember> {
    let size = prop_oneof![
        8 => Just(None),
        1 => prop::option::of(0..4096u64),
        1 => Just(Some(1 << 40)),
        1 => Just(Some(u64::MAX)),
    ];
    (
        nasty_name(),
        prop::sample::select(b"00000055221134678SLKxgZ\0".to_vec()),
        prop::collection::vec(any::<u8>(), 0..700),
        size,
        nasty_name(),
        prop::sample::select(vec![NameEncoding::Header, NameEncoding::GnuLong, NameEncoding::Pax]),
    )
        .prop_map(|(name, kind, content, size, link, how)| RawMember {
            name,
            kind,
            content,
            size,
            link,
            how,
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn extract_random_archive_stays_in_directory_and_limits(
        members in prop::collection::vec(nasty_member(), 1..30),
        entries in 1..25u64,
        bytes in 0..6000u64,
        cut in prop::option::of(0..40_000usize),
    ) {
        let temp = TempDir::new().expect("a directory");
        let (inner, canary) = (temp.path().join("in"), temp.path().join("canary"));
        fs::create_dir(&inner).expect("created");
        fs::write(&canary, "alive").expect("written");
        let mut archive = tar_of(&members);
        archive.truncate(cut.unwrap_or(usize::MAX));
        let limits = ArchiveLimits { entries, bytes };
        let (out, clean, again) =
            (inner.join("out"), inner.join("clean.tar"), inner.join("again"));
        let options = SanitizeOptions { limits, root: RootHandling::Keep, faithful: true, ..logs() };
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (report, cleaned) = runtime.block_on(async {
            let report = extract(source(archive.clone()), &out, limits).await.expect("extracted");
            let cleaned = sanitize(source(archive), &clean, options).await;
            cleaned.archive.as_ref().expect("the disk is fine");
            let bytes = fs::read(&clean).expect("readable");
            let second = extract(source(bytes), &again, ArchiveLimits::BUNDLE).await.expect("extracted");
            assert_eq!(second.cut, None);
            (report, cleaned.report)
        });
        prop_assert_eq!(names(temp.path()).into_iter().filter(|n| !n.starts_with("in")).count(), 1);
        prop_assert_eq!(fs::read_to_string(&canary).expect("readable"), "alive");
        for (dir, report) in [(&out, &report), (&again, &cleaned)] {
            let found = tree(dir);
            prop_assert!(found.values().all(|what| !what.starts_with("link")), "{:?}", found);
            let files = found.values().filter(|what| what.starts_with("file")).count() as u64;
            prop_assert!(files <= report.files && report.files <= entries);
            prop_assert!(report.bytes <= bytes);
        }
    }

    #[test]
    fn extract_random_bytes_is_cut(noise in prop::collection::vec(any::<u8>(), 0..5000)) {
        let temp = TempDir::new().expect("a directory");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let report = runtime.block_on(extract(source(noise), &temp.path().join("o"), SMALL));
        prop_assert!(report.expect("extracted").cut.is_some());
    }
}

#[test]
fn long_name_extension_above_limit_is_bad_path() {
    // The size is refused before anything is allocated: see the limits test. An accepted value is
    // bounded and cut to the relevant length.
    let mut bytes = Vec::new();
    let name = vec![b'a'; 900_000];
    block(&mut bytes, b"././@LongLink", b'L', name.len() as u64, b"", &name);
    block(&mut bytes, b"x", b'0', 0, b"", b"");
    bytes.write_all(&[0; 1024]).expect("written");
    let mut members = read::MemberReader::new(&bytes[..], SMALL);
    let member = members.next_member().expect("readable").expect("a member");
    assert_eq!(member.path, Err(InvalidArchivePath::Long));
}
