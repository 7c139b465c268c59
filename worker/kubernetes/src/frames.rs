//! Frames of the provider's scripts in the output of an exec call.
//!
//! A frame is a NUL, a mark and a line. The mark is random for each call, so that no output contains
//! it by accident.

/// Longest frame: an error text and numbers.
const MAX_FRAME: usize = 4096;

/// Separates frames from output.
#[derive(Debug)]
pub(super) struct FrameParser {
    /// NUL and mark.
    start: Vec<u8>,
    /// Bytes that may be the start of a frame, or a frame without its end.
    held: Vec<u8>,
}

/// A part of the output.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    /// Output.
    Data(&'a [u8]),
    /// The text of a frame.
    Frame(String),
}

/// A new mark.
pub(super) fn new_mark() -> String {
    format!("rollout:{:032x}:", rand::random::<u128>())
}

impl FrameParser {
    /// A parser of frames with a mark.
    pub(super) fn new(mark: &str) -> Self {
        let start = [b"\0", mark.as_bytes()].concat();
        Self { start, held: Vec::new() }
    }

    /// Parses more bytes; calls `part` in their order.
    pub(super) fn feed(&mut self, bytes: &[u8], mut part: impl FnMut(Part<'_>)) {
        if self.held.is_empty() && !bytes.contains(&0) {
            if !bytes.is_empty() {
                part(Part::Data(bytes));
            }
            return;
        }
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(bytes);
        let mut rest = all.as_slice();
        loop {
            let at = self.find(rest);
            let (data, frame) = rest.split_at(at);
            if !data.is_empty() {
                part(Part::Data(data));
            }
            if frame.len() < self.start.len() {
                self.held = frame.to_vec();
                return;
            }
            let text = &frame[self.start.len()..];
            match text.iter().position(|byte| *byte == b'\n') {
                Some(end) => {
                    part(Part::Frame(String::from_utf8_lossy(&text[..end]).into_owned()));
                    rest = &text[end + 1..];
                }
                None if text.len() > MAX_FRAME => {
                    part(Part::Data(frame));
                    return;
                }
                None => {
                    self.held = frame.to_vec();
                    return;
                }
            }
        }
    }

    /// Bytes that would have become a frame or output with more bytes.
    pub(super) fn take_held(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Where a frame begins, or may begin at the end of `bytes`; else their length.
    fn find(&self, bytes: &[u8]) -> usize {
        let zeros = bytes.iter().enumerate().filter(|(_, byte)| **byte == 0);
        let begins = |at: &usize| {
            let tail = &bytes[*at..];
            let length = tail.len().min(self.start.len());
            tail[..length] == self.start[..length]
        };
        zeros.map(|(at, _)| at).find(begins).unwrap_or(bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(chunks: &[&[u8]]) -> (Vec<u8>, Vec<String>) {
        let mut parser = FrameParser::new("mark:");
        let (mut data, mut frames) = (Vec::new(), Vec::new());
        for chunk in chunks {
            parser.feed(chunk, |part| match part {
                Part::Data(bytes) => data.extend_from_slice(bytes),
                Part::Frame(text) => frames.push(text),
            });
        }
        (data, frames)
    }

    #[test]
    fn frame_inside_output_is_separated() {
        let (data, frames) = parsed(&[b"one\0mark:b\ntwo\0", b"mark:e 0 6 0\n"]);
        assert_eq!((data.as_slice(), frames), (&b"onetwo"[..], vec!["b".into(), "e 0 6 0".into()]));
    }

    #[test]
    fn output_that_resembles_frame_is_output() {
        let (data, frames) = parsed(&[b"\0\0mark", b"\0mar", b"X"]);
        assert_eq!((data.as_slice(), frames.len()), (&b"\0\0mark\0marX"[..], 0));
    }

    #[test]
    fn output_without_nul_is_not_held_back() {
        assert_eq!(parsed(&[b"progress 1%\r"]).0, b"progress 1%\r");
    }

    proptest! {
        #[test]
        fn frames_are_found_at_any_cut(
            parts in prop::collection::vec(("[\0mark:ab\n]{0,12}", "[a-z0-9 ]{0,8}"), 0..6),
            cuts in prop::collection::vec(0..200_usize, 0..8),
        ) {
            let (mut bytes, mut wanted, mut texts) = (Vec::new(), Vec::new(), Vec::new());
            for (data, text) in &parts {
                prop_assume!(!data.contains("\0mark:") && !data.ends_with('\0'));
                bytes.extend_from_slice(data.as_bytes());
                wanted.extend_from_slice(data.as_bytes());
                bytes.extend_from_slice(format!("\0mark:{text}\n").as_bytes());
                texts.push(text.clone());
            }
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            let mut chunks = Vec::new();
            let mut from = 0;
            for cut in cuts {
                chunks.push(&bytes[from..cut]);
                from = cut;
            }
            chunks.push(&bytes[from..]);
            prop_assert_eq!(parsed(&chunks), (wanted, texts));
        }
    }
}
