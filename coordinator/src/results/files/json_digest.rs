//! JSON documents with a checksum: the last key is the digest of the rest. Each key has a line: a trial
//! has few bytes of its own, and every document takes whole blocks of the disk.

use std::io::{self, Write};

use rollout_protocol::digest::Digest;
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// The key of the digest, the same as in `plan.json`.
const DIGEST_KEY: &str = "content";

/// The end of an object of lines.
const OBJECT_END: &[u8] = b"\n}\n";

/// Serializes an object, with its digest as the last key.
///
/// # Errors
/// Errors of the serializer.
pub(super) fn to_vec(object: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = Vec::new();
    object.serialize(&mut Serializer::with_formatter(&mut text, KeyLines::default()))?;
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

/// Begins a line before each key of the document itself, and writes its values without blanks.
#[derive(Debug, Default)]
struct KeyLines {
    /// Objects and lists that are open.
    depth: usize,
    has_keys: bool,
}

impl Formatter for KeyLines {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth += 1;
        writer.write_all(b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth -= 1;
        writer.write_all(b"]")
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth += 1;
        writer.write_all(b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth -= 1;
        let is_of_lines = self.depth == 0 && self.has_keys;
        writer.write_all(if is_of_lines { b"\n}" } else { b"}" })
    }

    fn begin_object_key<W>(&mut self, writer: &mut W, first: bool) -> io::Result<()>
    where
        W: ?Sized + Write,
    {
        if !first {
            writer.write_all(b",")?;
        }
        if self.depth > 1 {
            return Ok(());
        }
        self.has_keys = true;
        writer.write_all(b"\n  ")
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(if self.depth > 1 { b":" } else { b": " })
    }
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
    fn document_has_a_line_for_each_key() {
        let value = json!({ "a": [1, { "b": [], "c": {} }], "d": { "e": "f g" }, "h": null });
        let text = String::from_utf8(to_vec(&value).expect("serializable")).expect("UTF-8");
        let lines: Vec<_> = text.lines().collect();
        let expected =
            ["{", r#"  "a": [1,{"b":[],"c":{}}],"#, r#"  "d": {"e":"f g"},"#, r#"  "h": null,"#];
        assert_eq!(lines[..4], expected);
        assert!(lines[4].starts_with(r#"  "content": "sha256:"#) && lines[5..] == ["}"], "{text}");
        assert!(is_unchanged(text.as_bytes()));
        let read: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&read["a"], &read["d"]), (&value["a"], &value["d"]));
        assert_eq!(to_vec(&json!({})).expect("serializable"), b"{}\n");
    }

    #[test]
    fn document_of_an_earlier_version_is_unchanged_until_it_is_edited() {
        let rest = "{\n  \"task\": {\n    \"name\": \"a\"\n  }\n}\n";
        let (open, _) = rest.split_at(rest.len() - OBJECT_END.len());
        let text = format!("{open}{}", last_key(Digest::sha256(rest.as_bytes())));
        assert!(is_unchanged(text.as_bytes()));
        assert!(!is_unchanged(text.replace("\"a\"", "\"b\"").as_bytes()));
    }

    #[test]
    fn document_without_digest_counts_as_unchanged() {
        assert!(is_unchanged(b"{\n  \"record\": null\n}\n"));
        assert!(is_unchanged(b""));
    }
}
