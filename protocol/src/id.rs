//! Identities: runs, items, tries, executions, workers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use sha2::{Digest as _, Sha256};

use crate::digest::Digest;
pub use crate::text_form::InvalidId;
use crate::text_form::serde_by_text;

macro_rules! id128 {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; 16]);

        impl $name {
            /// The identity with these bytes.
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }

            /// The 16 bytes of the identity.
            pub const fn as_bytes(&self) -> &[u8; 16] {
                &self.0
            }

            /// The first eight hexadecimal digits, for people.
            pub fn short(&self) -> String {
                data_encoding::HEXLOWER.encode(&self.0[..4])
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut text = [0u8; 32];
                data_encoding::HEXLOWER.encode_mut(&self.0, &mut text);
                f.write_str(std::str::from_utf8(&text).expect("hexadecimal digits are ASCII"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                let mut bytes = [0u8; 16];
                let invalid = || InvalidId::new($what, "32 lower-case hexadecimal digits", text);
                if text.len() != 32 {
                    return Err(invalid());
                }
                let written = data_encoding::HEXLOWER
                    .decode_mut(text.as_bytes(), &mut bytes)
                    .map_err(|_| invalid())?;
                if written == 16 { Ok(Self(bytes)) } else { Err(invalid()) }
            }
        }

        serde_by_text!($name);
    };
}

id128! {
    /// One run: 128 random bits made together with the run directory.
    RunId, "run id"
}
id128! {
    /// One unit of owed work, named by its content (see [`ItemId::for_trial`]).
    ItemId, "item id"
}
id128! {
    /// One owner of a run: 128 random bits made by the process that takes its lock.
    OwnerId, "owner id"
}
id128! {
    /// One execution: 128 random bits minted by the worker when it gets a delivery.
    ExecId, "execution id"
}

impl ItemId {
    /// The key of a trial: the first 128 bits of the SHA-256 over its four length-prefixed parts.
    pub fn for_trial(agent: &str, dataset: &str, task: &str, attempt: u32) -> Self {
        let mut hasher = Sha256::new();
        for part in ["trial", agent, dataset, task] {
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part.as_bytes());
        }
        hasher.update(attempt.to_be_bytes());
        Self::first_half(hasher)
    }

    /// The key of an eval's try `attempt`, from 1, under the spec with this digest. The rounds tell
    /// apart how often its results were thrown away, and how often the infrastructure could not
    /// make it in a whole sitting.
    pub fn for_eval(
        tree: &str,
        eval: u32,
        rounds: (u32, u32),
        attempt: u32,
        spec: &Digest,
    ) -> Self {
        let mut hasher = Sha256::new();
        for part in ["eval", tree] {
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part.as_bytes());
        }
        for number in [eval, rounds.0, rounds.1, attempt] {
            hasher.update(number.to_be_bytes());
        }
        hasher.update(spec.as_bytes());
        Self::first_half(hasher)
    }

    /// The key of the command that writes ideas for a node, under the spec with this digest. `round`
    /// counts how often the ideas of the node were discarded. A command that failed is run again in a
    /// later session of the run as the next `attempt`, from 1.
    pub fn for_ideas(tree: &str, node: u32, round: u32, attempt: u32, spec: &Digest) -> Self {
        let mut hasher = Sha256::new();
        for part in ["ideas", tree] {
            hasher.update((part.len() as u64).to_be_bytes());
            hasher.update(part.as_bytes());
        }
        for number in [node, round, attempt] {
            hasher.update(number.to_be_bytes());
        }
        hasher.update(spec.as_bytes());
        Self::first_half(hasher)
    }

    fn first_half(hasher: Sha256) -> Self {
        let digest = hasher.finalize();
        let mut bytes = [0u8; 16];
        bytes.copy_from_slice(&digest[..16]);
        Self(bytes)
    }
}

/// The number of a try: the epoch of the coordinator that made it, and its number over the whole
/// life of the item. Later tries compare greater. Written `epoch-n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TryId {
    /// Epoch of the coordinator that journalled the try; starts at 1.
    pub epoch: u32,
    /// Number of the try over the life of the item; starts at 1.
    pub n: u32,
}

impl TryId {
    /// The first try of an item, offered in `epoch`.
    pub const fn first(epoch: u32) -> Self {
        Self { epoch, n: 1 }
    }

    /// The try after this one, offered in `epoch`.
    pub const fn next(self, epoch: u32) -> Self {
        Self { epoch, n: self.n + 1 }
    }
}

impl fmt::Display for TryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.n)
    }
}

impl FromStr for TryId {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let invalid = || InvalidId::new("try", "`epoch-n`, two positive integers", text);
        let (epoch, n) = text.split_once('-').ok_or_else(invalid)?;
        let parse = |part: &str| part.parse::<u32>().ok().filter(|v| *v > 0).ok_or_else(invalid);
        Ok(Self { epoch: parse(epoch)?, n: parse(n)? })
    }
}

serde_by_text!(TryId);

/// A worker process: a token of 1 to 64 characters of `[a-z0-9-]`, unique per process start.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(String);

impl WorkerId {
    /// The token.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for WorkerId {
    type Err = InvalidId;
    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let good = (1..=64).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if good {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidId::new("worker id", "1 to 64 characters of [a-z0-9-]", text))
        }
    }
}

serde_by_text!(WorkerId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trial_id_of_shifted_name_boundary_differs() {
        let a = ItemId::for_trial("ab", "c", "t", 1);
        let b = ItemId::for_trial("a", "bc", "t", 1);
        assert_ne!(a, b);
        assert_ne!(a, ItemId::for_trial("ab", "c", "t", 2));
        assert_eq!(a, ItemId::for_trial("ab", "c", "t", 1));
    }

    #[test]
    fn eval_id_differs_for_every_key_part() {
        let spec = Digest::sha256(b"spec");
        let of = |eval, rounds, attempt, spec: &Digest| {
            ItemId::for_eval("search", eval, rounds, attempt, spec)
        };
        let keys = [
            of(1, (0, 0), 1, &spec),
            of(2, (0, 0), 1, &spec),
            of(1, (1, 0), 1, &spec),
            of(1, (0, 1), 1, &spec),
            of(1, (0, 0), 2, &spec),
            of(1, (0, 0), 1, &Digest::sha256(b"another")),
            ItemId::for_eval("another", 1, (0, 0), 1, &spec),
        ];
        let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
        assert_eq!(keys[0], of(1, (0, 0), 1, &spec));
    }

    #[test]
    fn id_text_malformed_is_refused() {
        let run: RunId = "00112233445566778899aabbccddeeff".parse().expect("valid");
        assert_eq!(run.to_string(), "00112233445566778899aabbccddeeff");
        assert_eq!(run.short(), "00112233");
        for bad in
            ["", "00112233445566778899AABBCCDDEEFF", "0011", "zz112233445566778899aabbccddeeff"]
        {
            assert!(bad.parse::<RunId>().is_err(), "{bad}");
        }
        assert_eq!("2-13".parse::<TryId>().expect("valid"), TryId { epoch: 2, n: 13 });
        for bad in ["0-1", "1-0", "1", "-1-1", "1-1-1", "a-1"] {
            assert!(bad.parse::<TryId>().is_err(), "{bad}");
        }
        assert!("host_1".parse::<WorkerId>().is_err());
    }

    #[test]
    fn try_id_order_is_epoch_then_number() {
        let first = TryId::first(1);
        assert!(first < first.next(1));
        assert!(first.next(1) < first.next(1).next(2));
    }
}
