//! Tests of packing directories and extracting them again.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use tempfile::TempDir;

use super::*;

fn sample(dir: &Path, order: &[usize]) {
    let steps: [&dyn Fn(); 6] = [
        &|| fs::create_dir_all(dir.join("a/empty")).expect("created"),
        &|| fs::write(dir.join("a-b"), "dash").expect("written"),
        &|| {
            fs::create_dir_all(dir.join("a")).expect("created");
            fs::write(dir.join("a/run.sh"), "#!/bin/sh\n").expect("written");
            fs::set_permissions(dir.join("a/run.sh"), fs::Permissions::from_mode(0o711))
                .expect("set");
        },
        &|| {
            let long = dir.join("n".repeat(120));
            fs::create_dir_all(&long).expect("created");
            fs::write(long.join("deep"), vec![7; 1500]).expect("written");
        },
        &|| symlink("a/run.sh", dir.join("link")).expect("linked"),
        &|| fs::write(dir.join(OsStr::from_bytes(b"\xff\n")), "odd").expect("written"),
    ];
    for step in order {
        steps[*step]();
    }
}

fn keep_all(_: &Path, _: bool) -> FilterDecision {
    FilterDecision::Include
}

#[tokio::test]
async fn pack_of_equal_trees_is_identical_and_round_trips() {
    let temp = TempDir::new().expect("a directory");
    let (one, two) = (temp.path().join("one"), temp.path().join("two"));
    fs::create_dir(&one).expect("created");
    fs::create_dir(&two).expect("created");
    sample(&one, &[0, 1, 2, 3, 4, 5]);
    sample(&two, &[5, 3, 4, 2, 1, 0]);
    fs::set_permissions(two.join("a-b"), fs::Permissions::from_mode(0o600)).expect("set");
    let (first, second) = (temp.path().join("1.tar"), temp.path().join("2.tar"));
    let packed = pack(&one, &first, ArchiveLimits::BUNDLE, &keep_all).expect("packed");
    assert_eq!(packed, pack(&two, &second, ArchiveLimits::BUNDLE, &keep_all).expect("packed"));
    let bytes = fs::read(&first).expect("readable");
    assert_eq!(bytes, fs::read(&second).expect("readable"));
    assert_eq!(packed.size_bytes, bytes.len() as u64);
    assert_eq!(packed.digest, Digest::sha256(&bytes));

    let members = list(source(bytes.clone()), ArchiveLimits::BUNDLE).await.expect("listed");
    let paths: Vec<_> = members
        .iter()
        .map(|m| m.path.clone().expect("a valid path").expect("not the root"))
        .collect();
    assert!(paths.is_sorted(), "{paths:?}");
    assert_eq!(paths.len() as u64, packed.entries);

    let out = temp.path().join("out");
    extract_trusted(source(bytes), &out, ArchiveLimits::BUNDLE).await.expect("extracted");
    let mut expected = tree(&one);
    expected.insert("a/run.sh".into(), "file 755 #!/bin/sh\n".into());
    assert_eq!(tree(&out), expected);
}

/// The bytes of archives determine the names of images and bundles: they must not change by
/// accident.
#[test]
fn pack_of_known_tree_has_fixed_digest() {
    let temp = TempDir::new().expect("a directory");
    let dir = temp.path().join("dir");
    fs::create_dir(&dir).expect("created");
    sample(&dir, &[0, 1, 2, 3, 4, 5]);
    let packed =
        pack(&dir, &temp.path().join("t"), ArchiveLimits::BUNDLE, &keep_all).expect("packed");
    assert_eq!(
        packed.digest.to_string(),
        "sha256:5ecb06849963f8f3532f0a453a806f7da14463244f0904e223f2ffd97bd0c7af"
    );
}

#[test]
fn pack_outside_symlink_socket_or_over_limit_is_refused() {
    let temp = TempDir::new().expect("a directory");
    let dir = temp.path().join("dir");
    let to = temp.path().join("t");
    let refused = |make: &dyn Fn(&Path), limits: ArchiveLimits| {
        fs::create_dir(&dir).expect("created");
        make(&dir);
        let error = pack(&dir, &to, limits, &keep_all).unwrap_err();
        fs::remove_dir_all(&dir).expect("removed");
        assert!(!to.exists());
        error
    };
    for target in ["/etc/passwd", "../x", "a/../../x"] {
        let error = refused(&|dir| symlink(target, dir.join("l")).expect("linked"), SMALL);
        let named = matches!(&error, ArchiveError::NotPackable { path, .. }
            if path == Path::new("l"));
        assert!(named, "{error}");
    }
    let error = refused(
        &|dir| {
            drop(std::os::unix::net::UnixListener::bind(dir.join("s")).expect("bound"));
        },
        SMALL,
    );
    assert!(error.to_string().contains("socket"), "{error}");
    let fill = |dir: &Path| {
        for n in 0..3 {
            fs::write(dir.join(n.to_string()), [0; 100]).expect("written");
        }
    };
    let error = refused(&fill, ArchiveLimits { entries: 2, ..SMALL });
    assert!(
        matches!(error, ArchiveError::TooLarge { cut: ArchiveTruncation::Entries(2), .. }),
        "{error}"
    );
    let error = refused(&fill, ArchiveLimits { bytes: 299, ..SMALL });
    assert!(
        matches!(error, ArchiveError::TooLarge { cut: ArchiveTruncation::Bytes(299), .. }),
        "{error}"
    );
}

#[tokio::test]
async fn pack_with_filter_omits_excluded_paths() {
    let temp = TempDir::new().expect("a directory");
    let dir = temp.path().join("dir");
    fs::create_dir_all(dir.join("no/kept")).expect("created");
    fs::create_dir_all(dir.join("gone/deep")).expect("created");
    fs::create_dir_all(dir.join("hollow")).expect("created");
    for file in ["no/kept/x", "no/y", "gone/deep/z", "w"] {
        fs::write(dir.join(file), file).expect("written");
    }
    let to = temp.path().join("t");
    let filter = |path: &Path, _: bool| match path.to_str().expect("UTF-8") {
        "no" | "hollow" => FilterDecision::IncludeIfNotEmpty,
        "gone" | "no/y" => FilterDecision::Exclude,
        _ => FilterDecision::Include,
    };
    pack(&dir, &to, SMALL, &filter).expect("packed");
    let out = temp.path().join("out");
    extract_trusted(tokio::fs::File::open(&to).await.expect("opened"), &out, SMALL)
        .await
        .expect("extracted");
    assert_eq!(names(&out), ["no", "no/kept", "no/kept/x", "w"]);
}

#[tokio::test]
async fn extract_trusted_of_foreign_archive_is_refused() {
    let temp = TempDir::new().expect("a directory");
    for (n, member) in
        [raw("../x", b'0', b""), link("l", b'2', "../x"), link("l", b'1', "x"), raw("p", b'6', b"")]
            .into_iter()
            .enumerate()
    {
        let out = temp.path().join(n.to_string());
        let result = extract_trusted(source(tar_of(&[member])), &out, SMALL).await;
        assert!(matches!(result, Err(ArchiveError::Invalid { .. })), "{result:?}");
    }
}
