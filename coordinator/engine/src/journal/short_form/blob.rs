//! A blob reference that has its digest once.

use rollout_protocol::blob::{BlobRef, MediaType};
use rollout_protocol::digest::Digest;
use serde::{Deserialize, Serialize};

/// A blob reference without the digest, which its address has. `rollout gc` finds the address in the text
/// of a journal.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct ShortBlob {
    #[serde(rename = "uri", with = "address")]
    digest: Digest,
    #[serde(rename = "n")]
    size_bytes: u64,
    #[serde(rename = "m", default, skip_serializing_if = "Option::is_none")]
    media_type: Option<MediaType>,
}

impl From<&BlobRef> for ShortBlob {
    fn from(blob: &BlobRef) -> Self {
        let BlobRef { digest, size_bytes, media_type } = *blob;
        Self { digest, size_bytes, media_type }
    }
}

impl From<ShortBlob> for BlobRef {
    fn from(blob: ShortBlob) -> Self {
        let ShortBlob { digest, size_bytes, media_type } = blob;
        Self { digest, size_bytes, media_type }
    }
}

/// A digest as the address of a blob.
mod address {
    use rollout_protocol::digest::Digest;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    const SCHEME: &str = "cas://";

    pub(super) fn serialize<S: Serializer>(
        digest: &Digest,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{SCHEME}{digest}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Digest, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digest: Option<Digest> =
            text.strip_prefix(SCHEME).and_then(|digest| digest.parse().ok());
        digest.ok_or_else(|| D::Error::custom("it is not the address of a blob"))
    }
}
