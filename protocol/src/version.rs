//! Versions of the on-disk formats.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// Version of the journal's records, the record documents and the manifest. A reader accepts any
/// version up to its own; it never writes to a run directory of a newer version.
pub const RUN_FORMAT: u32 = 1;

/// A document of a format that only a newer version reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it has format {found}, this version reads up to {}: use a newer rollout", RUN_FORMAT)]
pub struct NewerFormat {
    /// The format.
    pub found: u32,
}

fn check(found: u32) -> Result<u32, NewerFormat> {
    if found > RUN_FORMAT { Err(NewerFormat { found }) } else { Ok(found) }
}

/// The format of a record document in JSON, if only a newer version reads it.
pub fn newer_format(document: &[u8]) -> Option<NewerFormat> {
    #[derive(Deserialize)]
    struct NumberedDocument {
        format: u32,
    }
    let document: NumberedDocument = serde_json::from_slice(document).ok()?;
    check(document.format).err()
}

/// Reads the format of a record and refuses a newer one.
///
/// # Errors
/// [`NewerFormat`], or it is not a number.
pub(crate) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    check(u32::deserialize(deserializer)?).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_of_newer_format_is_refused_with_its_number() {
        let read = |text: &str| read(&mut serde_json::Deserializer::from_str(text));
        assert_eq!(read(&RUN_FORMAT.to_string()).ok(), Some(RUN_FORMAT));
        let newer = RUN_FORMAT + 1;
        let error = read(&newer.to_string()).expect_err("newer").to_string();
        assert!(error.contains(&format!("format {newer}")), "{error}");
        assert!(error.contains("use a newer rollout"), "{error}");
    }

    #[test]
    fn newer_format_is_found_in_unreadable_document() {
        let found = |text: &str| newer_format(text.as_bytes()).map(|newer| newer.found);
        assert_eq!(found(r#"{"format": 9, "run": false}"#), Some(9));
        for other in [r#"{"format": 1}"#, r#"{"run": 1}"#, "nothing"] {
            assert_eq!(found(other), None, "{other}");
        }
    }
}
