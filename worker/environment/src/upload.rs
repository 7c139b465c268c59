//! Uploads to a container as one tar stream that is extracted at `/`.
//!
//! A Docker engine replaces the file or directory at a path by the archive's entry, except that a
//! directory over a directory is merged. So a directory is replaced by an empty file of that name
//! followed by the directory: the file removes the old tree, the directory removes the file, and no
//! process has to run in the container.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::path::Path;

use bytes::{Bytes, BytesMut};
use rollout_store::archive::ArchiveError;
use tokio::sync::mpsc;

use crate::Upload;

/// Modification time of everything that is placed into an environment or build context, seconds
/// since the epoch (2000-01-01). It is fixed so that equal content is equal, and not zero because
/// ZIP tools refuse files from before 1980.
pub const FIXED_MTIME: u64 = 946_684_800;

/// Mode of directories for files of several users, like `/tmp`.
const OPEN_DIR: u32 = 0o1777;

/// Bytes per chunk of the stream.
const CHUNK_BYTES: usize = 64 * 1024;

/// Chunks in the queue from the writer to the connection.
const CHUNK_QUEUE_LENGTH: usize = 4;

/// Writes `uploads` as one archive for a Docker engine. Directories in `in_place` are not replaced by the archive (they
/// are mount points).
pub fn write(uploads: &[Upload], in_place: &BTreeSet<String>, to: impl Write) -> io::Result<()> {
    let mut tar = tar::Builder::new(to);
    for upload in uploads {
        match upload {
            Upload::Dir { path } => directory(&mut tar, relative(path)?, OPEN_DIR)?,
            Upload::FreshDir { path } => fresh_directory(&mut tar, path, OPEN_DIR, in_place)?,
            Upload::File { path, bytes, executable } => {
                file(&mut tar, path, bytes, *executable)?;
            }
            Upload::Archive { path, tar: archive } => {
                fresh_directory(&mut tar, path, 0o755, in_place)?;
                below(&mut tar, relative(path)?, archive)?;
            }
            // The first entry below the directory creates it; an existing directory stays as it is.
            Upload::Merge { path, tar: archive } => {
                below(&mut tar, path.trim_matches('/'), archive)?;
            }
        }
    }
    tar.into_inner()?.flush()
}

/// Writes only what is in files and archives: the caller has made and emptied the directories.
/// Nothing below a directory that a later upload replaces is written.
pub fn write_content(uploads: &[Upload], to: impl Write) -> io::Result<()> {
    let mut tar = tar::Builder::new(to);
    for (at, upload) in uploads.iter().enumerate() {
        let later = uploads.get(at + 1..).unwrap_or_default();
        match upload {
            Upload::Dir { .. } | Upload::FreshDir { .. } => {}
            Upload::File { path, .. }
            | Upload::Archive { path, .. }
            | Upload::Merge { path, .. }
                if fresh_dirs(later).any(|dir| is_at_or_below(path, dir)) => {}
            Upload::File { path, bytes, executable } => {
                file(&mut tar, path, bytes, *executable)?;
            }
            Upload::Archive { path, tar: archive } => {
                below(&mut tar, relative(path)?, archive)?;
            }
            Upload::Merge { path, tar: archive } => {
                below(&mut tar, path.trim_matches('/'), archive)?;
            }
        }
    }
    tar.into_inner()?.flush()
}

