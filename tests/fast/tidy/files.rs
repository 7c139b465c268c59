//! The repository's files, read once.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::mask::{MaskedSource, mask};

/// Directories without sources.
const SKIPPED: &[&str] = &["target", ".git", "jobs", "tree_runs"];

/// A text file of the repository.
pub(crate) struct SourceFile {
    /// Path relative to the repository, with `/`.
    pub(crate) path: String,
    /// Content.
    pub(crate) text: String,
    /// For Rust files: code and comments apart.
    pub(crate) masked: MaskedSource,
}

impl SourceFile {
    /// A source with this path and text.
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let masked = if path.ends_with(".rs") { mask(text) } else { MaskedSource::default() };
        Self { path: path.to_owned(), text: text.to_owned(), masked }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// The code without its trailing unit tests. Tests in a file of their own end nothing: code follows
    /// their declaration.
    pub(crate) fn production_code(&self) -> &str {
        let code = &self.masked.code;
        match code.find("\n#[cfg(test)]\nmod tests {") {
            Some(end) => &code[..end],
            None => code,
        }
    }

    /// Whether the whole file is test code.
    pub(crate) fn is_test(&self) -> bool {
        self.path.starts_with("tests/")
            || self.path.ends_with("/tests.rs")
            || self.path.contains("/tests/")
    }
}

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace member").to_owned()
}

/// Every text file.
pub(crate) fn all() -> &'static [SourceFile] {
    static ALL: LazyLock<Vec<SourceFile>> = LazyLock::new(|| {
        let mut sources = Vec::new();
        collect(&root(), &root(), &mut sources);
        sources.sort_by(|a, b| a.path.cmp(&b.path));
        sources
    });
    &ALL
}

/// Every Rust file.
pub(crate) fn rust() -> impl Iterator<Item = &'static SourceFile> {
    all().iter().filter(|source| source.is_rust())
}

fn collect(root: &Path, directory: &Path, into: &mut Vec<SourceFile>) {
    for entry in fs::read_dir(directory).expect("readable directory") {
        let entry = entry.expect("readable entry");
        let kind = entry.file_type().expect("file type");
        let path = entry.path();
        if SKIPPED.contains(&entry.file_name().to_string_lossy().as_ref()) {
            continue;
        }
        if kind.is_dir() {
            collect(root, &path, into);
        } else if kind.is_file()
            && let Ok(text) = fs::read_to_string(&path)
        {
            let relative = path.strip_prefix(root).expect("below the root");
            into.push(SourceFile::new(&relative.to_string_lossy(), &text));
        }
    }
}

#[test]
fn repository_files_are_collected() {
    assert!(rust().any(|source| source.path == "tests/fast/tidy/files.rs"));
    assert!(all().iter().any(|source| source.path == ".ci/run"), "dotfiles too");
    assert!(!all().iter().any(|source| source.path.starts_with("target/")));
}
