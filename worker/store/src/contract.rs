//! Contract tests of blob stores: [`run_all`] runs them, each on a separate store. They fail by
//! panicking.

mod remove;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::join_all;
use rollout_base::supervise;
use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use rollout_protocol::limits;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::{BlobContent, BlobStore, StoreError, get_json, put_json};

/// A store under test, used by nothing else.
#[async_trait]
pub trait StoreUnderTest: Send + Sync {
    /// A handle.
    fn store(&self) -> Arc<dyn BlobStore>;
    /// Another handle of the same store, as another process would open it.
    async fn reopen(&self) -> Arc<dyn BlobStore>;
    /// Changes the stored bytes of a blob without going through the store.
    async fn damage(&self, digest: &Digest, bytes: Bytes);
    /// Whether of several racing writers one creates a document.
    fn has_atomic_documents(&self) -> bool {
        true
    }
    /// Sets the modification time of a blob without going through the store; returns whether that is
    /// possible.
    async fn set_modified(&self, digest: &Digest, modified: SystemTime) -> bool;
    /// Number of stored blobs, if known.
    async fn count(&self) -> Option<usize>;
}

/// Larger than every buffer in use, and not a multiple of one.
const LARGE_BYTES: usize = 5 * 1024 * 1024 + 77;

/// Number of racing tasks.
const RACERS: u8 = 16;

/// Runs the whole suite, each part on a fresh store.
pub async fn run_all<S: StoreUnderTest>(fresh: impl AsyncFn() -> S) {
    small_blob_reads_back(&fresh().await).await;
    large_file_reads_back(&fresh().await).await;
    batch_stores_every_blob(&fresh().await).await;
    equal_content_is_stored_once(&fresh().await).await;
    hashed_file_changed_is_stored_under_its_own_digest(&fresh().await).await;
    missing_blob_and_document_are_reported(&fresh().await).await;
    read_beyond_limit_is_refused(&fresh().await).await;
    damaged_blob_is_refused_and_replaced(&fresh().await).await;
    get_file_failed_leaves_existing_file(&fresh().await).await;
    concurrent_puts_of_same_content_agree(&fresh().await).await;
    document_is_created_once(&fresh().await).await;
    concurrent_documents_have_one_winner(&fresh().await).await;
    documents_are_listed_in_order(&fresh().await).await;
    document_path_invalid_is_refused(&fresh().await).await;
    value_is_stored_as_json(&fresh().await).await;
    remove::run_all(fresh).await;
}

async fn put(store: &dyn BlobStore, bytes: &[u8]) -> BlobRef {
    let bytes = Bytes::copy_from_slice(bytes);
    store.put_bytes(bytes, MediaType::Bytes).await.expect("stored")
}

async fn read(store: &dyn BlobStore, digest: &Digest) -> Result<Bytes, StoreError> {
    store.get_bytes(digest, u64::MAX).await
}

async fn drain(mut reader: Box<dyn AsyncRead + Send + Unpin>) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).await.map(|_| bytes)
}

fn temp() -> TempDir {
    TempDir::new().expect("a temporary directory")
}

/// Pseudo-random bytes, so that equal pieces cannot occur by accident.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..length).map(|_| next()).collect()
}

/// Content, reference and identity are preserved, in this handle and another one.
pub async fn small_blob_reads_back<S: StoreUnderTest>(subject: &S) {
    let store = subject.store();
    for content in [b"".as_slice(), b"hello", &[0; 512], &noise(70_000)] {
        let blob = put(&*store, content).await;
        assert_eq!(blob, BlobRef::for_bytes(content, MediaType::Bytes));
        let other = subject.reopen().await;
        assert_eq!(other.identity(), store.identity());
        for handle in [&store, &other] {
            assert!(handle.contains(&blob.digest).await.expect("answered"));
            assert_eq!(read(&**handle, &blob.digest).await.expect("present"), content);
            let stream = handle.get(&blob.digest).await.expect("present");
            assert_eq!(drain(stream).await.expect("whole"), content);
        }
    }
}

