//! A patch of text files and symbolic links, as `git apply` and `patch -p1` read it.

use std::io::{self, Write};
use std::ops::Range;

use imara_diff::{Algorithm, Diff, Hunk, InternedInput, Token};
use rollout_base::secrets::Redactor;
use rollout_protocol::limits;
use rollout_protocol::workspace_diff::{ChangeKind, PatchOmission};

use super::compare::EntryChange;
use super::contents::ContentFile;
use super::describe::masked;
use super::index::IndexEntry;

/// Unchanged lines before and after a change.
const CONTEXT: u32 = 3;

/// The end of the last line of a text without a line feed.
const NO_NEWLINE: &[u8] = b"\n\\ No newline at end of file\n";

/// Mode of a symbolic link.
const LINK_MODE: &str = "120000";

/// Creation and deletion of an empty file: by the digest of an empty object of Git.
const EMPTY_CREATED: &[u8] = b"index 0000000..e69de29\n";
const EMPTY_DELETED: &[u8] = b"index e69de29..0000000\n";

/// One side of a section: the mode as Git writes it, and the text.
struct PatchSide {
    mode: &'static str,
    text: Vec<u8>,
}

/// Writes the patch, ordered by path, and notes which changes it lacks; returns its bytes.
pub(super) fn write(
    mut writer: impl Write,
    changes: &mut [EntryChange<'_>],
    contents: &ContentFile,
    redactor: &Redactor,
) -> io::Result<u64> {
    let mut bytes = 0;
    for change in changes {
        change.not_in_patch = omission(change, redactor);
        if change.not_in_patch.is_some() {
            continue;
        }
        let sections = sections(change, contents)?;
        if bytes + sections.len() as u64 > limits::PATCH_BYTES {
            change.not_in_patch = Some(PatchOmission::PatchTooLarge);
            continue;
        }
        bytes += sections.len() as u64;
        writer.write_all(&sections)?;
    }
    writer.flush()?;
    Ok(bytes)
}

/// The sections of a change. Directories have none; a change of kind is a deletion and a creation.
fn sections(change: &EntryChange<'_>, contents: &ContentFile) -> io::Result<Vec<u8>> {
    let path = change.path;
    if let (ChangeKind::ModeChanged, Some(before), Some(after)) =
        (change.kind, change.before, change.after)
    {
        let is_file = matches!(after, IndexEntry::File { .. });
        let side = |entry| Some(PatchSide { mode: git_mode(entry), text: Vec::new() });
        return Ok(if is_file { section(path, side(before), side(after)) } else { Vec::new() });
    }
    Ok(match (side(change.before, contents)?, side(change.after, contents)?) {
        (None, None) => Vec::new(),
        (Some(old), Some(new)) if change.kind == ChangeKind::TypeChanged => {
            [section(path, Some(old), None), section(path, None, Some(new))].concat()
        }
        (old, new) => section(path, old, new),
    })
}

/// Why a change cannot be in a patch.
fn omission(change: &EntryChange<'_>, redactor: &Redactor) -> Option<PatchOmission> {
    let mut states = change.before.iter().chain(&change.after);
    if states.all(|entry| matches!(entry, IndexEntry::Directory { .. })) {
        return None;
    }
    if change.path.split(|byte| *byte == b'/').any(is_git_name) {
        return Some(PatchOmission::GitDirectory);
    }
    if masked(change.path, redactor) != change.path {
        return Some(PatchOmission::Masked);
    }
    match (change.kind, change.before, change.after) {
        (ChangeKind::ModeChanged, Some(IndexEntry::File { .. }), Some(after)) => {
            let is_same = change.before.map(git_mode) == Some(git_mode(after));
            is_same.then_some(PatchOmission::Mode)
        }
        (_, before, after) => {
            let before = before.and_then(|entry| entry_omission(entry, false, redactor));
            before.or_else(|| after.and_then(|entry| entry_omission(entry, true, redactor)))
        }
    }
}

/// Whether Git refuses a path with this component: `.git` as any file system spells it.
fn is_git_name(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    let follows = |rest: &[u8]| !rest.first().is_some_and(|byte| byte.is_ascii_alphanumeric());
    name == b"git~1" || name.strip_prefix(b".git").is_some_and(follows)
}

fn entry_omission(
    entry: &IndexEntry,
    is_after: bool,
    redactor: &Redactor,
) -> Option<PatchOmission> {
    match entry {
        IndexEntry::File { file, .. } => {
            if file.masked.is_some() {
                Some(PatchOmission::Masked)
            } else if file.binary {
                Some(PatchOmission::Binary)
            } else if file.size > limits::PATCH_FILE_BYTES {
                Some(PatchOmission::FileTooLarge)
            } else if file.content.is_some() {
                None
            } else if is_after && !file.unchanged {
                Some(PatchOmission::LaterTextNotKept)
            } else {
                Some(PatchOmission::EarlierTextNotKept)
            }
        }
        IndexEntry::Symlink { stays_inside: false, .. } => Some(PatchOmission::LinkOutside),
        IndexEntry::Symlink { target, .. } => {
            (masked(target, redactor) != *target).then_some(PatchOmission::Masked)
        }
        IndexEntry::Special { .. } => Some(PatchOmission::Special),
        IndexEntry::Directory { .. } => None,
    }
}

const fn git_mode(entry: &IndexEntry) -> &'static str {
    match entry {
        IndexEntry::File { mode, .. } if *mode & 0o100 != 0 => "100755",
        IndexEntry::Symlink { .. } => LINK_MODE,
        _ => "100644",
    }
}

