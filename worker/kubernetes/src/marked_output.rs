//! Output up to the mark behind it.
//!
//! The runner of a command writes a mark into the pipe of each output after the command has ended.
//! All that the command wrote is before the mark, whatever the state of the pipe's reader; output
//! after the mark is from processes that the command left behind.

use super::frames::{FrameParser, Part};

/// One output of a command.
#[derive(Debug)]
pub(super) struct MarkedOutput {
    parser: FrameParser,
    /// Bytes that have arrived, with the mark and those after it.
    received: u64,
    is_whole: bool,
}

impl MarkedOutput {
    /// The output of the command with an id, which is random.
    pub(super) fn new(id: &str) -> Self {
        Self { parser: FrameParser::new(&format!("rollout:{id}:")), received: 0, is_whole: false }
    }

    /// Takes more bytes, and passes those of the command on.
    pub(super) fn feed(&mut self, bytes: &[u8], mut pass: impl FnMut(&[u8])) {
        self.received += bytes.len() as u64;
        let is_whole = &mut self.is_whole;
        if *is_whole {
            return;
        }
        self.parser.feed(bytes, |part| match part {
            Part::Data(bytes) if !*is_whole => pass(bytes),
            Part::Data(_) => {}
            Part::Frame(_) => *is_whole = true,
        });
    }

    /// Passes bytes on that could have been the start of the mark: no more bytes arrive.
    pub(super) fn finish(&mut self, pass: impl FnOnce(&[u8])) {
        let held = self.parser.take_held();
        if !self.is_whole && !held.is_empty() {
            pass(&held);
        }
    }

    /// Bytes that have arrived.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// Whether the mark has arrived, and so all output of the command.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: &[u8] = b"\0rollout:7f:\n";

    fn passed(chunks: &[&[u8]]) -> (Vec<u8>, MarkedOutput) {
        let mut output = MarkedOutput::new("7f");
        let mut passed = Vec::new();
        for chunk in chunks {
            output.feed(chunk, |bytes| passed.extend_from_slice(bytes));
        }
        (passed, output)
    }

    #[test]
    fn output_ends_at_mark_cut_anywhere() {
        let whole = [b"a\0b", MARK, b"left behind"].concat();
        for cut in 0..whole.len() {
            let (passed, output) = passed(&[&whole[..cut], &whole[cut..]]);
            assert_eq!(passed, b"a\0b", "{cut}");
            assert!(output.is_whole() && output.received() == whole.len() as u64, "{cut}");
        }
    }

    #[test]
    fn output_without_mark_is_not_whole_and_kept() {
        let (mut passed, mut output) = passed(&[b"a", &MARK[..5]]);
        assert!(!output.is_whole());
        output.finish(|bytes| passed.extend_from_slice(bytes));
        assert_eq!(passed, [b"a", &MARK[..5]].concat());
    }
}
