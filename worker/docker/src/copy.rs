//! Files copied into and out of a container.

use std::collections::BTreeSet;
use std::sync::Arc;

use bollard::query_parameters::{DownloadFromContainerOptions, UploadToContainerOptions};
use futures_util::{StreamExt as _, TryStreamExt as _};
use rollout_base::supervise;
use rollout_environment::{ByteStream, Failure, FailureKind, Upload, upload};
use tokio_util::io::StreamReader;

use super::container::Container;
use super::failure::{has_status, says};

/// Engine errors for a path through something that is not a directory.
const NOT_A_DIRECTORY_ERRORS: [&str; 3] =
    [": not a directory", "too many links", "too many levels of symbolic links"];

/// Endings of engine errors when something blocks the target of an upload.
const BLOCKED_PATH_ERRORS: [&str; 5] = [
    ": not a directory",
    ": is a directory",
    ": too many levels of symbolic links",
    ": no such file or directory",
    ": file exists",
];

impl Container {
    /// Places files. A directory to be replaced that turns out to be a mount point cannot be
    /// removed. The engine has emptied it by the time it reports that, so the upload is repeated
    /// with the directory left in place.
    pub(super) async fn copy_to(&self, uploads: Vec<Upload>) -> Result<(), Failure> {
        self.check_storage_exceeded()?;
        let uploads = Arc::new(uploads);
        let mut in_place = BTreeSet::new();
        loop {
            match self.put(Arc::clone(&uploads), in_place.clone()).await {
                Ok(()) => return Ok(()),
                Err(failure) => {
                    let repeat = busy_mount(&failure, &uploads).map(|dir| in_place.insert(dir));
                    if repeat != Some(true) {
                        return Err(self.attribute_full_disk(blocked(failure, &uploads)).await);
                    }
                }
            }
        }
    }

    async fn put(
        &self,
        uploads: Arc<Vec<Upload>>,
        in_place: BTreeSet<String>,
    ) -> Result<(), Failure> {
        let docker = self.client.slow().await?;
        let (writer, mut pieces) = upload::chunk_channel();
        let body = futures_util::stream::poll_fn(move |cx| pieces.poll_recv(cx));
        let options = UploadToContainerOptions {
            path: "/".to_owned(),
            ..UploadToContainerOptions::default()
        };
        let sending = docker.upload_to_container(
            &self.engine_id,
            Some(options),
            bollard::body_try_stream(body),
        );
        let writing =
            supervise::blocking(move || writer.run(|to| upload::write(&uploads, &in_place, to)));
        let (sent, written) = tokio::join!(sending, writing);
        match (sent, written) {
            (_, Err(error)) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                let what = format!("cannot pack files for the container {}", self.name);
                Err(Failure::local(FailureKind::Bug, what, error))
            }
            (Err(error), _) => Err(self.failure("cannot place files", error)),
            (Ok(()), _) => Ok(()),
        }
    }

    /// Reads a file or directory as a tar stream; `None` when there is nothing.
    pub(super) async fn copy_from(&self, path: &str) -> Result<Option<ByteStream>, Failure> {
        let docker = self.client.slow().await?;
        let options = DownloadFromContainerOptions { path: path.to_owned() };
        let stream = docker.download_from_container(&self.engine_id, Some(options));
        // The answer's status arrives with the first chunk.
        let mut stream = Box::pin(stream.peekable());
        match stream.as_mut().peek().await {
            Some(Err(error)) if has_status(error, 404) && !says(error, "No such container") => {
                return Ok(None);
            }
            // A file or a link loop is where a directory would have to be.
            Some(Err(error)) if NOT_A_DIRECTORY_ERRORS.iter().any(|text| says(error, text)) => {
                return Ok(None);
            }
            Some(Err(_)) => {
                let error = stream.next().await.and_then(Result::err);
                let error = error.expect("an error was seen and is still there");
                return Err(self.failure(&format!("cannot read {path}"), error));
            }
            Some(Ok(_)) | None => {}
        }
        Ok(Some(Box::new(StreamReader::new(stream.map_err(std::io::Error::other)))))
    }
}