/// Files of any size can be stored and read.
pub async fn large_file_reads_back<S: StoreUnderTest>(subject: &S) {
    let (store, temp) = (subject.store(), temp());
    for length in [0, 10, LARGE_BYTES] {
        let (from, to) = (temp.path().join("from"), temp.path().join(length.to_string()));
        let content = noise(length);
        write(&from, &content);
        let blob = store.put_file(&from, MediaType::Tar).await.expect("stored");
        assert_eq!(blob, BlobRef::for_bytes(&content, MediaType::Tar));
        std::fs::remove_file(&from).expect("the file is the caller's to remove");
        store.get_file(&blob.digest, &to).await.expect("present");
        assert!(std::fs::read(&to).expect("readable") == content);
        let stream = store.get(&blob.digest).await.expect("present");
        assert!(drain(stream).await.expect("whole") == content);
    }
    let missing = store.put_file(&temp.path().join("missing"), MediaType::Bytes).await;
    assert!(missing.is_err(), "a file that does not exist cannot be stored");
    assert!(store.put_file(temp.path(), MediaType::Bytes).await.is_err(), "nor can a directory");
}

/// References of a batch have its order, duplicates included.
pub async fn batch_stores_every_blob<S: StoreUnderTest>(subject: &S) {
    let (store, temp) = (subject.store(), temp());
    let file = temp.path().join("file");
    write(&file, &noise(LARGE_BYTES));
    let mut contents: Vec<_> = (0..300_u32)
        .map(|n| BlobContent::Bytes(Bytes::from((n % 290).to_string()), MediaType::Text))
        .collect();
    contents.insert(150, BlobContent::File(file, MediaType::Tar));
    let blobs = store.put_many(contents).await.expect("stored");
    assert_eq!(blobs.len(), 301);
    assert_eq!(blobs[150], BlobRef::for_bytes(&noise(LARGE_BYTES), MediaType::Tar));
    for (n, blob) in blobs[151..].iter().enumerate() {
        let text = ((n + 150) % 290).to_string();
        assert_eq!(read(&*store, &blob.digest).await.expect("present"), text);
    }
    assert!(store.put_many(Vec::new()).await.expect("nothing to do").is_empty());
    if let Some(count) = subject.count().await {
        assert_eq!(count, 291);
    }
}

/// Storing the same content again, by any method, adds nothing.
pub async fn equal_content_is_stored_once<S: StoreUnderTest>(subject: &S) {
    let (store, temp) = (subject.store(), temp());
    let (file, content) = (temp.path().join("file"), noise(LARGE_BYTES));
    write(&file, &content);
    let first = put(&*store, &content).await;
    let second = store.put_file(&file, MediaType::Bytes).await.expect("stored");
    let third = put(&*subject.reopen().await, &content).await;
    assert!(first == second && second == third);
    if let Some(count) = subject.count().await {
        assert_eq!(count, 1);
    }
}

/// A digest that a caller names with a file is trusted for finding the blob, never for naming
/// content that is written.
pub async fn hashed_file_changed_is_stored_under_its_own_digest<S: StoreUnderTest>(subject: &S) {
    let (store, temp) = (subject.store(), temp());
    for length in [70, LARGE_BYTES] {
        let (file, content) = (temp.path().join("file"), noise(length));
        let digest = Digest::sha256(&content);
        let hashed = || vec![BlobContent::HashedFile(file.clone(), MediaType::Tar, digest)];
        let mut changed = content.clone();
        changed[length / 2] ^= 1;
        for (content, count) in [(&changed, 1), (&content, 2), (&content, 2)] {
            write(&file, content);
            let blobs = store.put_many(hashed()).await.expect("stored");
            assert_eq!(blobs, [BlobRef::for_bytes(content, MediaType::Tar)]);
            assert!(read(&*store, &blobs[0].digest).await.expect("present") == content);
            if let Some(found) = subject.count().await {
                assert_eq!(found, count + if length == LARGE_BYTES { 2 } else { 0 });
            }
        }
    }
}

/// A digest that was never stored is reported as missing.
pub async fn missing_blob_and_document_are_reported<S: StoreUnderTest>(subject: &S) {
    let (store, temp) = (subject.store(), temp());
    let digest = Digest::sha256(b"nobody stored this");
    assert!(!store.contains(&digest).await.expect("answered"));
    let missing = |error: &StoreError| {
        assert!(!error.is_transient());
        matches!(error, StoreError::Missing { digest: named, .. } if *named == digest)
    };
    assert!(read(&*store, &digest).await.is_err_and(|error| missing(&error)));
    assert!(store.get(&digest).await.is_err_and(|error| missing(&error)));
    let to = temp.path().join("to");
    assert!(store.get_file(&digest, &to).await.is_err_and(|error| missing(&error)));
    assert!(!to.exists());
}

