//! Concatenation of several trusted archives.

use std::fs::File;
use std::io::{self, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};

use super::ArchiveError;
use crate::supervise;

/// Size of the end mark of every archive that Rollout makes.
const END_BYTES: u64 = 1024;

/// Writes the members of trusted archives, one after the other, into a new archive at `to`. Their
/// names should differ.
///
/// # Errors
/// Errors of the local disk.
pub async fn join(archives: Vec<PathBuf>, to: &Path) -> Result<(), ArchiveError> {
    let to = to.to_owned();
    supervise::blocking(move || {
        write(&archives, &to).map_err(|error| ArchiveError::io("join archives to", &to, error))
    })
    .await
}

fn write(archives: &[PathBuf], to: &Path) -> io::Result<()> {
    let mut writer = BufWriter::new(File::create_new(to)?);
    for archive in archives {
        let file = File::open(archive)?;
        let members = file.metadata()?.len().saturating_sub(END_BYTES);
        io::copy(&mut file.take(members), &mut writer)?;
    }
    writer.write_all(&[0; END_BYTES as usize])?;
    writer.flush()
}