/// The failure. It is the environment's own fault when something in it is at or above a path of
/// `uploads`.
fn blocked(mut failure: Failure, uploads: &[Upload]) -> Failure {
    let is_blocked = || {
        let text = failure.message.trim_end().trim_end_matches(')');
        let text = BLOCKED_PATH_ERRORS.iter().find_map(|error| text.strip_suffix(error))?;
        let path = text.rsplit_once(' ')?.1.trim_matches('/');
        let leads_through = |place: &str| {
            let place = place.trim_matches('/');
            let at_the_engine = format!("{path}/").contains(&format!("/{place}/"));
            place.starts_with(path) || path.starts_with(place) || at_the_engine
        };
        let mut places = uploads.iter().map(|upload| match upload {
            Upload::FreshDir { path }
            | Upload::Dir { path }
            | Upload::File { path, .. }
            | Upload::Archive { path, .. }
            | Upload::Merge { path, .. } => path.as_str(),
        });
        places.any(leads_through).then_some(())
    };
    if failure.kind == FailureKind::Service && is_blocked().is_some() {
        failure.kind = FailureKind::Unusable;
    }
    failure
}

/// The directory of `uploads` that the engine could not replace because something is mounted there
/// or below.
fn busy_mount(failure: &Failure, uploads: &[Upload]) -> Option<String> {
    let busy = failure.message.strip_suffix(": device or resource busy")?;
    let busy = busy.rsplit_once("unlinkat ")?.1.trim_start_matches('/');
    let is_below = |dir: &str| {
        let dir = dir.trim_matches('/');
        busy.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    upload::fresh_dirs(uploads).find(|path| is_below(path)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_mount_in_engine_error_is_found() {
        let fresh = |path: &str| Upload::FreshDir { path: path.to_owned() };
        let uploads = [fresh("/test"), fresh("/tests"), fresh("/data/")];
        let busy = |path: &str| {
            let text = format!(
                "cannot place files in the container x: Error processing tar file(exit status 1): \
                 unlinkat /{path}: device or resource busy"
            );
            busy_mount(&Failure::new(FailureKind::Service, text), &uploads)
        };
        assert_eq!(busy("/tests").as_deref(), Some("/tests"));
        assert_eq!(busy("/tests/a/b").as_deref(), Some("/tests"));
        assert_eq!(busy("/data").as_deref(), Some("/data/"));
        assert_eq!(busy("/other"), None);
        let other = Failure::new(FailureKind::Service, "disk on fire");
        assert_eq!(busy_mount(&other, &uploads), None);
    }

    #[test]
    fn upload_path_blocked_makes_environment_unusable() {
        let file = Upload::File { path: "/app/in/a".into(), bytes: "".into(), executable: false };
        let uploads = [file, Upload::FreshDir { path: "/logs/verifier".into() }];
        let kind = |path: &str, error: &str| {
            let text = format!(
                "cannot place files in the container x: Error processing tar file(exit status 1): open \
                 {path}: {error}"
            );
            blocked(Failure::new(FailureKind::Service, text), &uploads).kind
        };
        for (path, error, expected) in [
            ("/logs/verifier", "too many levels of symbolic links", FailureKind::Unusable),
            ("/app", "not a directory", FailureKind::Unusable),
            ("/app/in", "file exists", FailureKind::Unusable),
            ("/var/lib/docker/x/merged/logs/verifier", "not a directory", FailureKind::Unusable),
            ("/var/lib/docker/x/merged/app/in/a", "not a directory", FailureKind::Unusable),
            ("/var/lib/docker/tmp/x", "no such file or directory", FailureKind::Service),
            ("/app/in", "input/output error", FailureKind::Service),
        ] {
            assert_eq!(kind(path, error), expected, "{path}: {error}");
        }
    }
}
