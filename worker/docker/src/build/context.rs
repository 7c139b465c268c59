//! Reading and packing of a build context.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use rollout_base::confined::ConfinedDir;
use rollout_environment::build_context::{self, ContextEntry, ContextKind};
use rollout_environment::dockerignore::{self, Dockerignore};
use rollout_environment::upload;
use rollout_protocol::digest::{Digest, DigestHasher};

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
fn pack(context: &Path, dockerfile: &str, to: impl Write) -> io::Result<()> {
    let ignore = patterns(context, dockerfile)?;
    pack_all(context, &ignore, &[dockerfile, dockerignore::FILE_NAME], to)
}

/// Digest of a context, and of the text of a Dockerfile that links lead to: the archive has the link alone.
pub(in super::super) fn digest(context: &Path, dockerfile: &str) -> io::Result<Digest> {
    let mut content = HashWriter(DigestHasher::default());
    pack(context, dockerfile, &mut content)?;
    let path = context.join(dockerfile);
    // A missing one is told by the build.
    if let Ok(end) = path.canonicalize()
        && end != context.canonicalize()?.join(dockerfile)
    {
        content.0.update_part(&std::fs::read(end)?);
    }
    Ok(content.0.finish())
}

/// A writer that only hashes.
struct HashWriter(DigestHasher);

impl Write for HashWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The path of a Dockerfile in its context, without links above it. The Dockerfile may be a link. Blocks.
///
/// # Errors
/// A link above it leads out of the context.
pub(super) fn place(context: &Path, dockerfile: &str) -> io::Result<String> {
    let path = Path::new(dockerfile);
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(dockerfile.to_owned());
    };
    let root = ConfinedDir::open(context)?;
    let above = root.resolve(above)?;
    let below = above.strip_prefix(root.path()).map_err(io::Error::other)?;
    let place = below.join(name).into_os_string().into_string();
    place.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "its path is not UTF-8"))
}

