//! Tests of packing, reading and unpacking together.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use proptest::prelude::*;
use tar::{EntryType, Header};
use tempfile::TempDir;
use tokio::io::{AsyncRead, ReadBuf};

use super::*;
use crate::secrets::Redactor;

/// A member as it is written, lies included.
#[derive(Debug, Clone)]
struct Raw {
    name: Vec<u8>,
    kind: u8,
    content: Vec<u8>,
    /// What the header says, when it is not the length of the content.
    size: Option<u64>,
    link: Vec<u8>,
    how: How,
}

/// How a name is written.
#[derive(Debug, Clone, Copy, PartialEq)]
enum How {
    Header,
    GnuLong,
    Pax,
}

fn raw(name: &str, kind: u8, content: &[u8]) -> Raw {
    let (name, content) = (name.as_bytes().to_vec(), content.to_vec());
    Raw { name, kind, content, size: None, link: Vec::new(), how: How::Header }
}

fn link(name: &str, kind: u8, target: &str) -> Raw {
    Raw { link: target.as_bytes().to_vec(), ..raw(name, kind, b"") }
}

fn block(out: &mut Vec<u8>, name: &[u8], kind: u8, size: u64, link: &[u8], content: &[u8]) {
    let mut header = Header::new_gnu();
    let fields = header.as_old_mut();
    for (field, value) in [(&mut fields.name, name), (&mut fields.linkname, link)] {
        let length = value.len().min(100);
        field[..length].copy_from_slice(&value[..length]);
    }
    header.set_entry_type(EntryType::new(kind));
    header.set_mode(0o6777);
    header.set_uid(1234);
    header.set_size(size);
    header.set_mtime(77);
    header.set_cksum();
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(content);
    out.resize(out.len().next_multiple_of(512), 0);
}

fn pax_record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

fn tar_of(members: &[Raw]) -> Vec<u8> {
    let mut out = Vec::new();
    for member in members {
        match member.how {
            How::Header => {}
            How::GnuLong => {
                let name = [&member.name[..], b"\0"].concat();
                block(&mut out, b"././@LongLink", b'L', name.len() as u64, b"", &name);
            }
            How::Pax => {
                let record = pax_record("path", &member.name);
                block(&mut out, b"pax", b'x', record.len() as u64, b"", &record);
            }
        }
        let size = member.size.unwrap_or(member.content.len() as u64);
        block(&mut out, &member.name, member.kind, size, &member.link, &member.content);
    }
    out.extend_from_slice(&[0; 1024]);
    out
}

fn source(bytes: Vec<u8>) -> std::io::Cursor<Vec<u8>> {
    std::io::Cursor::new(bytes)
}

const SMALL: Limits = Limits { entries: 100, bytes: 1024 * 1024 };

/// Every path below a directory with what is there.
fn tree(dir: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![dir.to_owned()];
    while let Some(next) = waiting.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            let name =
                String::from_utf8_lossy(path.strip_prefix(dir).unwrap().as_os_str().as_bytes())
                    .into_owned();
            let mode = metadata.permissions().mode() & 0o7777;
            let what = if metadata.is_dir() {
                waiting.push(path);
                format!("dir {mode:o}")
            } else if metadata.is_file() {
                let content = String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned();
                format!("file {mode:o} {content}")
            } else {
                format!("link {}", fs::read_link(&path).unwrap().display())
            };
            found.insert(name, what);
        }
    }
    found
}

fn names(dir: &Path) -> Vec<String> {
    tree(dir).into_keys().collect()
}

fn sample(dir: &Path, order: &[usize]) {
    let steps: [&dyn Fn(); 6] = [
        &|| fs::create_dir_all(dir.join("a/empty")).unwrap(),
        &|| fs::write(dir.join("a-b"), "dash").unwrap(),
        &|| {
            fs::create_dir_all(dir.join("a")).unwrap();
            fs::write(dir.join("a/run.sh"), "#!/bin/sh\n").unwrap();
            fs::set_permissions(dir.join("a/run.sh"), fs::Permissions::from_mode(0o711)).unwrap();
        },
        &|| {
            let long = dir.join("n".repeat(120));
            fs::create_dir_all(&long).unwrap();
            fs::write(long.join("deep"), vec![7; 1500]).unwrap();
        },
        &|| symlink("a/../a/run.sh".replace("a/../", ""), dir.join("link")).unwrap(),
        &|| fs::write(dir.join(std::ffi::OsStr::from_bytes(b"\xff\n")), "odd").unwrap(),
    ];
    for step in order {
        steps[*step]();
    }
}

