//! Tests specific to a directory store: damage on disk, crashes and other processes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use tempfile::TempDir;

use super::super::contract::{self, StoreUnderTest};
use super::*;
use crate::archive::{self, ArchiveError, ArchiveLimits, ArchiveTruncation, FilterDecision};

struct FsStoreUnderTest {
    store: FsStore,
    _temp: TempDir,
}

#[async_trait]
impl StoreUnderTest for FsStoreUnderTest {
    fn store(&self) -> Arc<dyn BlobStore> {
        Arc::new(self.store.clone())
    }

    async fn reopen(&self) -> Arc<dyn BlobStore> {
        Arc::new(FsStore::open(self.store.root()).await.expect("opened"))
    }

    async fn damage(&self, digest: &Digest, bytes: Bytes) {
        let path = self.store.inner.blob_path(digest);
        fs::remove_file(&path).expect("removed");
        fs::write(&path, bytes).expect("written");
    }

    async fn set_modified(&self, digest: &Digest, modified: SystemTime) -> bool {
        let file = fs::File::open(self.store.inner.blob_path(digest)).expect("a stored blob");
        file.set_modified(modified).expect("set");
        true
    }

    async fn count(&self) -> Option<usize> {
        let fan_outs = fs::read_dir(self.store.root().join("blobs")).expect("listed");
        Some(fan_outs.map(|fan_out| entries(&fan_out.expect("an entry").path())).sum())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fs_store_passes_store_contract() {
    contract::run_all(async || {
        let (temp, store) = store().await;
        FsStoreUnderTest { store, _temp: temp }
    })
    .await;
}

async fn store() -> (TempDir, FsStore) {
    let temp = TempDir::new().expect("a directory");
    let store = FsStore::open(temp.path().join("store")).await.expect("opened");
    (temp, store)
}

fn entries(path: &Path) -> usize {
    fs::read_dir(path).map_or(0, Iterator::count)
}

#[tokio::test]
async fn blob_written_is_read_only_and_leaves_no_temp_file() {
    let (temp, store) = store().await;
    let blob = store.put_bytes("hello".into(), MediaType::Text).await.expect("stored");
    let path = store.inner.blob_path(&blob.digest);
    let metadata = fs::metadata(&path).expect("readable");
    assert_eq!(metadata.permissions().mode() & 0o222, 0);
    assert_eq!(store.get_bytes(&blob.digest, 5).await.expect("stored"), "hello");
    let again = FsStore::open(temp.path().join("store")).await.expect("opened");
    assert_eq!(again.identity(), store.identity());
    assert!(again.contains(&blob.digest).await.expect("answered"));
    drop(store);
    assert_eq!(entries(&temp.path().join("store/tmp")), 0);
}

#[tokio::test]
async fn blob_corrupted_is_refused_and_can_be_stored_again() {
    let (temp, store) = store().await;
    let damage = |digest: &Digest, content: &str| {
        let path = store.inner.blob_path(digest);
        fs::remove_file(&path).expect("removed");
        fs::write(&path, content).expect("written");
    };
    let blob = store.put_bytes("hello".into(), MediaType::Text).await.expect("stored");
    damage(&blob.digest, "hellO");
    let read = store.get_bytes(&blob.digest, 10).await;
    assert!(matches!(read, Err(StoreError::Corrupt { .. })), "{read:?}");
    let read = store.get_bytes(&blob.digest, 10).await;
    assert!(matches!(read, Err(StoreError::Corrupt { .. })), "{read:?}");
    let aside = temp.path().join("store/damaged").join(blob.digest.hex());
    assert_eq!(fs::read_to_string(aside).expect("readable"), "hellO");
    store.put_bytes("hello".into(), MediaType::Text).await.expect("stored");
    assert_eq!(store.get_bytes(&blob.digest, 10).await.expect("stored"), "hello");

    damage(&blob.digest, "hel");
    store.put_bytes("hello".into(), MediaType::Text).await.expect("stored");
    assert_eq!(store.get_bytes(&blob.digest, 10).await.expect("stored"), "hello");

    damage(&blob.digest, "jello");
    let to = temp.path().join("copy");
    let read = store.get_file(&blob.digest, &to).await;
    assert!(matches!(read, Err(StoreError::Corrupt { .. })), "{read:?}");
    assert_eq!(entries(temp.path()), 1, "neither the copy nor a part of it exists");
}

#[tokio::test]
async fn temp_files_of_dead_process_are_swept_and_of_live_kept() {
    let (temp, store) = store().await;
    let tmp = temp.path().join("store/tmp");
    let mut written = store.inner.scratch.create().expect("created");
    written.write(b"half").expect("written");
    let dead = tmp.join("0123456789abcdef0123456789abcdef");
    fs::create_dir(&dead).expect("created");
    fs::write(dead.join("7"), "left").expect("written");
    let other = FsStore::open(temp.path().join("store")).await.expect("opened");
    assert!(!dead.exists());
    assert_eq!(entries(&tmp), 1);
    let digest = Digest::sha256(b"half");
    assert!(!other.contains(&digest).await.expect("answered"), "unfinished blobs are not visible");
    written.sync().expect("synced");
    let path = store.inner.blob_path(&digest);
    fs::create_dir(path.parent().expect("a directory")).expect("created");
    written.rename_to(&path).expect("renamed");
    assert_eq!(other.get_bytes(&digest, 4).await.expect("stored"), "half");
}

#[tokio::test]
async fn write_begun_before_store_went_away_leaves_nothing_in_mount_point() {
    let (temp, store) = store().await;
    let root = temp.path().join("store");
    let _held = store.inner.scratch.create().expect("created");
    fs::rename(&root, temp.path().join("aside")).expect("renamed");
    fs::create_dir(&root).expect("created");
    let refused = store.inner.scratch.create();
    assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "{refused:?}");
    assert_eq!(entries(&root), 0);
}

#[tokio::test]
async fn store_directories_deleted_are_recreated() {
    let (temp, store) = store().await;
    let blob = store.put_bytes("one".into(), MediaType::Text).await.expect("stored");
    fs::remove_dir_all(temp.path().join("store/tmp")).expect("removed");
    fs::remove_dir_all(temp.path().join("store/blobs")).expect("removed");
    fs::create_dir(temp.path().join("store/blobs")).expect("created");
    assert!(!store.contains(&blob.digest).await.expect("answered"));
    store.put_bytes("one".into(), MediaType::Text).await.expect("stored");
    assert_eq!(store.get_bytes(&blob.digest, 3).await.expect("stored"), "one");
}

#[tokio::test]
async fn store_with_unknown_format_is_refused() {
    for text in [r#"{"format":2,"id":"x"}"#, "{}", ""] {
        let temp = TempDir::new().expect("a directory");
        fs::write(temp.path().join("store.json"), text).expect("written");
        let opened = FsStore::open(temp.path()).await;
        assert!(matches!(opened, Err(StoreError::Unusable { .. })), "{text}: {opened:?}");
        assert_eq!(entries(temp.path()), 1, "nothing was made in it");
    }
}

#[tokio::test]
async fn store_opened_concurrently_gets_one_identity() {
    let temp = TempDir::new().expect("a directory");
    let root = temp.path().join("store");
    let opening = (0..8).map(|_| FsStore::open(root.clone()));
    let opened = futures_util::future::try_join_all(opening).await.expect("opened");
    assert!(opened.windows(2).all(|pair| pair[0].identity() == pair[1].identity()));
}

/// Directory that the process started by [`blob_of_killed_process_is_not_visible`] writes to.
const KILLED_STORE: &str = "ROLLOUT_TEST_KILLED_STORE";

#[tokio::test]
async fn child_process_writes_blob_and_waits_for_kill() {
    let Ok(root) = std::env::var(KILLED_STORE) else { return };
    let store = FsStore::open(root).await.expect("opened");
    let mut temp = store.inner.scratch.create().expect("created");
    temp.write(b"half").expect("written");
    temp.sync().expect("synced");
    println!("\nwritten");
    io::stdin().read_line(&mut String::new()).expect("readable");
}

#[tokio::test]
async fn blob_of_killed_process_is_not_visible() {
    use std::io::BufRead as _;
    use std::process::{Command, Stdio};
    let (temp, store) = store().await;
    let tmp = temp.path().join("store/tmp");
    let mut child = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "fs::tests::child_process_writes_blob_and_waits_for_kill"])
        .arg("--nocapture")
        .env(KILLED_STORE, store.root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut lines = io::BufReader::new(child.stdout.take().expect("piped")).lines();
    assert!(lines.any(|line| line.expect("text") == "written"));
    FsStore::open(store.root()).await.expect("opened");
    assert_eq!(entries(&tmp), 2, "living processes keep their files");
    child.kill().expect("killed");
    child.wait().expect("ended");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while entries(&tmp) > 1 {
        assert!(std::time::Instant::now() < deadline, "still there");
        FsStore::open(store.root()).await.expect("opened");
    }
    assert!(!store.contains(&Digest::sha256(b"half")).await.expect("answered"));
}

