//! The blob store in S3.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_store::contract::{self, StoreUnderTest};
use rollout_store::{BlobContent, BlobStore, S3Location, S3Store, StoreError, StoreUrl};
use rollout_tests::ignored::report_ignored;
use rollout_tests::s3_server::{S3_KEY_ID, S3_SECRET, S3Server};
use rollout_tests::tcp_proxy::TcpProxy;

/// Larger than three parts of an upload.
const LARGE_BYTES: usize = 25 * 1024 * 1024 + 1;

fn location(url: &str) -> S3Location {
    match url.parse().expect("a URL") {
        StoreUrl::S3(location) => location,
        other => panic!("{other}"),
    }
}

async fn open(url: &str) -> S3Store {
    let opened = S3Store::open_with_key(location(url), S3_KEY_ID, S3_SECRET).await;
    opened.expect("opened")
}

/// A store below a prefix of its own.
struct PrefixUnderTest {
    server: Arc<S3Server>,
    prefix: String,
    store: S3Store,
}

#[async_trait]
impl StoreUnderTest for PrefixUnderTest {
    fn store(&self) -> Arc<dyn BlobStore> {
        Arc::new(self.store.clone())
    }

    async fn reopen(&self) -> Arc<dyn BlobStore> {
        Arc::new(open(&self.server.store_url(&self.prefix)).await)
    }

    async fn damage(&self, digest: &Digest, bytes: Bytes) {
        fs::write(object(&self.server, &self.prefix, digest), bytes).expect("written");
    }

    async fn set_modified(&self, digest: &Digest, modified: SystemTime) -> bool {
        let file = fs::File::open(object(&self.server, &self.prefix, digest)).expect("stored");
        file.set_modified(modified).expect("set");
        true
    }

    async fn count(&self) -> Option<usize> {
        let blobs = fs::read_dir(self.server.bucket().join(&self.prefix).join("blobs"));
        let fan_outs = blobs.expect("listed").map(|entry| entry.expect("listed").path());
        Some(fan_outs.map(|path| fs::read_dir(path).expect("listed").count()).sum())
    }
}