fn keep_all(_: &Path, _: bool) -> Keep {
    Keep::Yes
}

#[tokio::test]
async fn equal_trees_give_equal_bytes_and_come_back_the_same() {
    let temp = TempDir::new().unwrap();
    let (one, two) = (temp.path().join("one"), temp.path().join("two"));
    fs::create_dir(&one).unwrap();
    fs::create_dir(&two).unwrap();
    sample(&one, &[0, 1, 2, 3, 4, 5]);
    sample(&two, &[5, 3, 4, 2, 1, 0]);
    fs::set_permissions(two.join("a-b"), fs::Permissions::from_mode(0o600)).unwrap();
    let (first, second) = (temp.path().join("1.tar"), temp.path().join("2.tar"));
    let packed = pack(&one, &first, Limits::BUNDLE, &keep_all).unwrap();
    assert_eq!(packed, pack(&two, &second, Limits::BUNDLE, &keep_all).unwrap());
    let bytes = fs::read(&first).unwrap();
    assert_eq!(bytes, fs::read(&second).unwrap());
    assert_eq!(packed.size_bytes, bytes.len() as u64);
    assert_eq!(packed.digest, Digest::of(&bytes));

    let members = list(source(bytes.clone()), Limits::BUNDLE).await.unwrap();
    let paths: Vec<_> = members.iter().map(|m| m.path.clone().unwrap().unwrap()).collect();
    assert!(paths.is_sorted(), "{paths:?}");
    assert_eq!(paths.len() as u64, packed.entries);

    let out = temp.path().join("out");
    extract_trusted(source(bytes), &out, Limits::BUNDLE).await.unwrap();
    let mut expected = tree(&one);
    expected.insert("a/run.sh".into(), "file 755 #!/bin/sh\n".into());
    assert_eq!(tree(&out), expected);
}

/// The bytes of archives name images and bundles: they must not change by accident.
#[test]
fn the_form_of_archives_is_fixed() {
    let temp = TempDir::new().unwrap();
    let dir = temp.path().join("dir");
    fs::create_dir(&dir).unwrap();
    sample(&dir, &[0, 1, 2, 3, 4, 5]);
    let packed = pack(&dir, &temp.path().join("t"), Limits::BUNDLE, &keep_all).unwrap();
    assert_eq!(
        packed.digest.to_string(),
        "sha256:5ecb06849963f8f3532f0a453a806f7da14463244f0904e223f2ffd97bd0c7af"
    );
}

#[test]
fn what_cannot_be_packed_is_named() {
    let temp = TempDir::new().unwrap();
    let dir = temp.path().join("dir");
    let to = temp.path().join("t");
    let refused = |make: &dyn Fn(&Path), limits: Limits| {
        fs::create_dir(&dir).unwrap();
        make(&dir);
        let error = pack(&dir, &to, limits, &keep_all).unwrap_err();
        fs::remove_dir_all(&dir).unwrap();
        assert!(!to.exists());
        error
    };
    for target in ["/etc/passwd", "../x", "a/../../x"] {
        let error = refused(&|dir| symlink(target, dir.join("l")).unwrap(), SMALL);
        let named = matches!(&error, ArchiveError::NotPackable { path, .. }
            if path == Path::new("l"));
        assert!(named, "{error}");
    }
    let error = refused(
        &|dir| {
            drop(std::os::unix::net::UnixListener::bind(dir.join("s")).unwrap());
        },
        SMALL,
    );
    assert!(error.to_string().contains("socket"), "{error}");
    let fill = |dir: &Path| {
        for n in 0..3 {
            fs::write(dir.join(n.to_string()), [0; 100]).unwrap();
        }
    };
    let error = refused(&fill, Limits { entries: 2, ..SMALL });
    assert!(matches!(error, ArchiveError::TooLarge { cut: Cut::Entries(2), .. }), "{error}");
    let error = refused(&fill, Limits { bytes: 299, ..SMALL });
    assert!(matches!(error, ArchiveError::TooLarge { cut: Cut::Bytes(299), .. }), "{error}");
}

#[tokio::test]
async fn a_filter_leaves_paths_out() {
    let temp = TempDir::new().unwrap();
    let dir = temp.path().join("dir");
    fs::create_dir_all(dir.join("no/kept")).unwrap();
    fs::create_dir_all(dir.join("gone/deep")).unwrap();
    fs::create_dir_all(dir.join("hollow")).unwrap();
    for file in ["no/kept/x", "no/y", "gone/deep/z", "w"] {
        fs::write(dir.join(file), file).unwrap();
    }
    let to = temp.path().join("t");
    let filter = |path: &Path, _: bool| match path.to_str().unwrap() {
        "no" | "hollow" => Keep::IfNotEmpty,
        "gone" | "no/y" => Keep::No,
        _ => Keep::Yes,
    };
    pack(&dir, &to, SMALL, &filter).unwrap();
    let out = temp.path().join("out");
    extract_trusted(tokio::fs::File::open(&to).await.unwrap(), &out, SMALL).await.unwrap();
    assert_eq!(names(&out), ["no", "no/kept", "no/kept/x", "w"]);
}

