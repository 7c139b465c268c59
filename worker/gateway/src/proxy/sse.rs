//! Server-sent events from bytes that arrive in pieces. The result does not depend on the pieces.

/// An event of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SseEvent {
    /// Position of its first byte in the stream.
    pub(crate) start: u64,
    /// Its bytes, the empty line at its end included.
    pub(crate) raw: Vec<u8>,
    /// Its lines of data, joined; `None` if it has none, like a comment.
    pub(crate) data: Option<String>,
}

/// Splits a stream into events.
#[derive(Debug, Default)]
pub(crate) struct SseParser {
    /// Bytes of the event that has not ended.
    pending: Vec<u8>,
    /// Position of the first of them.
    start: u64,
    /// Where the line begins that has not ended, in `pending`.
    line: usize,
}

impl SseParser {
    /// Takes bytes and returns the events that they complete.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<SseEvent> {
        let mut events = Vec::new();
        let mut at = self.pending.len();
        self.pending.extend_from_slice(bytes);
        if at > self.line && self.pending[at - 1] == b'\r' {
            // Its line is not taken yet: a line feed might have followed.
            at -= 1;
        }
        while let Some((end, next)) = self.line_end(at) {
            let is_empty = end == self.line;
            (self.line, at) = (next, next);
            if is_empty {
                events.push(self.take(next));
                at = 0;
            }
        }
        events
    }

    /// Ends the stream; returns an event that lacks its empty line.
    pub(crate) fn finish(mut self) -> Option<SseEvent> {
        let length = self.pending.len();
        (length > 0).then(|| self.take(length))
    }

    /// The bytes of the event that has not ended, and the position of the first one.
    pub(crate) fn pending(&self) -> (u64, &[u8]) {
        (self.start, &self.pending)
    }

    /// End of the line without its terminator, and start of the next one, searched from `from`.
    /// None if the end of the line is not certain yet.
    fn line_end(&self, from: usize) -> Option<(usize, usize)> {
        let found = self.pending[from..].iter().position(|byte| matches!(byte, b'\n' | b'\r'))?;
        let end = from + found;
        match (self.pending[end], self.pending.get(end + 1)) {
            (b'\n', _) => Some((end, end + 1)),
            (_, Some(b'\n')) => Some((end, end + 2)),
            (_, Some(_)) => Some((end, end + 1)),
            (_, None) => None,
        }
    }

    fn take(&mut self, length: usize) -> SseEvent {
        let rest = self.pending.split_off(length);
        let raw = std::mem::replace(&mut self.pending, rest);
        let start = self.start;
        self.start += length as u64;
        self.line = 0;
        let data = data(&raw);
        SseEvent { start, raw, data }
    }
}

/// The data of an event.
fn data(raw: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(raw);
    let mut data: Option<String> = None;
    for line in text.split(['\n', '\r']) {
        let Some(value) = line.strip_prefix("data") else { continue };
        let value = match value.strip_prefix(':') {
            Some(value) => value.strip_prefix(' ').unwrap_or(value),
            None if value.is_empty() => value,
            None => continue,
        };
        match &mut data {
            Some(data) => {
                data.push('\n');
                data.push_str(value);
            }
            None => data = Some(value.to_owned()),
        }
    }
    data
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(pieces: &[&[u8]]) -> (Vec<SseEvent>, Option<SseEvent>) {
        let mut parser = SseParser::default();
        let events = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
        (events, parser.finish())
    }

    #[test]
    fn sse_events_end_at_empty_lines_of_any_kind() {
        let text = b"event: a\ndata: 1\n\ndata:2\r\ndata: 3\r\n\r\n: ping\r\rdata";
        let (events, rest) = parse(&[text]);
        let data: Vec<_> = events.iter().map(|event| event.data.as_deref()).collect();
        assert_eq!(data, [Some("1"), Some("2\n3"), None]);
        assert_eq!(rest.map(|event| event.data), Some(Some(String::new())));
        let starts: Vec<_> = events.iter().map(|event| event.start).collect();
        assert_eq!(starts, [0, 18, 37]);
    }

    proptest! {
        #[test]
        fn sse_events_do_not_depend_on_pieces(
            lines in prop::collection::vec(
                prop::sample::select(vec![
                    "data: {\"a\":1}", "data: [DONE]", ": ping", "event: x", "", "", "data:", "é",
                ]),
                0..30,
            ),
            ends in prop::collection::vec(prop::sample::select(vec!["\n", "\r\n", "\r"]), 30),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        ) {
            let text: String = lines.iter().zip(&ends).flat_map(|(line, end)| [*line, end]).collect();
            let bytes = text.as_bytes();
            let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces: Vec<_> = cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect();
            let (events, rest) = parse(&pieces);
            let (whole_events, whole_rest) = parse(&[bytes]);
            prop_assert_eq!(&events, &whole_events);
            prop_assert_eq!(&rest, &whole_rest);
            let joined: Vec<u8> =
                events.iter().chain(&rest).flat_map(|event| event.raw.clone()).collect();
            prop_assert_eq!(joined, bytes);
        }
    }
}
