//! Uploads whose request goes before they are stored.

use std::future::{Future, poll_fn};
use std::io::Write as _;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use rollout_protocol::digest::Digest;
use tempfile::NamedTempFile;

use super::{daemon, user};
use crate::daemon::{Daemon, Role};

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