#[tokio::test]
async fn only_files_and_directories_come_out_of_a_hostile_archive() {
    let temp = TempDir::new().unwrap();
    let out = temp.path().join("out");
    fs::write(temp.path().join("canary"), "alive").unwrap();
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
        Raw { how: How::GnuLong, ..raw(&long, b'0', b"gnu") },
        Raw { how: How::Pax, ..raw(&format!("p/{long}"), b'0', b"pax") },
        Raw { name: b"esc\x1b\n\xff".to_vec(), ..raw("", b'0', b"odd") },
        raw(&format!("d/{}", "e/".repeat(45)), b'5', b""),
        Raw { how: How::GnuLong, ..raw(&"e/".repeat(65), b'5', b"") },
        raw("old/", b'0', b""),
    ]);
    let report = extract(source(archive), &out, SMALL).await.unwrap();
    assert_eq!(report.cut, None);
    let skipped = Skipped { links: 2, special: 4, names: 3, conflicts: 2 };
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
    assert_eq!(fs::read_to_string(temp.path().join("canary")).unwrap(), "alive");
}

#[tokio::test]
async fn an_existing_link_is_not_followed() {
    let temp = TempDir::new().unwrap();
    let out = temp.path().join("out");
    fs::create_dir(&out).unwrap();
    fs::write(temp.path().join("canary"), "alive").unwrap();
    symlink("..", out.join("up")).unwrap();
    symlink("../canary", out.join("file")).unwrap();
    let archive = tar_of(&[raw("up/canary", b'0', b"dead"), raw("file", b'0', b"fresh")]);
    let report = extract(source(archive), &out, SMALL).await.unwrap();
    assert_eq!(report.skipped.conflicts, 1);
    assert_eq!(tree(&out)["file"], "file 644 fresh");
    assert_eq!(fs::read_to_string(temp.path().join("canary")).unwrap(), "alive");
}

#[tokio::test]
async fn reading_stops_at_the_limits_and_keeps_what_came_before() {
    let temp = TempDir::new().unwrap();
    let mut case = 0;
    let mut cut = async |bytes: Vec<u8>, limits: Limits| {
        case += 1;
        let out = temp.path().join(case.to_string());
        let report = extract(source(bytes), &out, limits).await.unwrap();
        assert_eq!(tree(&out)["a"], "file 644 first", "case {case}");
        report.cut
    };
    let first = raw("a", b'0', b"first");
    let huge = Raw { size: Some(107_374_182_400), ..raw("huge", b'0', b"") };
    let bytes = SMALL.bytes;
    assert_eq!(cut(tar_of(&[first.clone(), huge]), SMALL).await, Some(Cut::Bytes(bytes)));

    let pax = pax_record("size", b"99999999999");
    let mut lie = tar_of(std::slice::from_ref(&first));
    lie.truncate(1024);
    block(&mut lie, b"pax", b'x', pax.len() as u64, b"", &pax);
    block(&mut lie, b"huge", b'0', 0, b"", b"");
    assert_eq!(cut(lie, SMALL).await, Some(Cut::Bytes(bytes)));

    let mut long_name = tar_of(std::slice::from_ref(&first));
    long_name.truncate(1024);
    block(&mut long_name, b"././@LongLink", b'L', 1 << 40, b"", b"");
    let malformed = cut(long_name, SMALL).await;
    assert!(matches!(malformed, Some(Cut::Malformed(_))), "{malformed:?}");

    let many = [vec![first.clone()], vec![link("l", b'2', "x"); 200]].concat();
    assert_eq!(cut(tar_of(&many), SMALL).await, Some(Cut::Entries(100)));

    let mut ends = tar_of(&[first.clone(), raw("b", b'0', &[1; 3000])]);
    ends.truncate(2048);
    assert_eq!(cut(ends, SMALL).await, Some(Cut::Ended));
    let mut no_mark = tar_of(std::slice::from_ref(&first));
    no_mark.truncate(1024);
    assert_eq!(cut(no_mark, SMALL).await, Some(Cut::Ended));
    let mut noise = tar_of(&[first.clone(), raw("b", b'0', b"")]);
    noise[1024 + 5] ^= 1;
    assert!(matches!(cut(noise, SMALL).await, Some(Cut::Malformed(_))));
}

