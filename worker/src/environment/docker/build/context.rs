//! Reading and packing of a build context.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use crate::environment::build_context::{self, ContextEntry, ContextKind};
use crate::environment::dockerignore::{self, Dockerignore};
use crate::environment::upload;

/// The ignore patterns of a build: those of the ignore file named after the Dockerfile, else the
/// context's.
fn patterns(context: &Path, dockerfile: &str) -> io::Result<Dockerignore> {
    let own = format!("{dockerfile}{}", dockerignore::FILE_NAME);
    if context.join(&own).is_file() {
        return Dockerignore::read_file(context, &own);
    }
    Dockerignore::read(context)
}

/// The entries that a build can copy.
pub(super) fn visible(context: &Path, dockerfile: &str) -> io::Result<Vec<ContextEntry>> {
    build_context::list(context, &patterns(context, dockerfile)?, &[])
}

/// Writes the context as a deterministic archive. The Dockerfile is included whether it is visible
/// or not.
pub(in super::super) fn pack(context: &Path, dockerfile: &str, to: impl Write) -> io::Result<()> {
    let ignore = patterns(context, dockerfile)?;
    pack_all(context, &ignore, &[dockerfile, dockerignore::FILE_NAME], to)
}

/// Like [`pack`], with another text of the Dockerfile.
pub(super) fn pack_with(
    context: &Path,
    dockerfile: &str,
    text: &str,
    to: impl Write,
) -> io::Result<()> {
    let ignore = patterns(context, dockerfile)?;
    let always = [dockerfile, dockerignore::FILE_NAME];
    pack_entries(context, &ignore, &always, Some((dockerfile, text)), to)
}

/// Writes the entries of a directory that `ignore` does not exclude, and those in `always`.
pub(in super::super) fn pack_all(
    dir: &Path,
    ignore: &Dockerignore,
    always: &[&str],
    to: impl Write,
) -> io::Result<()> {
    pack_entries(dir, ignore, always, None, to)
}

fn pack_entries(
    dir: &Path,
    ignore: &Dockerignore,
    always: &[&str],
    instead: Option<(&str, &str)>,
    to: impl Write,
) -> io::Result<()> {
    let mut tar = tar::Builder::new(to);
    for entry in build_context::list(dir, ignore, always)? {
        match entry.kind {
            ContextKind::Dir => upload::directory(&mut tar, &entry.path, 0o755)?,
            ContextKind::File { executable } if instead.is_some_and(|(p, _)| p == entry.path) => {
                let text = instead.map_or("", |(_, text)| text);
                let mode = if executable { 0o755 } else { 0o644 };
                let mut header = upload::header(tar::EntryType::Regular, mode, text.len() as u64);
                tar.append_data(&mut header, &entry.path, text.as_bytes())?;
            }
            ContextKind::File { executable } => {
                let file = File::open(dir.join(&entry.path))?;
                let size = file.metadata()?.len();
                let mode = if executable { 0o755 } else { 0o644 };
                let mut header = upload::header(tar::EntryType::Regular, mode, size);
                tar.append_data(&mut header, &entry.path, io::Read::take(file, size))?;
            }
            ContextKind::Link { target } => {
                let mut header = upload::header(tar::EntryType::Symlink, 0o777, 0);
                tar.append_link(&mut header, &entry.path, target)?;
            }
        }
    }
    tar.into_inner()?.flush()
}
