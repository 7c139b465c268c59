//! SHA-256 digests: the names of blobs, specs and plans.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use sha2::{Digest as _, Sha256};

use crate::text_form::{InvalidId, deserialize_by_text};

/// A SHA-256 digest, written `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of `bytes`.
    pub fn sha256(bytes: &[u8]) -> Self {
        let mut hasher = DigestHasher::default();
        hasher.update(bytes);
        hasher.finish()
    }

    /// The digest of a value's JSON text. Deterministic because specs hold no hash maps and serde
    /// writes fields in the order of their declaration.
    ///
    /// # Errors
    /// If the value has no JSON form.
    pub fn sha256_json<T: Serialize>(value: &T) -> Result<Self, serde_json::Error> {
        Ok(Self::sha256(&serde_json::to_vec(value)?))
    }

    /// The digest with these bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The 64 hexadecimal digits without the algorithm.
    pub fn hex(&self) -> String {
        data_encoding::HEXLOWER.encode(&self.0)
    }

    /// The first twelve hexadecimal digits, for people.
    pub fn short(&self) -> String {
        data_encoding::HEXLOWER.encode(&self.0[..6])
    }
}

const ALGORITHM: &str = "sha256:";

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(ALGORITHM)?;
        f.write_str(data_encoding::HEXLOWER.encode_mut_str(&self.0, &mut [0; 64]))
    }
}

// Records hold many digests: their text is made on the stack, in one piece.
impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = [0; ALGORITHM.len() + 64];
        let (algorithm, digits) = text.split_at_mut(ALGORITHM.len());
        algorithm.copy_from_slice(ALGORITHM.as_bytes());
        data_encoding::HEXLOWER.encode_mut(&self.0, digits);
        serializer.serialize_str(str::from_utf8(&text).expect("it is ASCII"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Digest {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let invalid =
            || InvalidId::new("digest", "`sha256:` and 64 lower-case hexadecimal digits", text);
        let hex = text.strip_prefix(ALGORITHM).filter(|h| h.len() == 64).ok_or_else(invalid)?;
        let mut bytes = [0u8; 32];
        data_encoding::HEXLOWER.decode_mut(hex.as_bytes(), &mut bytes).map_err(|_| invalid())?;
        Ok(Self(bytes))
    }
}

deserialize_by_text!(Digest);

/// Computes a [`Digest`] over bytes that arrive in pieces.
#[derive(Debug, Clone, Default)]
pub struct DigestHasher(Sha256);

impl DigestHasher {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Adds a part with its length in front, so that adjacent parts cannot be confused.
    pub fn update_part(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
    }

    /// The digest of everything added.
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_text_malformed_is_refused() {
        let empty = Digest::sha256(b"");
        let text = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(empty.to_string(), text);
        assert_eq!(text.parse::<Digest>().expect("valid"), empty);
        for bad in
            ["e3b0", "sha256:../../etc/passwd", "SHA256:00", &text.to_uppercase(), &text[..70]]
        {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