fn reward() -> ArchivePath {
    ArchivePath::clean(b"verifier/reward.txt").unwrap().unwrap()
}

fn logs() -> Sanitize {
    Sanitize {
        limits: SMALL,
        strip_first: true,
        capture: Some((reward(), 16)),
        redactor: Redactor::default(),
    }
}

#[tokio::test]
async fn sanitizing_gives_a_clean_archive_and_the_captured_file() {
    let temp = TempDir::new().unwrap();
    let to = temp.path().join("clean.tar");
    let long = format!("logs/agent/{}", "n".repeat(150));
    let archive = tar_of(&[
        raw("logs/", b'5', b""),
        raw("logs/agent/", b'5', b""),
        Raw { how: How::Pax, ..raw(&long, b'0', &[b'x'; 600]) },
        link("logs/agent/passwd", b'2', "/etc/passwd"),
        raw("logs/../../evil", b'0', b"evil"),
        raw("logs/verifier/reward.txt", b'0', b"0.5\n"),
    ]);
    let clean = sanitize(source(archive), &to, logs()).await;
    let packed = clean.archive.unwrap();
    assert_eq!(clean.captured, Captured::Found("0.5\n".into()));
    assert_eq!((clean.report.files, clean.report.directories, clean.report.bytes), (2, 1, 604));
    assert_eq!((clean.report.skipped.links, clean.report.skipped.names), (1, 1));
    let bytes = fs::read(&to).unwrap();
    assert_eq!(packed.digest, Digest::of(&bytes));
    assert_eq!((packed.entries, packed.size_bytes), (3, bytes.len() as u64));
    let out = temp.path().join("out");
    extract_trusted(source(bytes), &out, SMALL).await.unwrap();
    assert_eq!(tree(&out)["verifier/reward.txt"], "file 644 0.5\n");
    assert_eq!(tree(&out).len(), 4);
}

#[tokio::test]
async fn the_reason_why_nothing_was_captured_is_known() {
    let temp = TempDir::new().unwrap();
    let name = "logs/verifier/reward.txt";
    let filler = raw("logs/agent/big", b'0', &vec![1; 5000]);
    let cases = [
        (vec![filler.clone()], Captured::Missing),
        (vec![link(name, b'2', "/etc/passwd")], Captured::NotRegular),
        (vec![raw(name, b'5', b"")], Captured::NotRegular),
        (vec![raw(name, b'6', b"")], Captured::NotRegular),
        (vec![raw(name, b'0', &[b'1'; 17])], Captured::TooLarge(17)),
        (
            vec![Raw { size: Some(1 << 40), ..filler.clone() }, raw(name, b'0', b"1")],
            Captured::Unknown,
        ),
        (
            vec![raw(name, b'0', b"1"), Raw { size: Some(1 << 40), ..filler.clone() }],
            Captured::Found("1".into()),
        ),
    ];
    for (n, (members, expected)) in cases.into_iter().enumerate() {
        let to = temp.path().join(n.to_string());
        let clean = sanitize(source(tar_of(&members)), &to, logs()).await;
        assert_eq!(clean.captured, expected, "case {n}");
        list(source(fs::read(&to).unwrap()), SMALL).await.expect("a whole archive");
    }
}

#[tokio::test]
async fn a_broken_source_and_a_failing_disk_cost_only_what_they_must() {
    let temp = TempDir::new().unwrap();
    let mut bytes = tar_of(&[
        raw("logs/a", b'0', b"whole"),
        raw("logs/verifier/reward.txt", b'0', b"1"),
        raw("logs/z", b'0', &[1; 200_000]),
    ]);
    bytes.truncate(150_000);
    let to = temp.path().join("clean.tar");
    let clean = sanitize(source(bytes.clone()), &to, logs()).await;
    assert_eq!(clean.report.cut, Some(Cut::Ended));
    assert_eq!(clean.captured, Captured::Found("1".into()));
    let packed = clean.archive.unwrap();
    let kept = fs::read(&to).unwrap();
    assert_eq!((packed.entries, packed.digest), (2, Digest::of(&kept)));
    assert_eq!(list(source(kept), SMALL).await.unwrap().len(), 2);

    let nowhere = temp.path().join("missing/clean.tar");
    let clean = sanitize(source(bytes), &nowhere, logs()).await;
    assert!(matches!(clean.archive, Err(ArchiveError::Io { .. })));
    assert_eq!(clean.captured, Captured::Found("1".into()));
}

