//! Selection of the context's files that `COPY` and `ADD` copy.

use regex::Regex;
use rollout_base::glob::{self, Dialect};
use rollout_environment::build_context::{ContextEntry, ContextKind};

/// File name extensions of archives that `ADD` would extract.
const ARCHIVES: [&str; 9] =
    [".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst"];

/// Whether `ADD` would extract a file of this name.
pub(super) fn has_archive_extension(name: &str) -> bool {
    ARCHIVES.iter().any(|end| name.to_ascii_lowercase().ends_with(end))
}

/// Entries to copy, each with the path below the target. An empty path is the target itself.
pub(in super::super) type CopyPaths<'a> = Vec<(&'a ContextEntry, String)>;

/// The entries that `source` selects; `None` when nothing matches. A directory selects its content,
/// a file itself under its own name when the target `is_dir`.
pub(in super::super) fn matching<'a>(
    entries: &'a [ContextEntry],
    source: &str,
    is_dir: bool,
) -> Option<CopyPaths<'a>> {
    let source = clean(source);
    if source.is_empty() {
        return Some(entries.iter().map(|entry| (entry, entry.path.clone())).collect());
    }
    let patterns: Vec<_> = source.split('/').map(|part| glob::compile(part, Dialect::Go)).collect();
    let mut found = None;
    for (at, entry) in entries.iter().enumerate() {
        if !is_match(&patterns, &entry.path) {
            continue;
        }
        let found: &mut CopyPaths<'a> = found.get_or_insert_default();
        if entry.kind == ContextKind::Dir {
            let prefix = format!("{}/", entry.path);
            let below = entries[at + 1..].iter().map_while(|inner| {
                inner.path.strip_prefix(&prefix).map(|path| (inner, path.to_owned()))
            });
            found.extend(below);
        } else {
            let name = entry.path.rsplit('/').next().unwrap_or(&entry.path);
            found.push((entry, if is_dir { name.to_owned() } else { String::new() }));
        }
    }
    found
}

/// `source` without `.`, `..` and empty parts; a path cannot leave the context.
fn clean(source: &str) -> String {
    let mut parts = Vec::new();
    for part in source.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Whether the parts of `path` match as many patterns, one by one.
fn is_match(patterns: &[Option<Regex>], path: &str) -> bool {
    let mut parts = path.split('/');
    patterns.iter().all(|pattern| match (pattern, parts.next()) {
        (Some(pattern), Some(part)) => pattern.is_match(part),
        _ => false,
    }) && parts.next().is_none()
}
