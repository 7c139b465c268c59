//! The log of a build, of which the end is kept.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use rollout_environment::{OutputSink, OutputStream};

/// Bytes of a log that are kept for its file, and for a message.
const KEPT_BYTES: usize = 1024 * 1024;
const TAIL_BYTES: usize = 4 * 1024;

/// The end of the output of a build.
#[derive(Debug, Default)]
pub(super) struct BuildLog(Mutex<VecDeque<u8>>);

impl OutputSink for BuildLog {
    fn write(&self, _: OutputStream, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend(bytes);
        let excess = kept.len().saturating_sub(KEPT_BYTES);
        kept.drain(..excess);
    }
}

impl BuildLog {
    /// All that is kept.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// The last lines, for a message.
    pub(super) fn tail(&self) -> String {
        let bytes = self.bytes();
        let start = bytes.len().saturating_sub(TAIL_BYTES);
        String::from_utf8_lossy(&bytes[start..]).trim().to_owned()
    }

    /// All that is kept, as it was written.
    pub(super) fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_log_keeps_its_end() {
        let log = BuildLog::default();
        for _ in 0..3 {
            log.write(OutputStream::Stderr, &vec![b'x'; KEPT_BYTES / 2]);
        }
        log.write(OutputStream::Stdout, b"\nthe end\n");
        assert_eq!(log.bytes().len(), KEPT_BYTES);
        assert!(log.tail().ends_with("the end") && log.tail().len() <= TAIL_BYTES);
    }
}