/// Gives a prefix and then nothing more; says when it is dropped.
struct Hanging {
    prefix: std::io::Cursor<Vec<u8>>,
    dropped: Arc<AtomicBool>,
}

impl AsyncRead for Hanging {
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

impl Drop for Hanging {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn abandoning_a_read_closes_its_source() {
    let temp = TempDir::new().unwrap();
    let dropped = Arc::new(AtomicBool::new(false));
    let mut bytes = tar_of(&[raw("a", b'0', b"x")]);
    bytes.truncate(1024);
    let source = Hanging { prefix: source(bytes), dropped: Arc::clone(&dropped) };
    let out = temp.path().join("out");
    let reading = extract(source, &out, SMALL);
    assert!(tokio::time::timeout(Duration::from_millis(50), reading).await.is_err());
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while !dropped.load(Ordering::SeqCst) {
        assert!(tokio::time::Instant::now() < deadline, "the source is still open");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn foreign_archives_are_not_trusted() {
    let temp = TempDir::new().unwrap();
    for (n, member) in
        [raw("../x", b'0', b""), link("l", b'2', "../x"), link("l", b'1', "x"), raw("p", b'6', b"")]
            .into_iter()
            .enumerate()
    {
        let out = temp.path().join(n.to_string());
        let result = extract_trusted(source(tar_of(&[member])), &out, SMALL).await;
        assert!(matches!(result, Err(ArchiveError::Untrusted { .. })), "{result:?}");
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

fn nasty_member() -> impl Strategy<Value = Raw> {
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
        prop::sample::select(vec![How::Header, How::GnuLong, How::Pax]),
    )
        .prop_map(|(name, kind, content, size, link, how)| Raw {
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
    fn nothing_leaves_the_directory_or_exceeds_the_limits(
        members in prop::collection::vec(nasty_member(), 1..30),
        entries in 1..25u64,
        bytes in 0..6000u64,
        cut in prop::option::of(0..40_000usize),
    ) {
        let temp = TempDir::new().unwrap();
        let (inner, canary) = (temp.path().join("in"), temp.path().join("canary"));
        fs::create_dir(&inner).unwrap();
        fs::write(&canary, "alive").unwrap();
        let mut archive = tar_of(&members);
        archive.truncate(cut.unwrap_or(usize::MAX));
        let limits = Limits { entries, bytes };
        let (out, clean, again) =
            (inner.join("out"), inner.join("clean.tar"), inner.join("again"));
        let options = Sanitize { limits, strip_first: false, ..logs() };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (report, cleaned) = runtime.block_on(async {
            let report = extract(source(archive.clone()), &out, limits).await.unwrap();
            let cleaned = sanitize(source(archive), &clean, options).await;
            cleaned.archive.as_ref().expect("the disk is fine");
            let bytes = fs::read(&clean).unwrap();
            let second = extract(source(bytes), &again, Limits::BUNDLE).await.unwrap();
            assert_eq!(second.cut, None);
            (report, cleaned.report)
        });
        prop_assert_eq!(names(temp.path()).into_iter().filter(|n| !n.starts_with("in")).count(), 1);
        prop_assert_eq!(fs::read_to_string(&canary).unwrap(), "alive");
        for (dir, report) in [(&out, &report), (&again, &cleaned)] {
            let found = tree(dir);
            prop_assert!(found.values().all(|what| !what.starts_with("link")), "{:?}", found);
            let files = found.values().filter(|what| what.starts_with("file")).count() as u64;
            prop_assert!(files <= report.files && report.files <= entries);
            prop_assert!(report.bytes <= bytes);
        }
    }

    #[test]
    fn noise_is_no_error(noise in prop::collection::vec(any::<u8>(), 0..5000)) {
        let temp = TempDir::new().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let report = runtime.block_on(extract(source(noise), &temp.path().join("o"), SMALL));
        prop_assert!(report.unwrap().cut.is_some());
    }
}

#[test]
fn reading_a_large_name_extension_does_not_take_its_size_in_memory() {
    // The size is refused before anything is allocated: see the limits test. What is accepted is
    // bounded and cut to what can matter.
    let mut bytes = Vec::new();
    let name = vec![b'a'; 900_000];
    block(&mut bytes, b"././@LongLink", b'L', name.len() as u64, b"", &name);
    block(&mut bytes, b"x", b'0', 0, b"", b"");
    bytes.write_all(&[0; 1024]).unwrap();
    let mut members = read::Members::new(&bytes[..], SMALL);
    let member = members.next().unwrap().unwrap();
    assert_eq!(member.path, Err(BadPath::Long));
}