/// A side of a section; `None` for a directory and without a text.
fn side(entry: Option<&IndexEntry>, contents: &ContentFile) -> io::Result<Option<PatchSide>> {
    let Some(entry) = entry else { return Ok(None) };
    let mode = git_mode(entry);
    Ok(match entry {
        IndexEntry::File { file, .. } if file.size <= limits::PATCH_FILE_BYTES => {
            let Some(position) = file.content else { return Ok(None) };
            Some(PatchSide { mode, text: contents.read(position, file.size)? })
        }
        IndexEntry::Symlink { target, .. } => Some(PatchSide { mode, text: target.clone() }),
        _ => None,
    })
}

/// The section of one change.
fn section(path: &[u8], old: Option<PatchSide>, new: Option<PatchSide>) -> Vec<u8> {
    let (old_name, new_name) = (quoted(b"a/", path), quoted(b"b/", path));
    let mut section = [b"diff --git ", &*old_name, b" ", &new_name, b"\n"].concat();
    let mut header = |text: &str| section.extend_from_slice(text.as_bytes());
    match (&old, &new) {
        (None, Some(new)) => header(&format!("new file mode {}\n", new.mode)),
        (Some(old), None) => header(&format!("deleted file mode {}\n", old.mode)),
        // Programs expect a regular file unless the mode is there.
        (Some(old), Some(new)) if old.mode != new.mode || old.mode == LINK_MODE => {
            header(&format!("old mode {}\nnew mode {}\n", old.mode, new.mode));
        }
        _ => {}
    }
    let missing = || b"/dev/null".to_vec();
    let old_name = if old.is_some() { old_name } else { missing() };
    let new_name = if new.is_some() { new_name } else { missing() };
    let text = |side: Option<PatchSide>| side.map(|side| side.text).unwrap_or_default();
    let is_pair = old.is_some() && new.is_some();
    let (is_new, old, new) = (new.is_some(), text(old), text(new));
    if !is_pair && old == new {
        // Without it, `patch` does not see that the whole file is concerned.
        let index = if is_new { EMPTY_CREATED } else { EMPTY_DELETED };
        section.extend_from_slice(index);
    }
    if old != new {
        section.extend([b"--- ", &*old_name, b"\n+++ ", &new_name, b"\n"].concat());
        add_hunks(&old, &new, &mut section);
    }
    section
}

/// A name with its prefix, in quotation marks if it has unusual characters.
fn quoted(prefix: &[u8], path: &[u8]) -> Vec<u8> {
    let name = [prefix, path].concat();
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
    if name.iter().all(is_plain) {
        return name;
    }
    let mut text = vec![b'"'];
    for byte in name {
        match byte {
            b'"' | b'\\' => text.extend([b'\\', byte]),
            b' ' => text.push(byte),
            _ if byte.is_ascii_graphic() => text.push(byte),
            _ => text.extend(format!("\\{byte:03o}").bytes()),
        }
    }
    text.push(b'"');
    text
}

fn add_hunks(old: &[u8], new: &[u8], section: &mut Vec<u8>) {
    let input = InternedInput::new(old, new);
    let mut diff = Diff::compute(Algorithm::Histogram, &input);
    diff.postprocess_lines(&input);
    let changes: Vec<_> = diff.hunks().collect();
    // Changes whose contexts touch are one hunk.
    let is_near = |a: &Hunk, b: &Hunk| b.before.start - a.before.end <= 2 * CONTEXT;
    for group in changes.chunk_by(is_near) {
        add_hunk(group, &input, section);
    }
}

fn add_hunk(group: &[Hunk], input: &InternedInput<&[u8]>, section: &mut Vec<u8>) {
    let (Some(first), Some(last)) = (group.first(), group.last()) else { return };
    let old_lines = u32::try_from(input.before.len()).unwrap_or(u32::MAX);
    let old = first.before.start.saturating_sub(CONTEXT)
        ..last.before.end.saturating_add(CONTEXT).min(old_lines);
    let (lead, trail) = (first.before.start - old.start, old.end - last.before.end);
    let new = first.after.start - lead..last.after.end + trail;
    let header = format!("@@ -{} +{} @@\n", line_range(&old), line_range(&new));
    section.extend_from_slice(header.as_bytes());
    let mut add = |sign: u8, tokens: &[Token]| {
        for token in tokens {
            let line = input.interner[*token];
            section.push(sign);
            match line.strip_suffix(b"\n") {
                Some(_) => section.extend_from_slice(line),
                None => section.extend([line, NO_NEWLINE].concat()),
            }
        }
    };
    let mut at = old.start;
    for hunk in group {
        add(b' ', tokens(&input.before, at..hunk.before.start));
        add(b'-', tokens(&input.before, hunk.before.clone()));
        add(b'+', tokens(&input.after, hunk.after.clone()));
        at = hunk.before.end;
    }
    add(b' ', tokens(&input.before, at..old.end));
}

/// Lines in the header of a hunk: the number of the first one and their number. An empty range has
/// the number of the line before it.
fn line_range(lines: &Range<u32>) -> String {
    let first = if lines.is_empty() { lines.start } else { lines.start + 1 };
    if lines.len() == 1 { first.to_string() } else { format!("{first},{}", lines.len()) }
}

fn tokens(all: &[Token], lines: Range<u32>) -> &[Token] {
    &all[lines.start as usize..lines.end as usize]
}
