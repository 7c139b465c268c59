//! Packing of a part of a sandbox's tree as a tar stream, while hostile code may change it.
//!
//! Only regular files, directories and links are packed, links as links. A file that grows, shrinks
//! or becomes unreadable while it is packed keeps the announced length. On any other error the
//! stream ends early with that error, never silently: missing files would look as if they had never
//! existed.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, PipeWriter, Read as _, Write as _};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use rollout_base::supervise::{self, Task};
use rollout_protocol::limits;
use rustix::fs::{Dir, FileType, OFlags};
use rustix::io::Errno;
use tar::{Builder, EntryType, Header};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::unix::pipe;
use tokio::sync::OwnedSemaphorePermit;

use super::tree::{SandboxTreeEntry, handle_at, open_handle, read_names};

/// Names of a directory that are sorted at a time: this bounds the memory for a directory of
/// millions.
const BATCH: usize = 16 * 1024;

/// Starts packing, with the permit for one walk. Dropping the stream ends it.
///
/// # Errors
/// When the system has no pipe left.
pub(super) fn stream(
    found: SandboxTreeEntry,
    walk: OwnedSemaphorePermit,
) -> io::Result<SandboxTarStream> {
    let (reader, writer) = io::pipe()?;
    let reader = pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?;
    let failed = Arc::new(Mutex::new(None));
    let slot = Arc::clone(&failed);
    let task = supervise::spawn("sandbox-pack", async move {
        supervise::blocking(move || {
            let result = pack(&found, &writer);
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = result.err();
            // Closed after the result is set: the reader checks it at the end.
            drop((writer, walk));
        })
        .await;
    });
    Ok(SandboxTarStream { reader, failed, _task: task })
}

/// A tar stream.
#[derive(Debug)]
pub(super) struct SandboxTarStream {
    reader: pipe::Receiver,
    failed: Arc<Mutex<Option<io::Error>>>,
    _task: Task<()>,
}

impl AsyncRead for SandboxTarStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.reader).poll_read(context, buffer))?;
        if buffer.filled().len() == before && buffer.remaining() > 0 {
            let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
            return Poll::Ready(failed.map_or(Ok(()), Err));
        }
        Poll::Ready(Ok(()))
    }
}

fn pack(found: &SandboxTreeEntry, writer: &PipeWriter) -> io::Result<()> {
    let mut archive = Builder::new(io::BufWriter::with_capacity(64 * 1024, writer));
    archive.sparse(false);
    let base = PathBuf::from(&found.name);
    let mut open: Vec<PackLevel> = add(&mut archive, &base, &found.handle)?.into_iter().collect();
    while let Some(level) = open.last_mut() {
        let Some(name) = level.next()? else {
            open.pop();
            continue;
        };
        let path = level.path.join(&name);
        let handle = match handle_at(level.dir()?, &name) {
            // Removed since it was listed.
            Err(Errno::NOENT) => continue,
            other => other?,
        };
        let below = add(&mut archive, &path, &handle)?;
        // One level more than a reader accepts, so that the reader detects the excess.
        if open.len() <= limits::ARCHIVE_DEPTH {
            open.extend(below);
        }
    }
    archive.into_inner()?.flush()
}

/// A directory that is being packed.
struct PackLevel {
    path: PathBuf,
    listing: Dir,
    /// Names already read, the next one last.
    ready: Vec<OsString>,
}

impl PackLevel {
    fn dir(&self) -> rustix::io::Result<BorrowedFd<'_>> {
        self.listing.fd()
    }

    fn next(&mut self) -> io::Result<Option<OsString>> {
        if self.ready.is_empty() {
            self.ready = read_names(&mut self.listing, BATCH)?;
            self.ready.sort_unstable_by(|a, b| b.cmp(a));
        }
        Ok(self.ready.pop())
    }
}

type TarBuilder<'a> = Builder<io::BufWriter<&'a PipeWriter>>;

/// Adds one entry; returns a directory that is to be entered.
fn add(
    archive: &mut TarBuilder<'_>,
    path: &Path,
    handle: &OwnedFd,
) -> io::Result<Option<PackLevel>> {
    let stat = rustix::fs::fstat(handle)?;
    let mut header = Header::new_gnu();
    header.set_mode(stat.st_mode & 0o7777);
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {
            let file = open_handle(handle, OFlags::RDONLY)?;
            let size = u64::try_from(stat.st_size).unwrap_or(0);
            header.set_size(size);
            header.set_entry_type(EntryType::Regular);
            let padded = File::from(file).chain(io::repeat(0)).take(size);
            archive.append_data(&mut header, path, padded)?;
        }
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(handle, "", Vec::new())?;
            header.set_size(0);
            header.set_entry_type(EntryType::Symlink);
            let target = OsString::from_vec(target.into_bytes());
            // A target that does not fit into a header is no loss: links are not followed anyway.
            if let Err(error) = archive.append_link(&mut header, path, &target) {
                tracing::debug!(%error, ?path, "cannot pack a link");
            }
        }
        FileType::Directory => {
            let dir = open_handle(handle, OFlags::RDONLY | OFlags::DIRECTORY)?;
            header.set_size(0);
            header.set_entry_type(EntryType::Directory);
            archive.append_data(&mut header, path.join(""), io::empty())?;
            let listing = Dir::new(dir)?;
            return Ok(Some(PackLevel { path: path.to_path_buf(), listing, ready: Vec::new() }));
        }
        _ => {}
    }
    Ok(None)
}
