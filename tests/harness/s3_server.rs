//! An S3 server in the test process, on a free port, with its objects in a directory.
//!
//! It is `s3s-fs` with corrections: a path that is a directory is no object, conditional writes are
//! atomic, and a bucket has to exist.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use rollout_base::supervise;
use s3s::auth::SimpleAuth;
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CompleteMultipartUploadInput,
    CompleteMultipartUploadOutput, CopyObjectInput, CopyObjectOutput, CreateMultipartUploadInput,
    CreateMultipartUploadOutput, DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput,
    DeleteObjectsOutput, GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput,
    ListObjectsV2Input, ListObjectsV2Output, PutObjectInput, PutObjectOutput, UploadPartInput,
    UploadPartOutput,
};
use s3s::service::S3ServiceBuilder;
use s3s::{S3, S3Request, S3Response, S3Result, s3_error};
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, oneshot};

/// Access key of the server.
pub const S3_KEY_ID: &str = "rollout-test-key";

/// Secret of the access key.
pub const S3_SECRET: &str = "rollout-test-secret";

/// Name of its bucket.
pub const S3_BUCKET: &str = "bucket";

/// Credentials of a server.
#[derive(Debug)]
pub(crate) struct S3Key {
    /// Access key.
    pub(crate) id: String,
    /// Secret of the access key.
    pub(crate) secret: String,
}

impl Default for S3Key {
    fn default() -> Self {
        Self { id: S3_KEY_ID.to_owned(), secret: S3_SECRET.to_owned() }
    }
}

/// A running server. Dropped, it stops and removes its objects.
#[derive(Debug)]
pub struct S3Server {
    directory: TempDir,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl S3Server {
    /// Starts a server with an empty bucket.
    ///
    /// # Panics
    /// When the system refuses a port, a directory or a thread.
    pub fn start() -> Self {
        let directory = TempDir::new().expect("a directory");
        std::fs::create_dir(directory.path().join(S3_BUCKET)).expect("creatable");
        let root = directory.path().to_owned();
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel();
        let thread = supervise::thread("s3-server", move || {
            run(&root, listener, &S3Key::default(), async { drop(stopped.await) });
        })
        .expect("a thread");
        Self { directory, address, stop: Some(stop), thread: Some(thread) }
    }

    /// URL of a store below `prefix`.
    pub fn store_url(&self, prefix: &str) -> String {
        self.store_url_at(self.address.port(), prefix)
    }

    /// URL of a store below `prefix`, through a proxy at another port.
    pub fn store_url_at(&self, port: u16, prefix: &str) -> String {
        store_url(port, prefix)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The directory of its bucket; an object's path in it is its key.
    pub fn bucket(&self) -> PathBuf {
        self.directory.path().join(S3_BUCKET)
    }

    /// Variables with which programs can use it.
    pub const fn environment() -> [(&'static str, &'static str); 3] {
        [
            ("AWS_ACCESS_KEY_ID", S3_KEY_ID),
            ("AWS_SECRET_ACCESS_KEY", S3_SECRET),
            ("AWS_EC2_METADATA_DISABLED", "true"),
        ]
    }
}

/// URL of a store below `prefix` in the bucket of the server at a port.
pub(crate) fn store_url(port: u16, prefix: &str) -> String {
    format!("s3://{S3_BUCKET}/{prefix}?endpoint=http%3A%2F%2F127.0.0.1%3A{port}")
}

/// Serves the buckets in a directory until `stopped` is ready.
pub(crate) fn run(
    root: &Path,
    listener: std::net::TcpListener,
    key: &S3Key,
    stopped: impl Future<Output = ()>,
) {
    listener.set_nonblocking(true).expect("a socket");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        tokio::select! {
            () = stopped => {}
            () = serve(root.to_owned(), listener, key) => {}
        }
    });
    runtime.shutdown_background();
}

impl Drop for S3Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic was printed, and the requests of the test failed.
            drop(thread.join());
        }
    }
}

async fn serve(root: PathBuf, listener: std::net::TcpListener, key: &S3Key) {
    let files = FileSystem::new(&root).expect("a directory");
    let mut service =
        S3ServiceBuilder::new(CorrectedFiles { files, root, writes: Mutex::default() });
    service.set_auth(SimpleAuth::from_single(key.id.as_str(), key.secret.as_str()));
    let service = service.build();
    let listener = TcpListener::from_std(listener).expect("a socket");
    let http = Builder::new(TokioExecutor::new());
    let mut connections: Vec<supervise::Task<_>> = Vec::new();
    loop {
        let Ok((socket, _)) = listener.accept().await else { continue };
        let connection = http.serve_connection(TokioIo::new(socket), service.clone()).into_owned();
        connections.retain(|connection| !connection.is_finished());
        connections.push(supervise::spawn("s3-connection", connection));
    }
}

/// `s3s-fs` with corrections.
struct CorrectedFiles {
    files: FileSystem,
    root: PathBuf,
    /// Held by writes with a condition.
    writes: Mutex<()>,
}

impl CorrectedFiles {
    fn check_bucket(&self, bucket: &str) -> S3Result<()> {
        if self.root.join(bucket).is_dir() { Ok(()) } else { Err(s3_error!(NoSuchBucket)) }
    }

    /// Checks that the path of a key is not a directory, and is not below a file.
    fn check_is_object(&self, bucket: &str, key: &str) -> S3Result<()> {
        self.check_bucket(bucket)?;
        match std::fs::symlink_metadata(self.root.join(bucket).join(key)) {
            Ok(found) if found.is_dir() => Err(s3_error!(NoSuchKey)),
            Err(error) if error.kind() == ErrorKind::NotADirectory => Err(s3_error!(NoSuchKey)),
            _ => Ok(()),
        }
    }
}

macro_rules! pass_on {
    ($($name:ident: $input:ty => $output:ty;)*) => {
        #[async_trait::async_trait]
        impl S3 for CorrectedFiles {
            $(async fn $name(&self, request: S3Request<$input>) -> S3Result<S3Response<$output>> {
                self.files.$name(request).await
            })*

            async fn get_object(
                &self,
                request: S3Request<GetObjectInput>,
            ) -> S3Result<S3Response<GetObjectOutput>> {
                self.check_is_object(&request.input.bucket, &request.input.key)?;
                self.files.get_object(request).await
            }

            async fn head_object(
                &self,
                request: S3Request<HeadObjectInput>,
            ) -> S3Result<S3Response<HeadObjectOutput>> {
                self.check_is_object(&request.input.bucket, &request.input.key)?;
                self.files.head_object(request).await
            }

            async fn put_object(
                &self,
                request: S3Request<PutObjectInput>,
            ) -> S3Result<S3Response<PutObjectOutput>> {
                self.check_bucket(&request.input.bucket)?;
                let conditional = request.input.if_none_match.is_some();
                let _turn = if conditional { Some(self.writes.lock().await) } else { None };
                self.files.put_object(request).await
            }
        }
    };
}

pass_on! {
    abort_multipart_upload: AbortMultipartUploadInput => AbortMultipartUploadOutput;
    complete_multipart_upload: CompleteMultipartUploadInput => CompleteMultipartUploadOutput;
    copy_object: CopyObjectInput => CopyObjectOutput;
    create_multipart_upload: CreateMultipartUploadInput => CreateMultipartUploadOutput;
    delete_object: DeleteObjectInput => DeleteObjectOutput;
    delete_objects: DeleteObjectsInput => DeleteObjectsOutput;
    list_objects_v2: ListObjectsV2Input => ListObjectsV2Output;
    upload_part: UploadPartInput => UploadPartOutput;
}