#[tokio::test]
async fn archive_blob_corrupted_is_cut_at_extract() {
    let (temp, store) = store().await;
    let (from, tar) = (temp.path().join("from"), temp.path().join("packed.tar"));
    fs::create_dir(&from).expect("created");
    fs::write(from.join("reward.txt"), "0.5\n").expect("written");
    archive::pack(&from, &tar, ArchiveLimits::LOGS, &|_, _| FilterDecision::Include)
        .expect("packed");
    let blob = store.put_file(&tar, MediaType::Tar).await.expect("stored");
    let path = store.inner.blob_path(&blob.digest);
    let mut bytes = fs::read(&path).expect("readable");
    let place = bytes.windows(4).position(|bytes| bytes == b"0.5\n").expect("found");
    bytes[place] ^= 1;
    let damage = || {
        let _moved_away = fs::remove_file(&path);
        fs::write(&path, &bytes).expect("written");
    };
    damage();
    let source = store.get(&blob.digest).await.expect("stored");
    let report = archive::extract(source, &temp.path().join("a"), ArchiveLimits::LOGS)
        .await
        .expect("extracted");
    assert!(matches!(report.cut, Some(ArchiveTruncation::Source(_))), "{report:?}");
    damage();
    let source = store.get(&blob.digest).await.expect("stored");
    let trusted =
        archive::extract_trusted(source, &temp.path().join("b"), ArchiveLimits::LOGS).await;
    assert!(matches!(trusted, Err(ArchiveError::Invalid { .. })), "{trusted:?}");
}