/// Like [`pack`], with a regular file of this text at the [`place`] of the Dockerfile, whatever the
/// context has there: a builder that follows a link may end at another file than its reader did.
pub(super) fn pack_with(
    context: &Path,
    dockerfile: &str,
    (place, text): (&str, &str),
    to: impl Write,
) -> io::Result<()> {
    let ignore = patterns(context, dockerfile)?;
    let always = [place, dockerignore::FILE_NAME];
    pack_entries(context, &ignore, &always, Some((place, text)), to)
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
    mut instead: Option<(&str, &str)>,
    to: impl Write,
) -> io::Result<()> {
    let mut tar = tar::Builder::new(to);
    for entry in build_context::list(dir, ignore, always)? {
        if let Some((place, text)) = instead.take_if(|(place, _)| *place == entry.path) {
            let executable = matches!(entry.kind, ContextKind::File { executable: true });
            append_text(&mut tar, place, text, executable)?;
            continue;
        }
        match entry.kind {
            ContextKind::Dir => upload::directory(&mut tar, &entry.path, 0o755)?,
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
    // Below an ignored directory.
    if let Some((place, text)) = instead {
        append_text(&mut tar, place, text, false)?;
    }
    tar.into_inner()?.flush()
}

fn append_text(
    tar: &mut tar::Builder<impl Write>,
    path: &str,
    text: &str,
    executable: bool,
) -> io::Result<()> {
    let mode = if executable { 0o755 } else { 0o644 };
    let mut header = upload::header(tar::EntryType::Regular, mode, text.len() as u64);
    tar.append_data(&mut header, path, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Another text than those of the context's files.
    const READ: &str = "FROM scratch\n";

    /// The entries of a body: path, type and text.
    fn body(context: &Path, dockerfile: &str) -> Vec<(String, tar::EntryType, String)> {
        let place = place(context, dockerfile).expect("in the context");
        let mut bytes = Vec::new();
        pack_with(context, dockerfile, (&place, READ), &mut bytes).expect("packed");
        let mut archive = tar::Archive::new(bytes.as_slice());
        let entries = archive.entries().expect("an archive").map(|entry| {
            let mut entry = entry.expect("an entry");
            let path = entry.path().expect("a path").to_str().expect("UTF-8").to_owned();
            let kind = entry.header().entry_type();
            let mut text = String::new();
            entry.read_to_string(&mut text).expect("a text");
            (path, kind, text)
        });
        entries.collect()
    }

    #[test]
    fn linked_dockerfile_is_sent_as_a_regular_file_of_the_text_that_was_read() {
        let refused = "FROM 127.0.0.1:18901/lkfrom\n";
        for (links, ignored, dockerfile, expected) in [
            (&[("../D2", "Dockerfile")][..], "", "Dockerfile", "Dockerfile"),
            (&[("D2", "Dockerfile")][..], "", "./Dockerfile", "Dockerfile"),
            (&[("x/y", "Dockerfile"), ("..", "x")][..], "", "Dockerfile", "Dockerfile"),
            (&[("../../D2", "t/L")][..], "", "t/L", "t/L"),
            (&[("t", "s")][..], "", "s/Q", "t/Q"),
            (&[("u", "s"), ("t", "u")][..], "", "s/Q", "t/Q"),
            (&[("../D2", "Dockerfile")][..], "Dockerfile\n", "Dockerfile", "Dockerfile"),
            (&[("../../D2", "t/L")][..], "t\n", "t/L", "t/L"),
        ] {
            let dir = tempfile::tempdir().expect("a directory");
            let context = dir.path().join("b");
            std::fs::create_dir_all(context.join("t")).expect("made");
            std::fs::write(dir.path().join("D2"), "FROM scratch\nLABEL ok=1\n").expect("written");
            for (name, text) in [("D2", refused), ("t/Q", refused), (".dockerignore", ignored)] {
                std::fs::write(context.join(name), text).expect("written");
            }
            for (target, link) in links {
                symlink(target, context.join(link)).expect("linked");
            }
            let sent = body(&context, dockerfile);
            let of_name: Vec<_> = sent.iter().filter(|(path, ..)| path == expected).collect();
            assert_eq!(of_name.len(), 1, "{links:?}: {sent:?}");
            let (_, kind, text) = of_name[0];
            assert_eq!((*kind, text.as_str()), (tar::EntryType::Regular, READ), "{links:?}");
            let is_link = |(path, kind, _): &&(String, tar::EntryType, String)| {
                kind.is_symlink() && Path::new(expected).starts_with(path)
            };
            assert_eq!(sent.iter().find(is_link), None, "{links:?}: {sent:?}");
        }
    }

    #[test]
    fn digest_changes_with_the_text_that_a_linked_dockerfile_leads_to() {
        let dir = tempfile::tempdir().expect("a directory");
        let context = dir.path().join("b");
        std::fs::create_dir_all(context.join("t")).expect("made");
        std::fs::create_dir(dir.path().join("d")).expect("made");
        for name in ["b/Plain", "b/t/Q", "D2", "d/Q"] {
            std::fs::write(dir.path().join(name), READ).expect("written");
        }
        for (target, link) in [("../D2", "Dockerfile"), ("../d", "s"), ("Gone", "Broken")] {
            symlink(target, context.join(link)).expect("linked");
        }
        let of = |dockerfile: &str| digest(&context, dockerfile).expect("packed");
        let names = ["Dockerfile", "s/Q", "Plain", "t/Q"];
        let before = names.map(of);
        for name in ["D2", "d/Q"] {
            std::fs::write(dir.path().join(name), "FROM debian\n").expect("written");
        }
        let after = names.map(of);
        let changed: Vec<_> = before.iter().zip(&after).map(|(a, b)| a != b).collect();
        assert_eq!(changed, [true, true, false, false]);
        assert_eq!(of("Plain"), of("Missing"), "the archive alone");
        assert_eq!(of("Broken"), of("Plain"));
    }

    #[test]
    fn dockerfile_below_a_link_out_of_its_context_has_no_place() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["b", "t"] {
            std::fs::create_dir(dir.path().join(name)).expect("made");
        }
        std::fs::write(dir.path().join("t/Q"), READ).expect("written");
        symlink("../t", dir.path().join("b/s")).expect("linked");
        let error = place(&dir.path().join("b"), "s/Q").expect_err("outside");
        assert!(rollout_base::confined::leads_outside(&error), "{error}");
    }
}
