//! References to blobs: immutable bytes named by their digest.

use serde::{Deserialize, Serialize, de::Error as _};

use crate::digest::Digest;

/// A reference to a blob, independent of the store that holds it. Written
/// `{"uri": "cas://sha256:…", "digest": "sha256:…", "size_bytes": n, "media_type": "…"}`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BlobRef {
    /// Digest of the bytes.
    pub digest: Digest,
    /// Number of bytes.
    pub size_bytes: u64,
    /// Media type of the bytes, if known.
    pub media_type: Option<MediaType>,
}

/// Media type of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MediaType {
    /// A JSON document.
    #[serde(rename = "application/json")]
    Json,
    /// An uncompressed tar archive of regular files and directories.
    #[serde(rename = "application/x-tar")]
    Tar,
    /// Captured output or other text; not necessarily valid UTF-8.
    #[serde(rename = "text/plain")]
    Text,
    /// Anything else, including media types this version does not know.
    #[serde(rename = "application/octet-stream", other)]
    Bytes,
}

impl MediaType {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Tar => "application/x-tar",
            Self::Text => "text/plain",
            Self::Bytes => "application/octet-stream",
        }
    }
}

impl BlobRef {
    /// The reference to `bytes`.
    pub fn for_bytes(bytes: &[u8], media_type: MediaType) -> Self {
        Self {
            digest: Digest::sha256(bytes),
            size_bytes: bytes.len() as u64,
            media_type: Some(media_type),
        }
    }

    /// The canonical location-independent address, `cas://sha256:…`.
    pub fn uri(&self) -> String {
        format!("cas://{}", self.digest)
    }
}

#[derive(Serialize, Deserialize)]
struct BlobRefText {
    uri: String,
    digest: Digest,
    size_bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    media_type: Option<MediaType>,
}

impl Serialize for BlobRef {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        BlobRefText {
            uri: self.uri(),
            digest: self.digest,
            size_bytes: self.size_bytes,
            media_type: self.media_type,
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for BlobRef {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = BlobRefText::deserialize(deserializer)?;
        let blob =
            Self { digest: text.digest, size_bytes: text.size_bytes, media_type: text.media_type };
        if text.uri == blob.uri() {
            Ok(blob)
        } else {
            Err(D::Error::custom(format!(
                "uri `{}` does not name digest {}",
                text.uri, blob.digest
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blob_ref_with_mismatched_uri_is_refused() {
        let blob = BlobRef::for_bytes(b"hello", MediaType::Text);
        let text = serde_json::to_string(&blob).expect("serializable");
        assert_eq!(serde_json::from_str::<BlobRef>(&text).expect("valid"), blob);
        let other = text.replacen("cas://sha256:2c", "cas://sha256:2d", 1);
        assert!(serde_json::from_str::<BlobRef>(&other).is_err());
    }
}
