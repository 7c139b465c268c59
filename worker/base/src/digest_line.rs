//! Small local files that end with the digest of their text, so that damage is detected.

use rollout_protocol::digest::Digest;

/// The digest of a file's text is not the one that was written with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the file is damaged: the digest of its text is {found}, expected {written}")]
pub struct DigestMismatch {
    /// Digest of the text.
    pub found: Digest,
    /// Digest that was written with it.
    pub written: Digest,
}

/// Appends to a text of one line a second line that holds its digest.
pub fn append(mut text: Vec<u8>) -> Vec<u8> {
    let digest = Digest::sha256(&text);
    text.extend_from_slice(format!("\n{digest}\n").as_bytes());
    text
}

/// The text of such a file. A file without a second line was written by a former version and is
/// returned unchanged.
///
/// # Errors
/// [`DigestMismatch`].
pub fn check(file: &[u8]) -> Result<&[u8], DigestMismatch> {
    let Some(end) = file.iter().position(|byte| *byte == b'\n') else { return Ok(file) };
    let (text, line) = (&file[..end], &file[end + 1..]);
    let line = std::str::from_utf8(line).unwrap_or_default().trim_end();
    let found = Digest::sha256(text);
    match line.parse() {
        Ok(written) if written == found => Ok(text),
        Ok(written) => Err(DigestMismatch { found, written }),
        // The second line itself is damaged.
        Err(_) if !line.is_empty() => Err(DigestMismatch { found, written: Digest::sha256(b"") }),
        Err(_) => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_line_with_changed_byte_is_refused() {
        let text = br#"{"some":"JSON"}"#.to_vec();
        let file = append(text.clone());
        assert_eq!(check(&file), Ok(text.as_slice()));
        assert_eq!(check(&text), Ok(text.as_slice()), "a former version's");
        for at in 0..file.len() - 1 {
            let mut changed = file.clone();
            changed[at] ^= 1;
            let same = check(&changed)
                .is_ok_and(|read| serde_json::from_slice::<serde_json::Value>(read).is_ok());
            assert!(!same, "changed at {at}");
        }
    }
}
