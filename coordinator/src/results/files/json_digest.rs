//! JSON documents with a checksum: the last key is the digest of the rest.

use rollout_protocol::digest::Digest;
use serde::Serialize;

/// The key of the digest, the same as in `plan.json`.
const DIGEST_KEY: &str = "content";

/// The end of a pretty-printed object.
const OBJECT_END: &[u8] = b"\n}\n";

/// Serializes an object, with its digest as the last key.
///
/// # Errors
/// Errors of the serializer.
pub(super) fn to_vec(object: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(object)?;
    text.push(b'\n');
    let digest = Digest::sha256(&text);
    if let Some(open) =
        text.len().checked_sub(OBJECT_END.len()).filter(|at| text[*at..] == *OBJECT_END)
    {
        text.truncate(open);
        text.extend_from_slice(last_key(digest).as_bytes());
    }
    Ok(text)
}

/// Whether a document is unchanged since it was written. True for a document whose last value is
/// not a string: earlier versions wrote no digest.
pub(super) fn is_unchanged(text: &[u8]) -> bool {
    if !text.ends_with(b"\"\n}\n") {
        return true;
    }
    let start = text.len().saturating_sub(last_key(Digest::sha256(b"")).len());
    let (rest, end) = text.split_at(start);
    end == last_key(Digest::sha256(&[rest, OBJECT_END].concat())).as_bytes()
}

fn last_key(digest: Digest) -> String {
    format!(",\n  \"{DIGEST_KEY}\": \"{digest}\"\n}}\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn document_with_any_flipped_bit_is_detected() {
        let text = to_vec(&json!({ "reward": 1.0, "task": "a" })).expect("serializable");
        assert!(is_unchanged(&text));
        let value: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!(value["reward"], 1.0);
        for bit in 0..text.len() * 8 {
            let mut changed = text.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let is_json = serde_json::from_slice::<serde_json::Value>(&changed).is_ok();
            assert!(!is_unchanged(&changed) || !is_json, "bit {bit}");
        }
    }

    #[test]
    fn document_without_digest_counts_as_unchanged() {
        assert!(is_unchanged(b"{\n  \"record\": null\n}\n"));
        assert!(is_unchanged(b""));
    }
}
