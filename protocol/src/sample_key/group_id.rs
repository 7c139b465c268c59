//! Ids of groups, chosen by the caller.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::limits::GROUP_ID_BYTES;

/// The id of a group: 1 to [`GROUP_ID_BYTES`] bytes of ASCII letters, digits and `-`, `_`, `.`, `:`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(String);

/// Why a text is no id of a group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot use `{}` as the id of a group: use 1 to {GROUP_ID_BYTES} ASCII letters, digits, `-`, \
     `_`, `.` and `:`",
    crate::limits::shorten(text.clone(), GROUP_ID_BYTES)
)]
pub struct InvalidGroupId {
    /// The text.
    pub text: String,
}

impl GroupId {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for GroupId {
    type Err = InvalidGroupId;

    fn from_str(text: &str) -> Result<Self, InvalidGroupId> {
        let is_allowed =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':');
        if (1..=GROUP_ID_BYTES).contains(&text.len()) && text.bytes().all(is_allowed) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidGroupId { text: text.to_owned() })
        }
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for GroupId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for GroupId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_id_with_other_characters_is_refused() {
        let longest = "x".repeat(GROUP_ID_BYTES);
        for text in ["g", "step-12:prompt_3.a", &longest] {
            assert_eq!(text.parse::<GroupId>().expect("an id").as_str(), text);
        }
        for text in ["", "a/b", "a b", "ä", &"x".repeat(GROUP_ID_BYTES + 1)] {
            let error = text.parse::<GroupId>().expect_err("no id").to_string();
            assert!(error.starts_with("cannot use `"), "{error}");
        }
        assert!(serde_json::from_str::<GroupId>("\"a/b\"").is_err());
    }
}
