//! Comparison of an agent's tree with its commit. The tree is data: no git reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rollout_base::secrets::{RedactionStyle, Redactor};
use rollout_protocol::limits;
use rollout_protocol::record::CheckoutChanges;
use rollout_store::git::{TreeEntry, names};

use super::checkout::{LINK, SUBMODULE};

/// Bytes read at once.
const BUFFER_BYTES: usize = 64 * 1024;

/// The inputs of a comparison.
pub(super) struct TreeComparison<'a> {
    /// The commit's files on disk.
    pub(super) base: &'a Path,
    /// The same files, as listed by the commit.
    pub(super) entries: BTreeMap<&'a [u8], &'a TreeEntry>,
    /// Paths of the commit whose absence is not a removal.
    pub(super) unknown: BTreeSet<Vec<u8>>,
    /// The agent's tree.
    pub(super) tree: &'a Path,
    /// An empty directory for the content of new and changed files.
    pub(super) staging: &'a Path,
    /// Masks declared secrets in new and changed files.
    pub(super) redactor: &'a Redactor,
}

/// New, changed and removed files.
#[derive(Debug, Default)]
pub(super) struct TreeDifference {
    pub(super) written: Vec<ChangedTreeFile>,
    pub(super) removed: Vec<Vec<u8>>,
    pub(super) changes: CheckoutChanges,
}

/// A new or changed file.
#[derive(Debug)]
pub(super) struct ChangedTreeFile {
    pub(super) path: Vec<u8>,
    pub(super) mode: u32,
    /// Its content, or the target of its link.
    pub(super) content: PathBuf,
    pub(super) is_new: bool,
}

/// Why two trees could not be compared.
#[derive(Debug)]
pub(super) enum TreeCompareError {
    Disk(PathBuf, io::Error),
    TooLarge(Vec<u8>),
}

impl TreeComparison<'_> {
    /// Compares both trees.
    pub(super) fn run(&self) -> Result<TreeDifference, TreeCompareError> {
        let (mut found, mut seen) = (TreeDifference::default(), BTreeSet::new());
        self.compare_directory(&mut Vec::new(), &mut found, &mut seen)?;
        for (path, entry) in &self.entries {
            if !seen.contains(*path) && entry.mode != SUBMODULE && !self.unknown.contains(*path) {
                found.removed.push(path.to_vec());
            }
        }
        Ok(found)
    }

    fn compare_directory(
        &self,
        path: &mut Vec<u8>,
        found: &mut TreeDifference,
        seen: &mut BTreeSet<Vec<u8>>,
    ) -> Result<(), TreeCompareError> {
        let dir = join_bytes(self.tree, path);
        let failed = |error| TreeCompareError::Disk(dir.clone(), error);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&dir).map_err(failed)? {
            names.push(entry.map_err(failed)?.file_name());
        }
        names.sort();
        let above = path.len();
        for name in names {
            if above > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
            self.compare_entry(path, name.as_bytes(), found, seen)?;
            path.truncate(above);
        }
        Ok(())
    }

    fn compare_entry(
        &self,
        path: &mut Vec<u8>,
        name: &[u8],
        found: &mut TreeDifference,
        seen: &mut BTreeSet<Vec<u8>>,
    ) -> Result<(), TreeCompareError> {
        let known = self.entries.get(&path[..]).copied();
        if known.is_some_and(|entry| entry.mode == SUBMODULE) {
            // The files there belong to another repository.
            return Ok(());
        }
        if names::is_git(name) || (known.is_none() && self.shows_secrets(name)) {
            found.changes.refused += 1;
            return Ok(());
        }
        let full = join_bytes(self.tree, path);
        let failed = |error| TreeCompareError::Disk(full.clone(), error);
        let metadata = std::fs::symlink_metadata(&full).map_err(failed)?;
        let mode = match metadata.file_type() {
            kind if kind.is_dir() => return self.compare_directory(path, found, seen),
            kind if kind.is_symlink() => LINK,
            kind if kind.is_file() && metadata.permissions().mode() & 0o111 != 0 => 0o100_755,
            kind if kind.is_file() => 0o100_644,
            _ => {
                found.changes.refused += 1;
                return Ok(());
            }
        };
        seen.insert(path.clone());
        let same = match known {
            Some(entry) if is_link(entry.mode) == is_link(mode) => {
                self.is_same(path, mode, metadata.len(), entry).map_err(failed)?
            }
            _ => false,
        };
        match known {
            Some(entry) if same && entry.mode == mode => return Ok(()),
            _ => {}
        }
        if metadata.len() > limits::CANDIDATE_FILE_BYTES {
            return Err(TreeCompareError::TooLarge(path.clone()));
        }
        let content = self.staging.join(format!("{}", found.written.len()));
        self.stage(&full, mode, &content).map_err(failed)?;
        let (path, is_new) = (path.clone(), known.is_none());
        found.written.push(ChangedTreeFile { path, mode, content, is_new });
        Ok(())
    }

    /// Whether a file has the commit's content.
    fn is_same(&self, path: &[u8], mode: u32, len: u64, entry: &TreeEntry) -> io::Result<bool> {
        let (ours, theirs) = (join_bytes(self.base, path), join_bytes(self.tree, path));
        if self.unknown.contains(path) && !ours.exists() {
            return Ok(false);
        }
        if is_link(mode) {
            return Ok(std::fs::read_link(ours)? == std::fs::read_link(theirs)?);
        }
        if entry.size_bytes != Some(len) {
            return Ok(false);
        }
        let (mut ours, mut theirs) = (open_buffered(&ours)?, open_buffered(&theirs)?);
        let (mut one, mut other) = (vec![0; BUFFER_BYTES], vec![0; BUFFER_BYTES]);
        loop {
            let read = ours.read(&mut one)?;
            if read == 0 {
                return Ok(theirs.read(&mut other)? == 0);
            }
            match theirs.read_exact(&mut other[..read]) {
                Ok(()) if one[..read] == other[..read] => {}
                Ok(()) => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// Copies a new or changed file, without secrets, under a plain name.
    fn stage(&self, from: &Path, mode: u32, to: &Path) -> io::Result<()> {
        let mut masking = self.redactor.stream(RedactionStyle::Mask);
        let mut out = BufWriter::new(File::create_new(to)?);
        let (mut buffer, mut clean) = (vec![0; BUFFER_BYTES], Vec::new());
        if is_link(mode) {
            masking.push(std::fs::read_link(from)?.as_os_str().as_bytes(), &mut clean);
        } else {
            let mut file = File::open(from)?;
            while let read @ 1.. = file.read(&mut buffer)? {
                masking.push(&buffer[..read], &mut clean);
                out.write_all(&clean)?;
                clean.clear();
            }
        }
        masking.finish(&mut clean);
        out.write_all(&clean)?;
        out.into_inner().map_err(io::IntoInnerError::into_error).map(drop)
    }

    fn shows_secrets(&self, name: &[u8]) -> bool {
        let (mut masking, mut masked) = (self.redactor.stream(RedactionStyle::Mask), Vec::new());
        masking.push(name, &mut masked);
        masking.finish(&mut masked);
        masked != name
    }
}

const fn is_link(mode: u32) -> bool {
    mode == LINK
}

fn open_buffered(path: &Path) -> io::Result<BufReader<File>> {
    File::open(path).map(|file| BufReader::with_capacity(BUFFER_BYTES, file))
}

fn join_bytes(dir: &Path, path: &[u8]) -> PathBuf {
    if path.is_empty() { dir.to_owned() } else { dir.join(OsStr::from_bytes(path)) }
}
