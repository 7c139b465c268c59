//! Marks of the last event of a stream, in an event that has not ended: some clients do not wait for
//! its empty line.

use rollout_protocol::record::ModelEndpoint;

/// Searches an event while it comes. No byte is searched twice.
#[derive(Debug)]
pub(crate) struct LastMark {
    marks: &'static [&'static [u8]],
    /// Position of the event in the stream.
    begin: u64,
    /// Bytes of it that have been searched.
    searched: usize,
    is_found: bool,
}

impl LastMark {
    /// A search in a stream of an endpoint.
    pub(crate) const fn new(endpoint: ModelEndpoint) -> Self {
        let marks: &[&[u8]] = match endpoint {
            ModelEndpoint::ChatCompletions | ModelEndpoint::Completions => &[b"[DONE]"],
            ModelEndpoint::Responses => {
                &[b"response.completed", b"response.incomplete", b"response.failed"]
            }
            ModelEndpoint::Messages => &[b"message_stop"],
            ModelEndpoint::GenerateContent => &[b"finishReason", b"blockReason"],
            ModelEndpoint::CountTokens => &[],
        };
        Self { marks, begin: 0, searched: 0, is_found: false }
    }

    /// Whether an event may be the last one: `pending` is what has come of it, from `begin` of the
    /// stream.
    pub(crate) fn is_in(&mut self, begin: u64, pending: &[u8]) -> bool {
        if begin != self.begin {
            (self.begin, self.searched, self.is_found) = (begin, 0, false);
        }
        if !self.is_found {
            let searched = self.searched;
            self.is_found = self.marks.iter().any(|mark| {
                let from = searched.saturating_sub(mark.len() - 1);
                pending[from..].windows(mark.len()).any(|part| part == *mark)
            });
            self.searched = pending.len();
        }
        self.is_found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mark_is_found_over_borders_of_pieces_and_only_in_its_event() {
        let mut mark = LastMark::new(ModelEndpoint::ChatCompletions);
        assert!(!mark.is_in(0, b"data: [DO"));
        assert!(mark.is_in(0, b"data: [DONE]"));
        assert!(mark.is_in(0, b"data: [DONE]\n"));
        assert!(!mark.is_in(14, b"data: "));
        let mut mark = LastMark::new(ModelEndpoint::Responses);
        assert!(!mark.is_in(0, b"event: response.created\n"));
        assert!(mark.is_in(25, b"event: response.completed\n"));
        assert!(!LastMark::new(ModelEndpoint::CountTokens).is_in(0, b"data: x"));
    }
}
