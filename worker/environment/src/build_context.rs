//! Entries of a build context: the files of a directory that `.dockerignore` does not exclude, in
//! one fixed order.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use super::dockerignore::Dockerignore;

/// One entry of a build context.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextEntry {
    /// Path relative to the context, separated by `/`.
    pub path: String,
    /// Its kind.
    pub kind: ContextKind,
}

/// Kinds of [`ContextEntry`]. Everything else (sockets, devices) is left out of a build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ContextKind {
    /// A directory.
    Dir,
    /// A regular file.
    File {
        /// Whether its owner may execute it.
        executable: bool,
    },
    /// A symbolic link.
    Link {
        /// Its target.
        target: PathBuf,
    },
}

/// Lists the entries that the build of `context` sees: those that `ignore` does not exclude, those
/// in `always` whatever `ignore` says, and the directories above both. Ordered by path, directories
/// before their content.
///
/// # Errors
/// When a directory cannot be read or a name is not UTF-8.
pub fn list(
    context: &Path,
    ignore: &Dockerignore,
    always: &[&str],
) -> io::Result<Vec<ContextEntry>> {
    let mut found = BTreeMap::new();
    let mut pending = vec![String::new()];
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(context.join(&dir))? {
            let entry = entry?;
            let name = entry.file_name().into_string().map_err(|name| {
                let path = Path::new(&dir).join(name);
                let text = format!("the name of {} in the context is not UTF-8", path.display());
                io::Error::new(io::ErrorKind::InvalidData, text)
            })?;
            let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
            let excluded = ignore.excludes(&path) && !always.contains(&path.as_str());
            let Some(kind) = entry_kind(&entry)? else { continue };
            if kind == ContextKind::Dir && (!excluded || ignore.has_exceptions()) {
                pending.push(path.clone());
            }
            if !excluded {
                add_parents(&mut found, &path);
                found.insert(sort_key(&path), ContextEntry { path, kind });
            }
        }
    }
    Ok(found.into_values().collect())
}

/// Directories sort before their content, and a directory's content stays together.
fn sort_key(path: &str) -> Vec<String> {
    path.split('/').map(str::to_owned).collect()
}

fn add_parents(found: &mut BTreeMap<Vec<String>, ContextEntry>, path: &str) {
    for (end, _) in path.match_indices('/') {
        let path = path[..end].to_owned();
        let entry = || ContextEntry { path: path.clone(), kind: ContextKind::Dir };
        found.entry(sort_key(&path)).or_insert_with(entry);
    }
}

fn entry_kind(entry: &std::fs::DirEntry) -> io::Result<Option<ContextKind>> {
    use std::os::unix::fs::PermissionsExt as _;
    let meta = entry.metadata()?;
    Ok(if meta.is_dir() {
        Some(ContextKind::Dir)
    } else if meta.is_file() {
        Some(ContextKind::File { executable: meta.permissions().mode() & 0o100 != 0 })
    } else if meta.is_symlink() {
        Some(ContextKind::Link { target: std::fs::read_link(entry.path())? })
    } else {
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(dir: &Path, ignore: &str, always: &[&str]) -> Vec<String> {
        let ignore = Dockerignore::parse(ignore).expect("valid");
        let entries = list(dir, &ignore, always).expect("readable");
        entries.into_iter().map(|entry| entry.path).collect()
    }

    #[test]
    fn build_context_with_dockerignore_lists_kept_paths_sorted() {
        let dir = tempfile::tempdir().expect("directory");
        for path in ["Dockerfile", "a/b/keep.txt", "a/b/drop.txt", "a.txt", "z/secret"] {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().expect("has one")).expect("made");
            std::fs::write(path, "x").expect("written");
        }
        std::os::unix::fs::symlink("a.txt", dir.path().join("link")).expect("linked");

        let all = paths(dir.path(), "", &[]);
        let expected = ["Dockerfile", "a", "a/b", "a/b/drop.txt", "a/b/keep.txt", "a.txt"];
        assert_eq!(all[..6], expected);
        assert_eq!(all[6..], ["link", "z", "z/secret"]);
        let some = paths(dir.path(), "*\n!a/b/keep.txt", &["Dockerfile"]);
        assert_eq!(some, ["Dockerfile", "a", "a/b", "a/b/keep.txt"]);
        assert_eq!(paths(dir.path(), "z\nlink\n**/*.txt", &[]), ["Dockerfile", "a", "a/b"]);
    }

    #[test]
    fn build_context_listing_keeps_symlinks_and_exec_mode() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("directory");
        let script = dir.path().join("run.sh");
        std::fs::write(&script, "x").expect("written");
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o750)).expect("set");
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("link")).expect("linked");
        let entries = list(dir.path(), &Dockerignore::default(), &[]).expect("readable");
        assert_eq!(entries[0].kind, ContextKind::Link { target: "/etc/passwd".into() });
        assert_eq!(entries[1].kind, ContextKind::File { executable: true });
    }
}