/// A reader receives no more than it asked for.
pub async fn read_beyond_limit_is_refused<S: StoreUnderTest>(subject: &S) {
    let store = subject.store();
    let blob = put(&*store, &[1; 1000]).await;
    assert_eq!(store.get_bytes(&blob.digest, 1000).await.expect("within").len(), 1000);
    let refused = store.get_bytes(&blob.digest, 999).await;
    let is_too_large =
        matches!(refused, Err(StoreError::TooLarge { size_bytes: 1000, max_bytes: 999, .. }));
    assert!(is_too_large, "{refused:?}");
}

/// Damaged content fails every way of reading; storing it again repairs it.
pub async fn damaged_blob_is_refused_and_replaced<S: StoreUnderTest>(subject: &S) {
    let (store, temp) = (subject.store(), temp());
    let (content, to) = (noise(200_000), temp.path().join("to"));
    let mut changed = content.clone();
    changed[199_999] ^= 1;
    for damaged in [changed, content[..100_000].to_vec()] {
        let damage = async || {
            let blob = put(&*store, &content).await;
            let whole = read(&*store, &blob.digest).await.expect("stored or healed");
            assert!(whole == content);
            subject.damage(&blob.digest, Bytes::from(damaged.clone())).await;
            blob.digest
        };
        let stream = store.get(&damage().await).await.expect("present");
        let error = drain(stream).await.expect_err("it fails at its end");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidData);
        let copied = store.get_file(&damage().await, &to).await;
        assert!(matches!(copied, Err(StoreError::Corrupt { .. })), "{copied:?}");
        assert!(!to.exists());
        let got = read(&*store, &damage().await).await.expect_err("damaged");
        assert!(matches!(got, StoreError::Corrupt { .. }) && !got.is_transient(), "{got:?}");
    }
    // A wrong length is detected without reading.
    let blob = put(&*store, &content).await;
    subject.damage(&blob.digest, Bytes::from_static(b"short")).await;
    put(&*store, &content).await;
    assert!(read(&*store, &blob.digest).await.expect("healed") == content);
}

/// An existing file is not overwritten, and no other file is left next to it.
pub async fn get_file_failed_leaves_existing_file<S: StoreUnderTest>(subject: &S) {
    let (store, temp) = (subject.store(), temp());
    let blob = put(&*store, b"new").await;
    let to = temp.path().join("to");
    write(&to, b"old");
    assert!(store.get_file(&blob.digest, &to).await.is_err());
    assert_eq!(std::fs::read(&to).expect("readable"), b"old");
    assert!(store.get_file(&blob.digest, &temp.path().join("no/to")).await.is_err());
    assert_eq!(std::fs::read_dir(temp.path()).expect("listed").count(), 1);
}

/// Every racer gets the same reference and the blob is whole.
pub async fn concurrent_puts_of_same_content_agree<S: StoreUnderTest>(subject: &S) {
    let content = Bytes::from(noise(300_000));
    let racers = (0..RACERS).map(|_| {
        let (store, content) = (subject.store(), content.clone());
        supervise::spawn("racer", async move {
            let blob = store.put_bytes(content, MediaType::Bytes).await.expect("stored");
            read(&*store, &blob.digest).await.expect("present as soon as it is stored");
            blob
        })
    });
    let blobs = join_all(racers.collect::<Vec<_>>()).await;
    for blob in blobs {
        assert_eq!(blob.expect("no panic"), BlobRef::for_bytes(&content, MediaType::Bytes));
    }
    assert!(read(&*subject.store(), &Digest::sha256(&content)).await.expect("present") == content);
    if let Some(count) = subject.count().await {
        assert_eq!(count, 1);
    }
}

