//! File trees in memory, and their tar archives.

use std::collections::BTreeMap;
use std::io::Read as _;

use bytes::Bytes;
use rollout_store::testing::{raw_entry, raw_entry_with_mode};

use crate::{Failure, FailureKind, Upload};

/// A node of a file tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileNode {
    /// A directory.
    Dir,
    /// A file.
    File {
        /// Content.
        bytes: Bytes,
        /// Whether it can be executed.
        executable: bool,
    },
    /// A symbolic link with its raw target.
    Link(String),
}

/// Files by absolute path, without the leading slash. Links are never followed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileTree(BTreeMap<String, FileNode>);

fn key(path: &str) -> String {
    path.trim_matches('/').to_owned()
}

impl FileTree {
    /// The node at `path`.
    pub fn get(&self, path: &str) -> Option<&FileNode> {
        self.0.get(&key(path))
    }

    /// Makes a directory and its parents.
    ///
    /// # Errors
    /// [`Failure`] when something other than a directory is in the way.
    pub fn make_dir(&mut self, path: &str) -> Result<(), Failure> {
        let mut partial = String::new();
        for part in key(path).split('/') {
            if !partial.is_empty() {
                partial.push('/');
            }
            partial.push_str(part);
            match self.0.get(&partial) {
                None => drop(self.0.insert(partial.clone(), FileNode::Dir)),
                Some(FileNode::Dir) => {}
                Some(_) => return Err(refused(&partial, "is not a directory")),
            }
        }
        Ok(())
    }

    /// Puts a node at a path, replacing a file or link there, and makes the parents.
    ///
    /// # Errors
    /// [`Failure`] when something other than a directory is in the way, or a directory is at the
    /// path.
    pub fn put(&mut self, path: &str, node: FileNode) -> Result<(), Failure> {
        let key = key(path);
        if let Some((parent, _)) = key.rsplit_once('/') {
            self.make_dir(parent)?;
        }
        if self.0.get(&key) == Some(&FileNode::Dir) {
            return Err(refused(&key, "is a directory"));
        }
        self.0.insert(key, node);
        Ok(())
    }

    /// Removes the node at a path and everything below it.
    pub fn remove(&mut self, path: &str) {
        let key = key(path);
        let below = format!("{key}/");
        self.0.retain(|name, _| *name != key && !name.starts_with(&below));
    }

    pub(super) fn apply(&mut self, uploads: &[Upload]) -> Result<(), Failure> {
        for upload in uploads {
            match upload {
                Upload::Dir { path } => {
                    if !matches!(self.get(path), None | Some(FileNode::Dir)) {
                        self.remove(path);
                    }
                    self.make_dir(path)?;
                }
                Upload::FreshDir { path } => self.fresh(path)?,
                Upload::File { path, bytes, executable } => {
                    self.put(
                        path,
                        FileNode::File { bytes: bytes.clone(), executable: *executable },
                    )?;
                }
                Upload::Archive { path, tar } => {
                    self.fresh(path)?;
                    self.unpack(path, tar)?;
                }
                Upload::Merge { path, tar } => {
                    if !key(path).is_empty() {
                        self.make_dir(path)?;
                    }
                    self.unpack(path, tar)?;
                }
            }
        }
        Ok(())
    }

    fn fresh(&mut self, path: &str) -> Result<(), Failure> {
        self.remove(path);
        self.make_dir(path)
    }

    fn unpack(&mut self, path: &str, tar: &std::path::Path) -> Result<(), Failure> {
        let file = std::fs::File::open(tar).map_err(|e| refused(path, "").with_source(e))?;
        self.entries(path, file).map_err(|e| refused(path, "").with_source(e))
    }

    fn entries(&mut self, path: &str, tar: std::fs::File) -> std::io::Result<()> {
        for entry in tar::Archive::new(tar).entries()? {
            let mut entry = entry?;
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let at = format!("{path}/{}", name.trim_start_matches("./"));
            let made = if entry.header().entry_type().is_dir() {
                self.make_dir(&at)
            } else if entry.header().entry_type().is_symlink() {
                let target = entry.link_name_bytes().unwrap_or_default();
                self.put(&at, FileNode::Link(String::from_utf8_lossy(&target).into_owned()))
            } else {
                let executable = entry.header().mode()? & 0o111 != 0;
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes)?;
                self.put(&at, FileNode::File { bytes: bytes.into(), executable })
            };
            made.map_err(std::io::Error::other)?;
        }
        Ok(())
    }

    /// An archive of the node at a path, with names that start with its base name.
    pub(super) fn archive(&self, path: &str) -> Option<Vec<u8>> {
        let root = key(path);
        self.0.get(&root)?;
        let cut = root.rfind('/').map_or(0, |slash| slash + 1);
        let below = format!("{root}/");
        let mut tar = Vec::new();
        for (name, node) in self.0.iter().filter(|(n, _)| **n == root || n.starts_with(&below)) {
            let name = &name.as_bytes()[cut..];
            tar.extend(match node {
                FileNode::Dir => raw_entry(name, tar::EntryType::Directory, b"", b""),
                FileNode::File { bytes, executable } => {
                    let mode = if *executable { 0o755 } else { 0o644 };
                    raw_entry_with_mode(name, tar::EntryType::Regular, b"", bytes, mode)
                }
                FileNode::Link(target) => {
                    raw_entry(name, tar::EntryType::Symlink, target.as_bytes(), b"")
                }
            });
        }
        tar.extend([0; 1024]);
        Some(tar)
    }
}

fn refused(path: &str, reason: &str) -> Failure {
    Failure::new(FailureKind::Refused, format!("/{path} {reason}"))
}
