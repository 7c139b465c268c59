//! Identities of the daemon's runs and farms.

use std::fmt;
use std::str::FromStr;

use rand::RngExt as _;
use rollout_protocol::Timestamp;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Hexadecimal digits of the time of the submission, in milliseconds.
const TIME_DIGITS: usize = 12;

/// Hexadecimal digits of random bits.
const RANDOM_DIGITS: usize = 12;

/// An id of the daemon: the letter `KIND`, the time of the submission and random bits, in hexadecimal
/// digits. Ids are ordered by time. It is also the name of the run directory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostedId<const KIND: char>(String);

/// A run of the daemon.
pub type HostedRunId = HostedId<'r'>;

/// A farm of the daemon.
pub type HostedFarmId = HostedId<'f'>;

/// A text that is no id of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot read the id: expected `{kind}` and 24 hexadecimal digits")]
pub struct InvalidHostedId {
    /// The letter of its kind.
    kind: char,
}

impl<const KIND: char> HostedId<KIND> {
    /// A new id at a time.
    pub(super) fn new(now: Timestamp) -> Self {
        let ms = u64::try_from(now.as_millisecond()).unwrap_or_default() & 0xffff_ffff_ffff;
        let random: u64 = rand::rng().random::<u64>() & 0xffff_ffff_ffff;
        Self(format!("{KIND}{ms:0TIME_DIGITS$x}{random:0RANDOM_DIGITS$x}"))
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<const KIND: char> fmt::Display for HostedId<KIND> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<const KIND: char> FromStr for HostedId<KIND> {
    type Err = InvalidHostedId;

    fn from_str(text: &str) -> Result<Self, InvalidHostedId> {
        let invalid = InvalidHostedId { kind: KIND };
        let digits = text.strip_prefix(KIND).ok_or(invalid)?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_valid = digits.len() == TIME_DIGITS + RANDOM_DIGITS && digits.bytes().all(is_digit);
        if is_valid { Ok(Self(text.to_owned())) } else { Err(invalid) }
    }
}

impl<const KIND: char> Serialize for HostedId<KIND> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de, const KIND: char> Deserialize<'de> for HostedId<KIND> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_ordered_by_time_and_read_back() {
        let at = |ms| HostedRunId::new(Timestamp::from_millisecond(ms).expect("a time"));
        let (early, late) = (at(1_000), at(1_700_000_000_000));
        assert!(early < late, "{early} {late}");
        assert_eq!(late.as_str().parse(), Ok(late.clone()));
        assert_ne!(at(1_000), early);
    }

    #[test]
    fn text_that_is_a_path_is_no_id() {
        for text in ["", "r", "../../etc/passwd", "r0123", &format!("r{}", "G".repeat(24))] {
            assert!(text.parse::<HostedRunId>().is_err(), "{text}");
        }
        let farm = HostedFarmId::new(Timestamp::UNIX_EPOCH);
        assert!(farm.as_str().parse::<HostedRunId>().is_err(), "a farm is no run");
    }
}