/// The first document with a name is kept.
pub async fn document_is_created_once<S: StoreUnderTest>(subject: &S) {
    let store = subject.store();
    let path = "results/0a/1-1-x.json";
    assert_eq!(store.get_document(path).await.expect("answered"), None);
    assert!(store.put_document(path, "first".into()).await.expect("created"));
    assert!(!store.put_document(path, "second".into()).await.expect("present"));
    assert!(!subject.reopen().await.put_document(path, "third".into()).await.expect("present"));
    let found = subject.reopen().await.get_document(path).await.expect("answered");
    assert_eq!(found.expect("present"), "first");
    assert!(store.put_document("empty", Bytes::new()).await.expect("created"));
    assert_eq!(store.get_document("empty").await.expect("answered"), Some(Bytes::new()));
    assert_eq!(store.get_document("results").await.expect("answered"), None);
    assert_eq!(store.get_document("empty/below").await.expect("answered"), None);
    let size = usize::try_from(limits::DOCUMENT_BYTES).expect("small") + 1;
    let large = store.put_document("large", Bytes::from(vec![0; size])).await;
    assert!(matches!(large, Err(StoreError::DocumentTooLarge { .. })), "{large:?}");
    assert_eq!(store.get_document("large").await.expect("answered"), None);
}

/// Exactly one racer creates the document, with its own content.
pub async fn concurrent_documents_have_one_winner<S: StoreUnderTest>(subject: &S) {
    if !subject.has_atomic_documents() {
        return;
    }
    let racers = (0..RACERS).map(|n| {
        let store = subject.store();
        supervise::spawn("racer", async move {
            let bytes = Bytes::from(vec![n; 1000]);
            store.put_document("race/deep/down", bytes).await.expect("answered")
        })
    });
    let won = join_all(racers.collect::<Vec<_>>()).await;
    let won: Vec<_> = won.into_iter().map(|won| won.expect("no panic")).collect();
    assert_eq!(won.iter().filter(|won| **won).count(), 1, "{won:?}");
    let winner = won.iter().position(|won| *won).expect("one");
    let found = subject.store().get_document("race/deep/down").await.expect("answered");
    assert_eq!(found.expect("present"), vec![u8::try_from(winner).expect("small"); 1000]);
}

/// Prefixes may end anywhere in a path; the order is by bytes.
pub async fn documents_are_listed_in_order<S: StoreUnderTest>(subject: &S) {
    let store = subject.store();
    let all = ["a/2", "a/10", "a-b", "a/1/x", "ab/1", "b", "a/1-x"];
    for path in all {
        assert!(store.put_document(path, Bytes::new()).await.expect("created"));
    }
    for prefix in ["", "a", "a/", "a/1", "a/1/", "a/1/x", "a/1/x/", "c", "ab/", "zz/yy/"] {
        let expected: BTreeSet<_> =
            all.into_iter().filter(|path| path.starts_with(prefix)).collect();
        let found = store.list_documents(prefix).await.expect("listed");
        assert!(found.iter().eq(&expected), "{prefix}: {found:?}");
    }
}

/// Paths cannot leave the store or be hidden in it.
pub async fn document_path_invalid_is_refused<S: StoreUnderTest>(subject: &S) {
    let store = subject.store();
    let (long, longer) = ("a".repeat(256), "a/".repeat(600) + "a");
    let bad = [
        "", "/", "/a", "a/", "a//b", "..", "../a", "a/../b", "./a", ".hidden", "a/.b", "a b", "ä",
        "a\0", "a\n", "a\\b", &long, &longer,
    ];
    for path in bad {
        let put = store.put_document(path, Bytes::new()).await;
        assert!(matches!(put, Err(StoreError::BadPath { .. })), "{path:?}: {put:?}");
        let got = store.get_document(path).await;
        assert!(matches!(got, Err(StoreError::BadPath { .. })), "{path:?}: {got:?}");
    }
    for prefix in ["/", "../", "a/../", "a b", "//"] {
        let listed = store.list_documents(prefix).await;
        assert!(matches!(listed, Err(StoreError::BadPath { .. })), "{prefix:?}: {listed:?}");
    }
}

/// Values can be stored and read; other content is refused.
pub async fn value_is_stored_as_json<S: StoreUnderTest>(subject: &S) {
    let store = subject.store();
    let value = vec![("a".to_owned(), 1_u32), ("b".to_owned(), 2)];
    let blob = put_json(&*store, &value).await.expect("stored");
    assert_eq!(blob.media_type, Some(MediaType::Json));
    let found: Vec<(String, u32)> = get_json(&*store, &blob.digest).await.expect("present");
    assert_eq!(found, value);
    let other = put(&*store, b"{").await;
    let read = get_json::<Vec<u8>>(&*store, &other.digest).await;
    assert!(matches!(read, Err(StoreError::Json { .. })), "{read:?}");
}

fn write(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).expect("a writable directory");
}
