//! The document that identifies a store, the same for every kind of store.

use serde::{Deserialize, Serialize};

use super::StoreError;

/// Name of the document.
pub(super) const IDENTITY_FILE: &str = "store.json";

/// The layout version that this program reads and writes.
const FORMAT: u32 = 1;

/// Larger than any version writes.
pub(super) const MAX_IDENTITY_BYTES: u64 = 64 * 1024;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StoreIdentity {
    format: u32,
    pub(super) id: String,
}

impl StoreIdentity {
    /// A new identity.
    pub(super) fn random() -> Self {
        Self { format: FORMAT, id: format!("{:032x}", rand::random::<u128>()) }
    }

    /// Its text.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a number and a text have a JSON form")
    }

    /// Parses the text that is stored at `path`.
    ///
    /// # Errors
    /// [`StoreError::Unusable`] for another text or another format.
    pub(super) fn parse(text: &[u8], path: &str) -> Result<Self, StoreError> {
        let unusable = |reason: String| StoreError::Unusable { path: path.to_owned(), reason };
        let identity: Self =
            serde_json::from_slice(text).map_err(|error| unusable(error.to_string()))?;
        if identity.format == FORMAT {
            return Ok(identity);
        }
        let found = identity.format;
        Err(unusable(format!("it has format {found}, this version supports {FORMAT}")))
    }
}
