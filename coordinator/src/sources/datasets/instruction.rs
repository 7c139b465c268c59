//! Reading of instructions, with a size limit and without training-data canaries.

use std::io;
use std::path::Path;

use rollout_base::confined::ConfinedDir;
use rollout_protocol::limits::INSTRUCTION_BYTES;
use rollout_protocol::spec::task::TaskFormat;

/// Reads an instruction of the task of `format` in `dir`.
///
/// # Errors
/// If the file cannot be read; of kind [`io::ErrorKind::FileTooLarge`] if it is too large.
pub(crate) fn read(dir: &Path, path: &Path, format: TaskFormat) -> io::Result<Vec<u8>> {
    let bytes = ConfinedDir::open(dir)?.read(path, INSTRUCTION_BYTES)?;
    Ok(match format {
        TaskFormat::Rollout => bytes,
        TaskFormat::Harbor => without_canary(&bytes).to_vec(),
    })
}

/// Strips leading empty lines and comment lines with the word `canary`.
fn without_canary(text: &[u8]) -> &[u8] {
    let text = without_lines(text, is_canary);
    without_lines(text, <[u8]>::is_empty)
}

/// Strips leading lines that match after trimming.
fn without_lines(mut text: &[u8], is_such: fn(&[u8]) -> bool) -> &[u8] {
    loop {
        let end = text.iter().position(|byte| *byte == b'\n');
        let line = end.map_or(text, |end| &text[..end]);
        match end {
            _ if text.is_empty() || !is_such(line.trim_ascii()) => return text,
            Some(end) => text = &text[end + 1..],
            None => return &[],
        }
    }
}

fn is_canary(line: &[u8]) -> bool {
    let comment = line.starts_with(b"#") || (line.starts_with(b"<!--") && line.ends_with(b"-->"));
    comment && line.to_ascii_lowercase().windows(6).any(|window| window == b"canary")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruction_canary_and_leading_blank_lines_are_removed() {
        for (text, expected) in [
            ("Do it.\n", "Do it.\n"),
            ("<!-- x CANARY y -->\n\n\nDo it.\n", "Do it.\n"),
            ("# canary 1\n  # Canary 2  \r\n\nDo it.", "Do it."),
            ("\n\nDo it.", "Do it."),
            ("# Title\n# canary\n", "# Title\n# canary\n"),
            ("<!-- canary\n-->\nDo it.", "<!-- canary\n-->\nDo it."),
            ("# canary", ""),
            ("", ""),
        ] {
            let found = without_canary(text.as_bytes());
            assert_eq!(String::from_utf8_lossy(found), expected, "{text:?}");
        }
    }

    #[test]
    fn instruction_canary_is_removed_for_harbor_format_only() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("file"), "# canary\nDo it.").expect("written");
        let text = |format| read(dir.path(), Path::new("file"), format).expect("read");
        assert_eq!(text(TaskFormat::Rollout), b"# canary\nDo it.");
        assert_eq!(text(TaskFormat::Harbor), b"Do it.");
    }
}