/// File of a blob's object.
fn object(server: &S3Server, prefix: &str, digest: &Digest) -> std::path::PathBuf {
    let hex = digest.hex();
    server.bucket().join(prefix).join("blobs").join(&hex[..2]).join(&hex[2..])
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_store_passes_store_contract() {
    let server = Arc::new(S3Server::start());
    let next = AtomicU32::new(0);
    contract::run_all(async || {
        let prefix = format!("store-{}/below", next.fetch_add(1, Ordering::Relaxed));
        let store = open(&server.store_url(&prefix)).await;
        PrefixUnderTest { server: Arc::clone(&server), prefix, store }
    })
    .await;
}

/// A store in the service that `ROLLOUT_TEST_S3` names, with the credentials of the environment.
struct ServiceUnderTest {
    url: StoreUrl,
    store: S3Store,
    has_conditional_writes: bool,
}

#[async_trait]
impl StoreUnderTest for ServiceUnderTest {
    fn store(&self) -> Arc<dyn BlobStore> {
        Arc::new(self.store.clone())
    }

    async fn reopen(&self) -> Arc<dyn BlobStore> {
        rollout_store::open_existing(&self.url).await.expect("opened")
    }

    async fn set_modified(&self, _digest: &Digest, _modified: SystemTime) -> bool {
        false
    }

    fn has_atomic_documents(&self) -> bool {
        self.has_conditional_writes
    }

    async fn damage(&self, digest: &Digest, bytes: Bytes) {
        self.store.damage(digest, bytes).await.expect("written");
    }

    async fn count(&self) -> Option<usize> {
        None
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_service_passes_store_contract() {
    let Ok(url) = std::env::var("ROLLOUT_TEST_S3") else {
        report_ignored("needs a store in a service, named by ROLLOUT_TEST_S3");
        return;
    };
    let (run, next) = (std::process::id(), AtomicU32::new(0));
    contract::run_all(async || {
        let mut location = location(&url);
        let number = next.fetch_add(1, Ordering::Relaxed);
        location.prefix = format!("{}/{run}-{number}", location.prefix);
        let store = S3Store::open(location.clone()).await.expect("opened");
        let has_conditional_writes = store.has_exclusive_documents().await.expect("answered");
        ServiceUnderTest { url: StoreUrl::S3(location), store, has_conditional_writes }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn file_larger_than_part_is_stored_once_and_verified() {
    let (server, temp) = (S3Server::start(), tempfile::tempdir().expect("a directory"));
    let store = open(&server.store_url("")).await;
    let content: Vec<u8> = (0..LARGE_BYTES).map(|n| (n % 251) as u8).collect();
    let (file, copy) = (temp.path().join("file"), temp.path().join("copy"));
    fs::write(&file, &content).expect("written");
    let blob = store.put_file(&file, MediaType::Tar).await.expect("stored");
    assert_eq!(blob.digest, Digest::sha256(&content));
    store.get_file(&blob.digest, &copy).await.expect("read");
    assert!(fs::read(&copy).expect("readable") == content);

    let stored = object(&server, "", &blob.digest);
    let written = fs::metadata(&stored).expect("stored").modified().expect("a time");
    store.put_file(&file, MediaType::Tar).await.expect("stored");
    let again = fs::metadata(&stored).expect("stored").modified().expect("a time");
    assert_eq!(again, written, "equal content is not sent again");

    let mut damaged = content.clone();
    damaged[LARGE_BYTES - 1] ^= 1;
    fs::write(&stored, damaged).expect("written");
    fs::remove_file(&copy).expect("removed");
    let read = store.get_file(&blob.digest, &copy).await;
    assert!(matches!(read, Err(StoreError::Corrupt { .. })), "{read:?}");
    let read = store.get_file(&blob.digest, &copy).await;
    assert!(matches!(read, Err(StoreError::Corrupt { .. })), "it stays damaged: {read:?}");
    store.put_file(&file, MediaType::Tar).await.expect("stored");
    store.get_file(&blob.digest, &copy).await.expect("healed");
}

#[tokio::test(flavor = "multi_thread")]
async fn hashed_file_in_parts_changed_is_stored_under_its_own_digest() {
    let (server, temp) = (S3Server::start(), tempfile::tempdir().expect("a directory"));
    let store = open(&server.store_url("")).await;
    let (file, mut content) = (temp.path().join("file"), vec![7; LARGE_BYTES]);
    let digest = Digest::sha256(&content);
    let hashed = || vec![BlobContent::HashedFile(file.clone(), MediaType::Tar, digest)];
    content[LARGE_BYTES / 2] ^= 1;
    fs::write(&file, &content).expect("written");
    let blobs = store.put_many(hashed()).await.expect("stored");
    assert_eq!(blobs, [BlobRef::for_bytes(&content, MediaType::Tar)]);
    assert!(!store.contains(&digest).await.expect("answered"), "nothing is stored under it");
    content[LARGE_BYTES / 2] ^= 1;
    fs::write(&file, &content).expect("written");
    let blobs = store.put_many(hashed()).await.expect("stored");
    assert_eq!(blobs, [BlobRef::for_bytes(&content, MediaType::Tar)]);
    assert!(fs::read(object(&server, "", &digest)).expect("stored") == content);
    let written = || fs::metadata(object(&server, "", &digest)).expect("stored").modified();
    let before = written().expect("a time");
    store.put_many(hashed()).await.expect("stored");
    assert_eq!(written().expect("a time"), before, "equal content is not sent again");
}

#[tokio::test(flavor = "multi_thread")]
async fn store_without_answer_is_transient_and_recovers() {
    let server = S3Server::start();
    let proxy = TcpProxy::for_port(server.port());
    let store = open(&server.store_url_at(proxy.port(), "a")).await;
    let blob = store.put_bytes("text".into(), MediaType::Text).await.expect("stored");
    proxy.cut();
    let read = store.get_bytes(&blob.digest, 10).await.expect_err("cut");
    assert!(matches!(read, StoreError::Unanswered { .. }), "{read:?}");
    assert!(read.is_transient() && read.is_unanswered());
    assert!(store.put_bytes("more".into(), MediaType::Text).await.is_err());
    proxy.restore();
    assert_eq!(store.get_bytes(&blob.digest, 10).await.expect("read"), "text");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_key_and_missing_bucket_are_refused_by_name() {
    let server = S3Server::start();
    let url = server.store_url("a");
    let wrong = S3Store::open_with_key(location(&url), S3_KEY_ID, "wrong").await;
    let error = wrong.expect_err("refused");
    assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains("SignatureDoesNotMatch"), "{error}");

    let missing = url.replace("s3://bucket/", "s3://no-such-bucket/");
    let opened = S3Store::open_with_key(location(&missing), S3_KEY_ID, S3_SECRET).await;
    let error = opened.expect_err("refused");
    assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
    assert!(error.to_string().contains("NoSuchBucket"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn store_without_content_is_removed_and_leaves_other_objects() {
    let server = S3Server::start();
    let url = server.store_url("team");
    let store = open(&url).await;
    fs::write(server.bucket().join("team/other"), "text").expect("written");
    let blob = store.put_bytes("text".into(), MediaType::Text).await.expect("stored");
    let refused = store.remove_store().await;
    assert!(matches!(refused, Err(StoreError::InUse { .. })), "{refused:?}");
    assert!(server.bucket().join("team/store.json").exists());
    fs::write(object(&server, "team", &blob.digest), "damaged").expect("written");
    assert!(store.get_bytes(&blob.digest, 10).await.is_err(), "damaged");
    assert_eq!(store.list_damaged().await.expect("listed"), [blob.digest]);
    store.remove_store().await.expect("removed");
    assert!(!server.bucket().join("team/store.json").exists());
    assert_eq!(store.list_damaged().await.expect("listed"), []);
    assert!(server.bucket().join("team/other").exists());
}
