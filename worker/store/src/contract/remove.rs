//! Listing, removal and renewal.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;

/// Longer ago than any blob is kept without being renewed.
const LONG: Duration = Duration::from_secs(48 * 60 * 60);

/// Runs this part of the suite.
pub(super) async fn run_all<S: StoreUnderTest>(fresh: impl AsyncFn() -> S) {
    blobs_are_listed_by_first_byte(&fresh().await).await;
    blob_removed_can_be_stored_again(&fresh().await).await;
    blob_modified_after_limit_is_not_removed(&fresh().await).await;
    old_content_stored_again_is_renewed(&fresh().await).await;
    blob_relied_on_again_is_not_old(&fresh().await).await;
    document_removed_can_be_created_again(&fresh().await).await;
}

/// All blobs of a store, listed.
async fn listed(store: &dyn BlobStore) -> BTreeMap<Digest, u64> {
    let mut all = BTreeMap::new();
    for byte in 0..=u8::MAX {
        for blob in store.list_blobs(byte).await.expect("listed") {
            assert_eq!(blob.digest.as_bytes()[0], byte);
            assert!(all.insert(blob.digest, blob.size_bytes).is_none(), "{} twice", blob.digest);
        }
    }
    all
}

async fn blobs_are_listed_by_first_byte<S: StoreUnderTest>(subject: &S) {
    let store = subject.store();
    assert_eq!(listed(&*store).await.len(), 0);
    let mut expected = BTreeMap::new();
    for n in 0..300_u32 {
        let blob = put(&*store, &vec![1; n as usize]).await;
        expected.insert(blob.digest, blob.size_bytes);
    }
    assert!(store.put_document("a/b", Bytes::new()).await.expect("created"));
    assert_eq!(listed(&*store).await, expected);
    for (digest, size_bytes) in &expected {
        let found = store.stat_blob(digest).await.expect("answered").expect("present");
        assert_eq!((found.digest, found.size_bytes), (*digest, *size_bytes));
        assert!(found.modified.elapsed().is_ok_and(|age| age < LONG), "{found:?}");
    }
    assert_eq!(store.stat_blob(&Digest::sha256(b"absent")).await.expect("answered"), None);
    assert_eq!(store.list_damaged().await.expect("listed"), []);
}

async fn blob_removed_can_be_stored_again<S: StoreUnderTest>(subject: &S) {
    let (store, other) = (subject.store(), subject.reopen().await);
    let (blob, kept) = (put(&*store, b"removed").await, put(&*store, b"kept").await);
    let now = SystemTime::now() + LONG;
    assert!(store.remove_blob(&blob.digest, now).await.expect("removed"));
    assert!(!store.remove_blob(&blob.digest, now).await.expect("answered"), "it is gone");
    for handle in [&store, &other] {
        assert!(!handle.contains(&blob.digest).await.expect("answered"));
        assert!(!handle.renew(&blob.digest).await.expect("answered"));
        let read = read(&**handle, &blob.digest).await;
        assert!(matches!(read, Err(StoreError::Missing { .. })), "{read:?}");
    }
    assert_eq!(listed(&*store).await.into_keys().collect::<Vec<_>>(), [kept.digest]);
    put(&*other, b"removed").await;
    assert_eq!(read(&*store, &blob.digest).await.expect("present"), "removed");
}

async fn blob_modified_after_limit_is_not_removed<S: StoreUnderTest>(subject: &S) {
    let store = subject.store();
    let blob = put(&*store, b"young").await;
    let limit = SystemTime::now() - LONG;
    assert!(!store.remove_blob(&blob.digest, limit).await.expect("answered"));
    assert_eq!(read(&*store, &blob.digest).await.expect("present"), "young");
    if !subject.set_modified(&blob.digest, limit - LONG).await {
        return;
    }
    assert!(store.remove_blob(&blob.digest, limit).await.expect("removed"));
}

/// By any method, and also in another handle: a removal by age then keeps the blob.
async fn old_content_stored_again_is_renewed<S: StoreUnderTest>(subject: &S) {
    let (store, temp) = (subject.store(), temp());
    for (n, length) in [10, 100_000, LARGE_BYTES].into_iter().enumerate() {
        let (file, content) = (temp.path().join(n.to_string()), noise(length));
        write(&file, &content);
        let bytes = || BlobContent::Bytes(content.clone().into(), MediaType::Bytes);
        let from_file = || BlobContent::File(file.clone(), MediaType::Bytes);
        let digest = put(&*store, &content).await.digest;
        for again in [bytes(), from_file()] {
            if !subject.set_modified(&digest, SystemTime::now() - LONG).await {
                return;
            }
            subject.reopen().await.put_many(vec![again]).await.expect("stored");
            let found = store.stat_blob(&digest).await.expect("answered").expect("present");
            assert!(found.modified.elapsed().is_ok_and(|age| age < LONG / 2), "{length}");
            let limit = SystemTime::now() - LONG / 2;
            assert!(!store.remove_blob(&digest, limit).await.expect("answered"));
        }
        assert!(read(&*store, &digest).await.expect("present") == content);
    }
}

/// Either it is renewed, or the caller has to store it again.
async fn blob_relied_on_again_is_not_old<S: StoreUnderTest>(subject: &S) {
    let store = subject.store();
    let blob = put(&*store, b"content").await;
    assert!(store.renew(&blob.digest).await.expect("answered"), "it was just stored");
    if !subject.set_modified(&blob.digest, SystemTime::now() - LONG).await {
        return;
    }
    if !store.renew(&blob.digest).await.expect("answered") {
        put(&*store, b"content").await;
    }
    let found = store.stat_blob(&blob.digest).await.expect("answered").expect("present");
    assert!(found.modified.elapsed().is_ok_and(|age| age < LONG / 2), "{found:?}");
}

async fn document_removed_can_be_created_again<S: StoreUnderTest>(subject: &S) {
    let store = subject.store();
    let paths = ["runs/1/a", "runs/1/b", "runs/2/a/deep"];
    for path in paths {
        assert!(store.put_document(path, "first".into()).await.expect("created"));
    }
    assert!(store.remove_document(paths[0]).await.expect("removed"));
    assert!(!store.remove_document(paths[0]).await.expect("answered"), "it is gone");
    assert!(!store.remove_document("runs/1").await.unwrap_or(false), "not a document");
    assert_eq!(store.list_documents("").await.expect("listed"), paths[1..]);
    assert_eq!(store.get_document(paths[0]).await.expect("answered"), None);
    assert!(store.remove_document(paths[2]).await.expect("removed"));
    for path in [paths[0], paths[2]] {
        assert!(subject.reopen().await.put_document(path, "again".into()).await.expect("created"));
        assert_eq!(store.get_document(path).await.expect("answered").expect("present"), "again");
    }
    let bad = store.remove_document("../a").await;
    assert!(matches!(bad, Err(StoreError::BadPath { .. })), "{bad:?}");
}
