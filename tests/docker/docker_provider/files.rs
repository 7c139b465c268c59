//! File transfer: paths that the engine replaces, and hostile content for readers.

use std::time::Instant;

use rollout_environment::{FailureKind, Upload};
use tokio::io::AsyncReadExt as _;

use crate::docker_provider::fixture::{DockerFixture, WAIT_DEADLINE, destroy, output, run};

fn empty_dir(path: &str) -> Upload {
    Upload::FreshDir { path: path.to_owned() }
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_directory_replaces_anything() {
    let Some(lab) = DockerFixture::open().await else { return };
    let image = lab
        .build("RUN mkdir -p /tests/old/deep /data/in && touch /tests/old/deep/f /data/in/f\nVOLUME /data")
        .await;
    // Mount points cannot be replaced, only emptied, also before the start.
    let environment =
        lab.create(image.clone(), vec![empty_dir("/data"), empty_dir("/tests")]).await;
    let container = environment.as_ref();
    assert_eq!(output(container, "ls -A /data /tests").await, "/data:\n\n/tests:\n");

    output(container, "echo x > /data/x; mkdir -p /data/.y/z; rmdir /tests; ln -s /etc /tests")
        .await;
    output(container, "echo file > /logs; mkdir -p /app/a; ln -s /app /app/a/loop").await;
    let tar = lab.archive(&[("test.sh", b"new"), ("sub/x", b"y")]);
    let uploads = vec![
        empty_dir("/logs"),
        empty_dir("/app"),
        Upload::Archive { path: "/data".into(), tar: tar.clone() },
        Upload::Archive { path: "/tests".into(), tar },
    ];
    container.copy_to(uploads).await.unwrap_or_else(|f| panic!("{}", f.chain()));
    let listing = output(container, "ls -A /logs /app /data /tests; cat /tests/test.sh").await;
    assert_eq!(listing, "/app:\n\n/data:\nsub\ntest.sh\n\n/logs:\n\n/tests:\nsub\ntest.sh\nnew");
    assert_eq!(run(container, "test -L /tests || test -e /etc/test.sh").await.0, 1);
    destroy(environment).await;
    lab.remove_image(&image).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn upload_of_large_archive_is_streamed() {
    let Some(lab) = DockerFixture::open().await else { return };
    let environment = lab.plain().await;
    let big = vec![7; 64 << 20];
    let long = format!("{}/{}", "d".repeat(120), "f".repeat(150));
    let tar = lab.archive(&[("big", &big), (long.as_str(), b"l")]);
    drop(big);
    let uploads = vec![Upload::Archive { path: "/opt/data".into(), tar }];
    environment.copy_to(uploads.clone()).await.unwrap_or_else(|f| panic!("{}", f.chain()));
    let script = format!("wc -c < /opt/data/big; cat /opt/data/{long}");
    assert_eq!(output(environment.as_ref(), &script).await, "67108864\nl");
    environment.destroy().await.expect("destroyed");
    // The engine answers before it has read the whole upload.
    let failure = environment.copy_to(uploads).await.expect_err("it is gone");
    assert_eq!(failure.kind, FailureKind::Gone, "{}", failure.chain());
}

#[tokio::test(flavor = "multi_thread")]
async fn download_of_hostile_logs_is_streamed_and_can_stop() {
    let Some(lab) = DockerFixture::open().await else { return };
    let environment = lab.create(lab.base(), vec![Upload::Dir { path: "/logs".into() }]).await;
    let container = environment.as_ref();
    output(
        container,
        "cd /logs && ln -s /etc/passwd a-link && mkfifo b-fifo && mknod c-zero c 1 5 && \
         ln -s loop loop && touch \"$(printf 'd\\nnew\\033line')\" && ln a-link hard && \
         truncate -s 100G sparse && mkdir -m 000 shut && echo x > shut/x",
    )
    .await;
    let mut stream = container.copy_from("/logs").await.expect("readable").expect("there");
    let mut start = vec![0; 1 << 20];
    stream.read_exact(&mut start).await.expect("a beginning");
    let mut archive = tar::Archive::new(start.as_slice());
    let entries = archive.entries().expect("entries").map_while(Result::ok);
    let kinds: Vec<_> = entries.map(|e| e.header().entry_type().as_byte()).collect();
    for kind in [b'2', b'6', b'3'] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    // The sparse file would be 100 GB of zeros: dropping the stream must end the transfer.
    drop(stream);
    let began = Instant::now();
    destroy(environment).await;
    assert!(began.elapsed() < WAIT_DEADLINE);
}

#[tokio::test(flavor = "multi_thread")]
async fn symlink_as_parent_of_upload_does_not_escape() {
    let Some(lab) = DockerFixture::open().await else { return };
    let environment = lab.plain().await;
    let container = environment.as_ref();
    output(container, "rm -rf /logs; ln -s /etc /logs").await;
    let uploads = vec![Upload::Dir { path: "/logs".into() }, empty_dir("/logs/verifier")];
    container.copy_to(uploads).await.unwrap_or_else(|f| panic!("{}", f.chain()));
    assert_eq!(run(container, "test -L /logs || test -e /etc/verifier").await.0, 1);
    output(container, "test -d /logs/verifier").await;
    destroy(environment).await;
}