#[tokio::test]
async fn store_without_content_is_removed() {
    let (_temp, store) = store().await;
    let blob = store.put_bytes("text".into(), MediaType::Text).await.expect("stored");
    let refused = store.remove_store().await;
    assert!(matches!(refused, Err(StoreError::InUse { .. })), "{refused:?}");
    assert!(store.put_document("a/b/c", Bytes::new()).await.expect("created"));
    assert!(store.remove_blob(&blob.digest, SystemTime::now()).await.expect("removed"));
    assert!(store.remove_store().await.is_err(), "a document is left");
    assert!(store.remove_document("a/b/c").await.expect("removed"));
    store.remove_store().await.expect("removed");
    assert!(!store.root().exists());
    let read = store.get_bytes(&blob.digest, 10).await;
    assert!(matches!(read, Err(StoreError::Unavailable { .. })), "{read:?}");
}

#[tokio::test]
async fn store_with_writer_is_not_removed() {
    let (_temp, store) = store().await;
    let writer = FsStore::open(store.root()).await.expect("opened");
    let blob = writer.put_bytes("text".into(), MediaType::Text).await.expect("stored");
    assert!(store.remove_blob(&blob.digest, SystemTime::now()).await.expect("removed"));
    let refused = store.remove_store().await.expect_err("refused");
    assert!(refused.to_string().ends_with("a process is writing to it"), "{refused}");
    drop(writer);
    store.remove_store().await.expect("removed");
}

#[tokio::test(flavor = "multi_thread")]
async fn blob_stored_while_it_is_removed_is_present_afterwards() {
    let (_temp, store) = store().await;
    let content = Bytes::from_static(b"wanted and unwanted");
    for _ in 0..300 {
        let blob = store.put_bytes(content.clone(), MediaType::Text).await.expect("stored");
        let old = SystemTime::now() - 2 * rollout_protocol::limits::BLOB_RENEWAL;
        let file = fs::File::open(store.inner.blob_path(&blob.digest)).expect("stored");
        file.set_modified(old).expect("set");
        let limit = SystemTime::now() - rollout_protocol::limits::BLOB_RENEWAL;
        let removal = {
            let store = store.clone();
            supervise::spawn("removal", async move { store.remove_blob(&blob.digest, limit).await })
        };
        let stored = store.put_bytes(content.clone(), MediaType::Text).await.expect("stored");
        let _removed = removal.await.expect("no panic").expect("answered");
        let read = store.get_bytes(&stored.digest, 100).await.expect("present");
        assert_eq!(read, content);
    }
}
