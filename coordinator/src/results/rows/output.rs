//! Output of rows: a file that is written atomically, or standard output.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::{RowsError, stop};
use crate::results::files::FileError;
use crate::results::files::durable::{readable_by_all, sync_dir};

/// Size of the write buffer.
const BUFFER_BYTES: usize = 64 * 1024;

/// An open output. As [`Write`] it is for encoders that need a writer.
pub(in crate::results) struct RowOutput {
    target: BufWriter<OutputTarget>,
    /// Whether the reader closed the pipe, which is no error.
    closed: bool,
}

enum OutputTarget {
    Stdout(io::Stdout),
    File { path: PathBuf, file: NamedTempFile },
}

impl RowOutput {
    /// Opens a temporary file beside `path`, or standard output. [`finish`](Self::finish) replaces
    /// `path`.
    pub(in crate::results) fn open(path: Option<PathBuf>) -> Result<Self, RowsError> {
        let target = match path {
            None => OutputTarget::Stdout(io::stdout()),
            Some(path) if path.is_dir() => return Err(RowsError::OutputExists(path)),
            Some(path) => {
                let parent = parent(&path);
                let file = tempfile::Builder::new()
                    .prefix(".new-")
                    .tempfile_in(parent)
                    .map_err(FileError::with_context("create a file in", parent))?;
                OutputTarget::File { path, file }
            }
        };
        Ok(Self { target: BufWriter::with_capacity(BUFFER_BYTES, target), closed: false })
    }

    /// Writes bytes.
    pub(in crate::results) fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), RowsError> {
        let written = if self.closed { Ok(()) } else { self.target.write_all(bytes) };
        self.handle_closed(written)
    }

    /// Completes the output. Returns its path.
    pub(in crate::results) fn finish(mut self) -> Result<Option<PathBuf>, RowsError> {
        let flushed = if self.closed { Ok(()) } else { self.target.flush() };
        self.handle_closed(flushed)?;
        let (to, _nothing_left) = self.target.into_parts();
        let OutputTarget::File { path, file } = to else { return Ok(None) };
        (readable_by_all(file.as_file()).and_then(|()| file.as_file().sync_all()))
            .map_err(FileError::with_context("write", &path))?;
        file.persist(&path)
            .map_err(|error| error.error)
            .map_err(FileError::with_context("replace", &path))?;
        sync_dir(parent(&path))?;
        Ok(Some(path))
    }

    fn handle_closed(&mut self, written: io::Result<()>) -> Result<(), RowsError> {
        match written {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            Err(error) => {
                let path = match self.target.get_ref() {
                    OutputTarget::Stdout(_) => Path::new("standard output"),
                    OutputTarget::File { path, .. } => path,
                };
                Err(FileError::with_context("write to", path)(error).into())
            }
        }
    }
}

impl Write for RowOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.target.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.target.flush()
    }
}

impl Write for OutputTarget {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        stop::check()?;
        match self {
            Self::Stdout(out) => out.write(bytes),
            Self::File { file, .. } => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(out) => out.flush(),
            Self::File { file, .. } => file.flush(),
        }
    }
}

/// The directory of a file.
pub(in crate::results) fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
