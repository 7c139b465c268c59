//! Uploads whose request goes before they are stored.

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::io::Write as _;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use rollout_protocol::digest::Digest;
use serde_json::json;
use tempfile::NamedTempFile;

use super::{daemon, user};
use crate::daemon::datasets::CONCURRENT_STORINGS;
use crate::daemon::{Daemon, DaemonError, Role};

/// Polls work this often, and drops it then.
async fn cut<T>(work: impl Future<Output = T>, polls: usize) -> Option<T> {
    let (mut work, mut left) = (pin!(work), polls);
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        work.as_mut().poll(context).map(Some)
    })
    .await
}

/// An archive of 20 files, and its digest.
fn archive(daemon: &Daemon) -> (Digest, NamedTempFile) {
    let mut builder = tar::Builder::new(Vec::new());
    for number in 0..20 {
        let mut header = tar::Header::new_ustar();
        header.set_size(4);
        header.set_mode(0o644);
        builder.append_data(&mut header, format!("set/{number}"), &b"text"[..]).expect("appended");
    }
    let bytes = builder.into_inner().expect("an archive");
    let mut file = daemon.dataset_file().expect("a file");
    file.write_all(&bytes).expect("written");
    (Digest::sha256(&bytes), file)
}

#[tokio::test]
async fn upload_whose_request_goes_is_stored_whole_and_counted() {
    let ada = user("ada", Role::Submit);
    for polls in 1.. {
        let directory = tempfile::tempdir().expect("a directory");
        let daemon = daemon(directory.path(), 1);
        let (digest, file) = archive(&daemon);
        let room = daemon.dataset_room(&ada, 100_000).await.expect("room");
        let ended = cut(daemon.store_dataset(digest, file, room), polls).await;
        let storing = async {
            while !daemon.disk.has_uploaded("ada", &digest.hex()) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), storing).await.expect("in time");
        let files = daemon.dir.uploads().join(digest.hex()).join("set");
        assert_eq!(std::fs::read_dir(files).expect("listed").count(), 20);
        if let Some(ended) = ended {
            ended.expect("stored");
            return;
        }
    }
}

#[tokio::test]
async fn upload_whose_request_has_gone_keeps_its_turn_until_it_is_stored() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon(directory.path(), 1);
    let ada = user("ada", Role::Submit);
    let (digest, file) = archive(&daemon);
    let room = daemon.dataset_room(&ada, 100_000).await.expect("room");
    assert!(daemon.store_dataset(digest, file, room).now_or_never().is_none());
    let held = || daemon.storings.counts().held;
    assert_eq!(held(), 1);
    let stored = async {
        loop {
            let before = held();
            if daemon.disk.has_uploaded("ada", &digest.hex()) {
                return;
            }
            assert_eq!(before, 1);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), stored).await.expect("in time");
    let ended = async {
        while held() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ended).await.expect("in time");
}

#[tokio::test]
async fn upload_whose_request_goes_before_its_turn_leaves_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon(directory.path(), 1);
    let [ada, root] =
        [("ada", Role::Submit), ("root", Role::Admin)].map(|(name, role)| user(name, role));
    let all = daemon.storings.try_acquire(&root.limit_user(), CONCURRENT_STORINGS);
    let (digest, file) = archive(&daemon);
    let room = daemon.dataset_room(&ada, 100_000).await.expect("room");
    assert!(daemon.store_dataset(digest, file, room).now_or_never().is_none());
    drop(all.expect("all of them"));
    assert_eq!(daemon.storings.counts().held, 0);
    let left = std::fs::read_dir(daemon.dir.uploads()).expect("listed");
    assert_eq!(left.count(), 0);
}