/// Whether `path` is `dir` or below it.
fn is_at_or_below(path: &str, dir: &str) -> bool {
    let rest = path.trim_end_matches('/').strip_prefix(dir.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Adds a file at an absolute path.
fn file(
    tar: &mut tar::Builder<impl Write>,
    path: &str,
    bytes: &[u8],
    executable: bool,
) -> io::Result<()> {
    let mode = if executable { 0o755 } else { 0o644 };
    let mut header = header(tar::EntryType::Regular, mode, bytes.len() as u64);
    tar.append_data(&mut header, relative(path)?, bytes)
}

/// The directories that `uploads` replace.
pub fn fresh_dirs(uploads: &[Upload]) -> impl Iterator<Item = &str> {
    uploads.iter().filter_map(|upload| match upload {
        Upload::FreshDir { path } | Upload::Archive { path, .. } => Some(path.as_str()),
        Upload::Dir { .. } | Upload::File { .. } | Upload::Merge { .. } => None,
    })
}

/// A header with the fixed owner and time.
pub fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(FIXED_MTIME);
    header
}

/// Adds a directory entry.
pub fn directory(tar: &mut tar::Builder<impl Write>, path: &str, mode: u32) -> io::Result<()> {
    let mut header = header(tar::EntryType::Directory, mode, 0);
    tar.append_data(&mut header, path, io::empty())
}

fn fresh_directory(
    tar: &mut tar::Builder<impl Write>,
    path: &str,
    mode: u32,
    in_place: &BTreeSet<String>,
) -> io::Result<()> {
    let name = relative(path)?;
    if !in_place.contains(path) {
        let mut remover = header(tar::EntryType::Regular, 0o600, 0);
        tar.append_data(&mut remover, name, io::empty())?;
    }
    directory(tar, name, mode)
}

/// Adds the entries of a deterministic archive below `dir`.
fn below(tar: &mut tar::Builder<impl Write>, dir: &str, archive: &Path) -> io::Result<()> {
    let file = std::fs::File::open(archive)
        .map_err(|error| io::Error::other(ArchiveError::io("open", archive, error)))?;
    let mut entries = tar::Archive::new(io::BufReader::with_capacity(CHUNK_BYTES, file));
    for entry in entries.entries()? {
        let entry = entry?;
        let Some(path) = below_dir(dir, &entry.path()?)? else { continue };
        let kind = entry.header().entry_type();
        let executable = entry.header().mode()? & 0o100 != 0;
        match kind {
            tar::EntryType::Directory => directory(tar, &path, 0o755)?,
            tar::EntryType::Regular | tar::EntryType::Continuous => {
                let mode = if executable { 0o755 } else { 0o644 };
                let size = entry.size();
                tar.append_data(&mut header(kind, mode, size), &path, entry.take(size))?;
            }
            tar::EntryType::Symlink => {
                let target = entry.link_name()?.ok_or_else(|| invalid("a link has no target"))?;
                tar.append_link(&mut header(kind, 0o777, 0), &path, target)?;
            }
            _ => return Err(invalid(&format!("`{path}` is not a file, directory or link"))),
        }
    }
    Ok(())
}

/// The path of an entry below `dir`; `None` for the archive's root.
fn below_dir(dir: &str, name: &Path) -> io::Result<Option<String>> {
    let name = name.to_str().ok_or_else(|| invalid("a name is not UTF-8"))?;
    let name = name.trim_start_matches("./").trim_matches('/');
    let below = || if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") };
    Ok((!name.is_empty() && name != ".").then(below))
}

fn relative(path: &str) -> io::Result<&str> {
    path.strip_prefix('/')
        .map(|path| path.trim_end_matches('/'))
        .filter(|path| !path.is_empty())
        .ok_or_else(|| invalid(&format!("`{path}` is not an absolute path below /")))
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

/// The blocking writer of a chunk stream. Fails when the receiver has been dropped.
#[derive(Debug)]
pub struct ChunkWriter {
    pieces: mpsc::Sender<io::Result<Bytes>>,
    buffer: BytesMut,
}

/// A chunk stream and the writer that fills it, for use on a blocking thread.
pub fn chunk_channel() -> (ChunkWriter, mpsc::Receiver<io::Result<Bytes>>) {
    let (pieces, receiver) = mpsc::channel(CHUNK_QUEUE_LENGTH);
    (ChunkWriter { pieces, buffer: BytesMut::with_capacity(CHUNK_BYTES) }, receiver)
}

impl ChunkWriter {
    /// Runs `write` and reports its result to the receiver.
    pub fn run(mut self, write: impl FnOnce(&mut Self) -> io::Result<()>) -> io::Result<()> {
        let result = write(&mut self).and_then(|()| self.flush());
        if let Err(error) = &result {
            let copy = io::Error::new(error.kind(), error.to_string());
            // A dropped receiver needs no error.
            self.pieces.blocking_send(Err(copy)).ok();
        }
        result
    }
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= CHUNK_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = self.buffer.split().freeze();
        self.pieces.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(uploads: &[Upload], in_place: &[&str]) -> Vec<(String, u8, u32, u64)> {
        let in_place = in_place.iter().map(|p| (*p).to_owned()).collect();
        let mut bytes = Vec::new();
        write(uploads, &in_place, &mut bytes).expect("written");
        let mut archive = tar::Archive::new(bytes.as_slice());
        let entries = archive.entries().expect("readable").map(|entry| {
            let entry = entry.expect("whole");
            let header = entry.header();
            assert_eq!((header.uid().ok(), header.gid().ok()), (Some(0), Some(0)));
            assert_eq!(header.mtime().ok(), Some(FIXED_MTIME));
            let path = entry.path().expect("path").display().to_string();
            let mode = header.mode().expect("mode");
            (path, header.entry_type().as_byte(), mode, entry.size())
        });
        entries.collect()
    }

    #[test]
    fn uploads_become_tar_entries_in_order() {
        let dir = tempfile::tempdir().expect("directory");
        let ours = dir.path().join("tests.tar");
        let mut builder = tar::Builder::new(std::fs::File::create(&ours).expect("created"));
        directory(&mut builder, "sub/", 0o700).expect("added");
        let mut head = header(tar::EntryType::Regular, 0o711, 2);
        let long = format!("sub/{}.sh", "x".repeat(150));
        builder.append_data(&mut head, &long, &b"hi"[..]).expect("added");
        builder.into_inner().expect("finished");

        let uploads = [
            Upload::Dir { path: "/logs/agent".into() },
            Upload::File { path: "/a/b".into(), bytes: "abc".into(), executable: true },
            Upload::FreshDir { path: "/logs/verifier/".into() },
            Upload::Archive { path: "/tests".into(), tar: ours },
        ];
        let long = format!("tests/{long}");
        let expected = [
            ("logs/agent", b'5', 0o1777, 0),
            ("a/b", b'0', 0o755, 3),
            ("logs/verifier", b'0', 0o600, 0),
            ("logs/verifier", b'5', 0o1777, 0),
            ("tests", b'5', 0o755, 0),
            ("tests/sub", b'5', 0o755, 0),
            (long.as_str(), b'0', 0o755, 2),
        ];
        let expected = expected.map(|(path, kind, mode, size)| (path.to_owned(), kind, mode, size));
        assert_eq!(listed(&uploads, &["/tests"]), expected);
        assert_eq!(fresh_dirs(&uploads).collect::<Vec<_>>(), ["/logs/verifier/", "/tests"]);
    }

    #[test]
    fn content_below_directory_replaced_later_is_not_written() {
        let file =
            |path: &str| Upload::File { path: path.into(), bytes: "x".into(), executable: false };
        let uploads = [
            file("/a/old"),
            file("/ab/kept"),
            Upload::FreshDir { path: "/a/".into() },
            file("/a/new"),
        ];
        let mut bytes = Vec::new();
        write_content(&uploads, &mut bytes).expect("written");
        let mut archive = tar::Archive::new(bytes.as_slice());
        let names = archive
            .entries()
            .expect("readable")
            .map(|entry| entry.expect("whole").path().expect("path").display().to_string());
        assert_eq!(names.collect::<Vec<_>>(), ["ab/kept", "a/new"]);
    }

    #[test]
    fn upload_path_not_absolute_is_refused() {
        for path in ["relative", "/", ""] {
            let upload = Upload::Dir { path: path.into() };
            assert!(write(&[upload], &BTreeSet::new(), io::sink()).is_err(), "{path}");
        }
    }

    #[test]
    fn upload_writer_without_reader_fails_with_broken_pipe() {
        let (writer, receiver) = chunk_channel();
        drop(receiver);
        let big =
            Upload::File { path: "/x".into(), bytes: vec![0; 1 << 20].into(), executable: false };
        let error = writer.run(|to| write(&[big], &BTreeSet::new(), to)).expect_err("broken");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
