//! Digests in text.

use rollout_protocol::digest::Digest;

/// Start of a digest.
const START: &[u8] = b"sha256:";

/// Length of a digest.
const DIGEST_BYTES: usize = START.len() + 64;

/// Text before a digest in a blob reference: `"uri":"cas://`, also with blanks after the colon. No
/// text inside a JSON string can contain it, because its quotes would be escaped.
const REFERENCE: [&[u8]; 2] = [b"\"uri\":\"cas://", b"\"uri\": \"cas://"];

/// Longest text that belongs to a digest.
const CONTEXT_BYTES: usize = DIGEST_BYTES + 14;

/// Finds every `sha256:` with 64 lower-case hexadecimal digits in bytes that arrive in pieces.
#[derive(Debug, Default)]
pub(super) struct DigestScanner {
    /// End of the previous pieces.
    rest: Vec<u8>,
}

impl DigestScanner {
    /// Scans the next piece. Calls `each` with a digest, and whether it is that of a blob
    /// reference.
    pub(super) fn scan(&mut self, piece: &[u8], mut each: impl FnMut(Digest, bool)) {
        let scanned = self.rest.len();
        self.rest.extend_from_slice(piece);
        let text = &self.rest;
        let mut at = 0;
        while let Some(found) = find(&text[at..], START) {
            let start = at + found;
            at = start + START.len();
            let Some(digest) = text.get(start..start + DIGEST_BYTES) else { break };
            // One that ends in the previous piece was found there.
            if start + DIGEST_BYTES > scanned
                && let Some(digest) = parse(digest)
            {
                each(digest, REFERENCE.iter().any(|before| text[..start].ends_with(before)));
            }
        }
        let keep = text.len().min(CONTEXT_BYTES);
        self.rest.drain(..self.rest.len() - keep);
    }
}

/// Scans a whole text.
pub(super) fn scan(text: &[u8], each: impl FnMut(Digest, bool)) {
    DigestScanner::default().scan(text, each);
}

fn parse(text: &[u8]) -> Option<Digest> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    let first = wanted[0];
    let mut from = 0;
    while let Some(found) = text[from..].iter().position(|byte| *byte == first) {
        if text[from + found..].starts_with(wanted) {
            return Some(from + found);
        }
        from += found + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rollout_protocol::blob::{BlobRef, MediaType};

    use super::*;

    fn found(pieces: &[&[u8]]) -> Vec<(Digest, bool)> {
        let (mut scanner, mut found) = (DigestScanner::default(), Vec::new());
        for piece in pieces {
            scanner.scan(piece, |digest, reference| found.push((digest, reference)));
        }
        found
    }

    #[test]
    fn reference_is_told_from_other_digests() {
        let blob = BlobRef::for_bytes(b"content", MediaType::Text);
        let expected = [(blob.digest, true), (blob.digest, false)];
        for text in [serde_json::to_vec(&blob), serde_json::to_vec_pretty(&blob)] {
            assert_eq!(found(&[&text.expect("valid")]), expected);
        }
        let quoted = serde_json::to_string(&blob).expect("valid");
        let quoted = serde_json::to_vec(&quoted).expect("valid");
        assert_eq!(found(&[&quoted]), [(blob.digest, false); 2], "text that quotes a reference");
    }

    #[test]
    fn text_that_is_almost_a_digest_is_not_one() {
        let hex = Digest::sha256(b"").hex();
        for text in [
            hex.clone(),
            format!("sha256:{}", &hex[..63]),
            format!("sha256:{}", hex.to_uppercase()),
            format!("sha256: {hex}"),
            format!("sha25:{hex}"),
        ] {
            assert_eq!(found(&[text.as_bytes()]), [], "{text}");
        }
        let nested = format!("sha256:sha256:{hex}");
        assert_eq!(found(&[nested.as_bytes()]), [(Digest::sha256(b""), false)]);
    }

    proptest! {
        #[test]
        fn digests_are_found_once_however_text_is_cut(
            parts in prop::collection::vec((any::<[u8; 32]>(), "[a-z\":{}s]{0,20}", any::<bool>()), 0..8),
            cuts in prop::collection::vec(1..200_usize, 1..40),
        ) {
            let (mut text, mut expected) = (Vec::new(), Vec::new());
            for (bytes, between, reference) in parts {
                let digest = Digest::from_bytes(bytes);
                text.extend_from_slice(between.as_bytes());
                text.extend_from_slice(if reference { REFERENCE[0] } else { b"," });
                text.extend_from_slice(digest.to_string().as_bytes());
                expected.push((digest, reference));
            }
            let (mut pieces, mut rest, mut cuts) = (Vec::new(), text.as_slice(), cuts.iter().cycle());
            while !rest.is_empty() {
                let (piece, later) = rest.split_at(rest.len().min(*cuts.next().expect("a cycle")));
                pieces.push(piece);
                rest = later;
            }
            prop_assert_eq!(found(&pieces), expected);
        }
    }
}