#[tokio::test]
async fn paths_of_a_search_may_be_in_an_upload_of_its_user() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon(directory.path(), 1);
    let [ada, bob] = ["ada", "bob"].map(|name| user(name, Role::Submit));
    let (digest, file) = archive(&daemon);
    let room = daemon.dataset_room(&ada, 100_000).await.expect("room");
    daemon.store_dataset(digest, file, room).await.expect("stored");
    let hex = digest.hex();
    let named = json!({
        "root_baseline_csv": format!("dataset:{hex}/set/3"),
        "context_ideas_dirs": [format!("dataset:{hex}/set"), format!("dataset:{hex}"), "/srv/ideas"],
    });
    let mut document = named.clone();
    let uploads = daemon.resolve_datasets(&ada, &mut document).expect("the user's own");
    assert_eq!(uploads, BTreeSet::from([hex.clone()]));
    let upload = daemon.dir.uploads().join(&hex);
    let expected = json!({
        "root_baseline_csv": upload.join("set/3"),
        "context_ideas_dirs": [upload.join("set"), upload, "/srv/ideas"],
    });
    assert_eq!(document, expected);
    let mut of_another = named;
    let refused = daemon.resolve_datasets(&bob, &mut of_another);
    assert!(matches!(refused, Err(DaemonError::NoDataset)), "{refused:?}");
    for (key, value) in [
        ("root_baseline_csv", json!(format!("dataset:{hex}/set"))),
        ("root_baseline_csv", json!(format!("dataset:{hex}/set/99"))),
        ("root_baseline_csv", json!(format!("dataset:{hex}/set/../set/3"))),
        ("context_ideas_dirs", json!([format!("dataset:{hex}/set/3")])),
        ("datasets", json!([{"path": format!("dataset:{hex}/set/3")}])),
    ] {
        let refused = daemon.resolve_datasets(&ada, &mut json!({ key: value }));
        assert!(matches!(refused, Err(DaemonError::NoDataset)), "{key}: {refused:?}");
    }
}

#[tokio::test]
async fn hidden_path_of_an_upload_is_taken_as_by_a_run_on_this_host() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon(directory.path(), 1);
    let ada = user("ada", Role::Submit);
    let (digest, file) = archive(&daemon);
    let room = daemon.dataset_room(&ada, 100_000).await.expect("room");
    daemon.store_dataset(digest, file, room).await.expect("stored");
    let hex = digest.hex();
    let upload = daemon.dir.uploads().join(&hex);
    std::fs::create_dir_all(upload.join(".hidden/.x")).expect("made");
    let mut document = json!({
        "datasets": [{ "path": format!("dataset:{hex}/.hidden") }],
        "context_ideas_dirs": [format!("dataset:{hex}/.hidden/.x")],
    });
    daemon.resolve_datasets(&ada, &mut document).expect("both are there");
    let expected = json!({
        "datasets": [{ "path": upload.join(".hidden") }],
        "context_ideas_dirs": [upload.join(".hidden/.x")],
    });
    assert_eq!(document, expected);
    for outside in ["..", ".", "...", ".hidden/.."] {
        let path = format!("dataset:{hex}/{outside}");
        for mut named in
            [json!({ "datasets": [{ "path": path }] }), json!({ "context_ideas_dirs": [path] })]
        {
            let refused = daemon.resolve_datasets(&ada, &mut named);
            assert!(matches!(refused, Err(DaemonError::NoDataset)), "{outside}: {refused:?}");
        }
    }
}

#[tokio::test]
async fn dataset_that_is_removed_and_uploaded_again_has_its_new_user_only() {
    let directory = tempfile::tempdir().expect("a directory");
    let daemon = daemon(directory.path(), 1);
    let [ada, bob] = ["ada", "bob"].map(|name| user(name, Role::Submit));
    for uploader in [&ada, &bob] {
        let (digest, file) = archive(&daemon);
        let room = daemon.dataset_room(uploader, 200_000).await.expect("room");
        daemon.store_dataset(digest, file, room).await.expect("stored");
        assert!(daemon.has_dataset(uploader, digest).await);
        if uploader.name == "bob" {
            assert!(!daemon.has_dataset(&ada, digest).await);
        }
        std::fs::remove_dir_all(daemon.dir.uploads().join(digest.hex())).expect("removed");
    }
}
