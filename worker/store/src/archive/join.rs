//! Concatenation of several trusted archives.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read as _, Write};
use std::path::{Path, PathBuf};

use rollout_base::supervise;
use rollout_protocol::digest::{Digest, DigestHasher};

use super::ArchiveError;

/// Size of the end mark of every archive that Rollout makes.
const END_BYTES: u64 = 1024;

/// Bytes copied at once.
const BUFFER_BYTES: usize = 64 * 1024;

/// Writes the members of trusted archives, one after the other, into a new archive at `to`. Their
/// names should differ. Returns the digest of the new archive.
///
/// # Errors
/// Errors of the local disk.
pub async fn join(archives: Vec<PathBuf>, to: &Path) -> Result<Digest, ArchiveError> {
    let to = to.to_owned();
    supervise::blocking(move || {
        write(&archives, &to).map_err(|error| ArchiveError::io("join archives to", &to, error))
    })
    .await
}

fn write(archives: &[PathBuf], to: &Path) -> io::Result<Digest> {
    let file = BufWriter::with_capacity(BUFFER_BYTES, File::create_new(to)?);
    let mut writer = HashingWriter { file, hasher: DigestHasher::default() };
    for archive in archives {
        let file = File::open(archive)?;
        let members = file.metadata()?.len().saturating_sub(END_BYTES);
        let mut members = BufReader::with_capacity(BUFFER_BYTES, file.take(members));
        io::copy(&mut members, &mut writer)?;
    }
    writer.write_all(&[0; END_BYTES as usize])?;
    writer.flush()?;
    Ok(writer.hasher.finish())
}

/// A file whose digest is computed while it is written.
struct HashingWriter {
    file: BufWriter<File>,
    hasher: DigestHasher,
}

impl Write for HashingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
