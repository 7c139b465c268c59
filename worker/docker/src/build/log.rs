//! The log of a build, in memory: a file is made of it if the build fails.

use std::sync::LazyLock;

use regex::Regex;

/// Bytes of the build's last output that are quoted in a failure.
pub(super) const TAIL_BYTES: usize = 4 * 1024;

/// Bytes of the log that are kept, in memory. Each build that runs may hold so many: 16 of them 256 MiB.
const LOG_BYTES: usize = 16 * 1024 * 1024;

/// ANSI colour sequences.
static ANSI_COLORS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new("\u{1b}\\[[0-9;?]*[A-Za-z]").expect("a pattern"));

/// The log of a build.
#[derive(Debug, Default)]
pub(super) struct ImageBuildLog {
    head: Vec<u8>,
    tail: LogTail,
}

impl ImageBuildLog {
    pub(super) fn add(&mut self, text: &str) {
        let room = LOG_BYTES.saturating_sub(self.head.len());
        self.head.extend_from_slice(&text.as_bytes()[..text.len().min(room)]);
        self.tail.add(text.as_bytes());
    }

    /// The last lines.
    pub(super) fn tail(&self) -> String {
        self.tail.text()
    }

    /// The log, with the tail of the output that did not fit.
    pub(super) fn into_text(self) -> Vec<u8> {
        let mut text = self.head;
        if text.len() >= LOG_BYTES {
            text.extend_from_slice(format!("\n[…]\n{}", self.tail.text()).as_bytes());
        }
        text
    }
}

/// The last lines of an output.
#[derive(Debug, Default)]
pub(super) struct LogTail {
    bytes: Vec<u8>,
    cut: bool,
}

impl LogTail {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        if self.bytes.len() > 2 * TAIL_BYTES {
            self.bytes.drain(..self.bytes.len() - TAIL_BYTES);
            self.cut = true;
        }
    }

    /// The text without colours; whole lines if there are several.
    pub(super) fn text(&self) -> String {
        let from = self.bytes.len().saturating_sub(TAIL_BYTES);
        let text = String::from_utf8_lossy(&self.bytes[from..]);
        let mut text = text.as_ref();
        if from > 0 || self.cut {
            text = text.split_once('\n').map_or(text, |(_, rest)| rest);
        }
        ANSI_COLORS.replace_all(text, "").trim_end().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_log_tail_has_whole_lines_without_ansi_colors() {
        let mut tail = LogTail::default();
        tail.add(b"\x1b[91mred\x1b[0m\nplain\n");
        assert_eq!(tail.text(), "red\nplain");
        for number in 0..3000 {
            tail.add(format!("line-{number}\n").as_bytes());
        }
        let text = tail.text();
        assert!(text.len() <= TAIL_BYTES && text.starts_with("line-"), "{text}");
        assert!(text.ends_with("\nline-2999"), "{text}");
    }
}
