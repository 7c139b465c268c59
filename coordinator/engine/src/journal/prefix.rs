//! Prefixes of a segment: their length and the identity of their records.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize, de::Error as _};

use super::frame::{self, SEGMENT_HEADER};

/// A length of a segment that ends with a whole record, and the identity of the records up to
/// there.
///
/// Two segments that share a prefix hold the same records up to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalPrefix {
    /// Epoch of the segment.
    pub epoch: u32,
    /// Records, the opening included.
    pub records: u64,
    /// Bytes, the header included.
    pub bytes: u64,
    /// Identity of the records.
    pub chain: RecordChain,
}

/// Identity of a sequence of records: every record's length and checksum, folded in order. It costs
/// little beside the checksums that frames have anyway. It distinguishes honest histories; it is
/// not a signature. Written as 16 hexadecimal digits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct RecordChain(u64);

impl JournalPrefix {
    /// The beginning of a segment, before its first record.
    pub(super) const fn start(epoch: u32) -> Self {
        Self { epoch, records: 0, bytes: SEGMENT_HEADER.len() as u64, chain: RecordChain(0) }
    }

    /// Adds one record by its frame.
    pub(super) fn add(&mut self, frame: &[u8]) {
        self.records += 1;
        self.bytes += frame.len() as u64;
        self.chain = self.chain.extend(frame);
    }

    /// Adds whole frames, one after the other.
    pub(super) fn add_all(&mut self, mut frames: &[u8]) {
        while let Some(payload) = frame::payload_bytes(frames) {
            let (frame, rest) = frames.split_at(frame::FRAME_HEADER_BYTES + payload);
            self.add(frame);
            frames = rest;
        }
        debug_assert!(frames.is_empty(), "only whole frames are written");
    }
}

impl RecordChain {
    /// The chain with one more frame. For a given chain, different frame prefixes give different
    /// chains, and vice versa: both steps are invertible.
    fn extend(self, frame: &[u8]) -> Self {
        let prefix = frame.first_chunk().expect("a frame begins with its prefix");
        // The finalizer of MurmurHash3, which spreads every bit over all the others.
        let mut x = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15) ^ u64::from_le_bytes(*prefix);
        x = (x ^ (x >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        x = (x ^ (x >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        Self(x ^ (x >> 33))
    }
}

impl fmt::Display for RecordChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for RecordChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chain({self})")
    }
}

impl FromStr for RecordChain {
    type Err = std::num::ParseIntError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text, 16).map(Self)
    }
}

impl Serialize for RecordChain {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RecordChain {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}
