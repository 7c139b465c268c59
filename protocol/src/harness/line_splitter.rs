//! Lines of a stream that arrives in pieces, with bounded memory.

/// A line of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitLine<'a> {
    /// The line without its end.
    Complete(&'a [u8]),
    /// It exceeds the limit; its content is dropped.
    TooLong,
}

/// Splits a stream into lines.
#[derive(Debug)]
pub struct LineSplitter {
    longest: usize,
    /// The beginning of the line whose end has not arrived.
    pending: Vec<u8>,
    /// Whether the pending line exceeds the limit.
    too_long: bool,
}

impl LineSplitter {
    /// Splits a stream whose lines have at most `longest` bytes without their ends.
    pub const fn new(longest: usize) -> Self {
        Self { longest, pending: Vec::new(), too_long: false }
    }

    /// Takes the next piece and gives every line that ends in it to `take`.
    pub fn push(&mut self, mut piece: &[u8], mut take: impl FnMut(SplitLine<'_>)) {
        while let Some(end) = piece.iter().position(|byte| *byte == b'\n') {
            self.extend(&piece[..end]);
            self.give(&mut take);
            piece = &piece[end + 1..];
        }
        self.extend(piece);
    }

    /// Ends the stream: gives a last line that has no end to `take`.
    pub fn finish(&mut self, mut take: impl FnMut(SplitLine<'_>)) {
        if self.too_long || !self.pending.is_empty() {
            self.give(&mut take);
        }
    }

    fn extend(&mut self, bytes: &[u8]) {
        if self.too_long || self.pending.len() + bytes.len() > self.longest {
            self.too_long = true;
            self.pending.clear();
        } else {
            self.pending.extend_from_slice(bytes);
        }
    }

    fn give(&mut self, take: &mut impl FnMut(SplitLine<'_>)) {
        if self.too_long {
            take(SplitLine::TooLong);
        } else {
            take(SplitLine::Complete(&self.pending));
        }
        self.pending.clear();
        self.too_long = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(pieces: &[&[u8]], longest: usize) -> Vec<Option<Vec<u8>>> {
        let (mut splitter, mut lines) = (LineSplitter::new(longest), Vec::new());
        let mut take = |line: SplitLine<'_>| match line {
            SplitLine::Complete(bytes) => lines.push(Some(bytes.to_vec())),
            SplitLine::TooLong => lines.push(None),
        };
        for piece in pieces {
            splitter.push(piece, &mut take);
            assert!(splitter.pending.len() <= longest, "memory is bounded");
        }
        splitter.finish(take);
        lines
    }

    #[test]
    fn line_above_limit_is_dropped_and_next_is_read() {
        let lines = split(&[b"ab\n1234", b"5\n\ncd"], 4);
        assert_eq!(lines, [Some(b"ab".to_vec()), None, Some(Vec::new()), Some(b"cd".to_vec())]);
        assert_eq!(split(&[b"12345"], 4), [None]);
        assert_eq!(split(&[b"1234\n"], 4), [Some(b"1234".to_vec())]);
        assert_eq!(split(&[], 4), []);
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_pieces(
            text in "[ab\\n]{0,60}",
            cuts in proptest::collection::vec(0usize..61, 0..8),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> =
                cuts.windows(2).map(|pair| &text.as_bytes()[pair[0]..pair[1]]).collect();
            prop_assert_eq!(split(&pieces, 5), split(&[text.as_bytes()], 5));
        }
    }
}
