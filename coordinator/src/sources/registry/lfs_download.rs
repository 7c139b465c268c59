//! Download of Git LFS files without credentials. The program `git-lfs` would connect to the loopback
//! interface without a proxy if its server says so.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};

use rollout_protocol::digest::{Digest, DigestHasher};
use rollout_protocol::limits::BUNDLE_BYTES;
use serde::Deserialize;
use serde_json::json;
use ureq::Agent;
use ureq::http::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue};

use super::git::GitError;
use super::http;
use super::lfs::ReplaceError;
use super::remote::RemoteAccess;

/// Type of the documents of the API.
const MEDIA_TYPE: &str = "application/vnd.git-lfs+json";

/// Largest answer about one file.
const ANSWER_BYTES: u64 = 1024 * 1024;

/// Bytes read at once.
const BUFFER_BYTES: usize = 64 * 1024;

/// A client of the LFS server of a repository.
pub(super) struct LfsDownload<'a> {
    remote: &'a RemoteAccess,
    agent: Agent,
}

/// The file of a pointer.
#[derive(Debug, PartialEq, Eq)]
struct LfsFile {
    sha256: String,
    size: u64,
}

#[derive(Deserialize)]
struct BatchAnswer {
    objects: Vec<BatchObject>,
}

#[derive(Deserialize)]
struct BatchObject {
    actions: Option<BatchActions>,
}

#[derive(Deserialize)]
struct BatchActions {
    download: Option<BatchDownload>,
}

#[derive(Deserialize)]
struct BatchDownload {
    href: String,
    #[serde(default)]
    header: BTreeMap<String, String>,
}

impl<'a> LfsDownload<'a> {
    pub(super) fn new(remote: &'a RemoteAccess, agent: Agent) -> Self {
        Self { remote, agent }
    }

    /// Writes the file of a pointer.
    pub(super) fn get(&self, pointer: &[u8], to: &mut File) -> Result<(), ReplaceError> {
        let failed = |reason: String| ReplaceError::Source(self.remote.transfer_error(reason));
        let file = LfsFile::parse(pointer).ok_or_else(|| failed("a bad LFS pointer".to_owned()))?;
        let request = |error: &ureq::Error| failed(format!("Git LFS: {}", http::reason(error)));
        let place = self.place(&file).map_err(|error| request(&error))?;
        let place = place.ok_or_else(|| {
            ReplaceError::Source(GitError::Failed(format!(
                "Git LFS: the server has no file {}",
                file.sha256
            )))
        })?;
        let mut get = self.agent.get(&place.href);
        for (name, value) in &place.header {
            let name = name.parse::<HeaderName>();
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
                get = get.header(name, value);
            }
        }
        let response = get.call().map_err(|error| request(&error))?;
        let mut body = response.into_body().into_with_config().limit(BUNDLE_BYTES).reader();
        let (mut hasher, mut left) = (DigestHasher::default(), file.size);
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let read = body.read(&mut buffer).map_err(|error| failed(error.to_string()))?;
            if read == 0 {
                break;
            }
            left = left.checked_sub(read as u64).ok_or_else(|| {
                failed("Git LFS: a file is longer than its pointer says".to_owned())
            })?;
            hasher.update(&buffer[..read]);
            to.write_all(&buffer[..read]).map_err(ReplaceError::File)?;
        }
        let is_whole = left == 0 && hasher.finish().hex() == file.sha256;
        is_whole.then_some(()).ok_or_else(|| failed("Git LFS: a file is not whole".to_owned()))
    }

    /// The place of a file, if the server has it.
    fn place(&self, file: &LfsFile) -> Result<Option<BatchDownload>, ureq::Error> {
        let url = self.remote.origin().url().trim_end_matches('/');
        let suffix = if url.ends_with(".git") { "" } else { ".git" };
        let body = json!({
            "operation": "download",
            "transfers": ["basic"],
            "objects": [{ "oid": file.sha256, "size": file.size }],
        });
        let mut response = self
            .agent
            .post(format!("{url}{suffix}/info/lfs/objects/batch"))
            .header(ACCEPT, MEDIA_TYPE)
            .header(CONTENT_TYPE, MEDIA_TYPE)
            .send(body.to_string())?;
        let bytes = response.body_mut().with_config().limit(ANSWER_BYTES).read_to_vec()?;
        let answer: Option<BatchAnswer> = serde_json::from_slice(&bytes).ok();
        let object = answer.and_then(|answer| answer.objects.into_iter().next());
        Ok(object.and_then(|object| object.actions?.download))
    }
}

impl LfsFile {
    /// Reads a pointer.
    fn parse(pointer: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(pointer).ok()?;
        let value = |key: &str| {
            text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')).map(str::trim)
        };
        let digest: Digest = value("oid")?.parse().ok()?;
        let size = value("size")?.parse().ok().filter(|size| *size <= BUNDLE_BYTES)?;
        Some(Self { sha256: digest.hex(), size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointer_has_the_digest_and_size_of_its_file() {
        let sha256 = "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393";
        let pointer = |oid: &str, size: &str| {
            format!("version https://git-lfs.github.com/spec/v1\noid {oid}\nsize {size}\n")
        };
        let found = LfsFile::parse(pointer(&format!("sha256:{sha256}"), "12345").as_bytes());
        assert_eq!(found, Some(LfsFile { sha256: sha256.to_owned(), size: 12345 }));
        for (oid, size) in [("sha256:12", "1"), (sha256, "1"), (&format!("sha256:{sha256}"), "-1")]
        {
            assert_eq!(LfsFile::parse(pointer(oid, size).as_bytes()), None, "{oid} {size}");
        }
    }
}
