//! Files into and out of a container.

use std::collections::BTreeSet;
use std::sync::Arc;

use bollard::query_parameters::{DownloadFromContainerOptions, UploadToContainerOptions};
use futures_util::{StreamExt as _, TryStreamExt as _};
use tokio_util::io::StreamReader;

use super::container::Container;
use super::failure::{has_status, says};
use super::upload;
use crate::environment::{ByteStream, Failure, FailureKind, Upload};
use crate::supervise;

impl Container {
    /// Places files. A directory that is made anew and turns out to be a mount point cannot be
    /// removed: the engine has emptied it when it says so, and the upload is repeated with the
    /// directory left in place.
    pub(super) async fn copy_to(&self, uploads: Vec<Upload>) -> Result<(), Failure> {
        self.within_storage()?;
        let uploads = Arc::new(uploads);
        let mut in_place = BTreeSet::new();
        loop {
            match self.put(Arc::clone(&uploads), in_place.clone()).await {
                Ok(()) => return Ok(()),
                Err(failure) => {
                    let Some(mount) = busy_mount(&failure, &uploads) else { return Err(failure) };
                    if !in_place.insert(mount) {
                        return Err(failure);
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
        let (writer, mut pieces) = upload::pieces();
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
                let what = format!("packing files for the container {}", self.name);
                Err(Failure::new(FailureKind::Bug, what).because(error))
            }
            (Err(error), _) => Err(self.failure("placing files", error)),
            (Ok(()), _) => Ok(()),
        }
    }

    /// Reads a file or directory as a tar stream; `None` when there is nothing.
    pub(super) async fn copy_from(&self, path: &str) -> Result<Option<ByteStream>, Failure> {
        let docker = self.client.slow().await?;
        let options = DownloadFromContainerOptions { path: path.to_owned() };
        let stream = docker.download_from_container(&self.engine_id, Some(options));
        // The answer's status comes with the first piece.
        let mut stream = Box::pin(stream.peekable());
        match stream.as_mut().peek().await {
            Some(Err(error)) if has_status(error, 404) && !says(error, "No such container") => {
                return Ok(None);
            }
            Some(Err(_)) => {
                let error = stream.next().await.and_then(Result::err);
                let error = error.expect("an error was seen and is still there");
                return Err(self.failure(&format!("reading {path}"), error));
            }
            Some(Ok(_)) | None => {}
        }
        Ok(Some(Box::new(StreamReader::new(stream.map_err(std::io::Error::other)))))
    }
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
    upload::made_anew(uploads).find(|path| is_below(path)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busy_mount_is_found_in_the_engines_words() {
        let fresh = |path: &str| Upload::FreshDir { path: path.to_owned() };
        let uploads = [fresh("/test"), fresh("/tests"), fresh("/data/")];
        let busy = |path: &str| {
            let text = format!(
                "placing files in the container x: Error processing tar file(exit status 1): \
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
}
