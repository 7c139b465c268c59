//! Repair of frames with one changed bit.
//!
//! CRC-32C detects every change of up to three bits in a frame, and locates the change of a single
//! bit. A frame with one changed bit can therefore be restored.

use super::frame::{self, FRAME_HEADER_BYTES};

/// CRC-32C's polynomial, lowest power first.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Longest frame that is searched for a changed bit.
const MAX_FRAME_BYTES: usize = 64 * 1024 * 1024;

/// The frame at the beginning of `bytes` with its one wrong bit corrected; `None` when no single
/// bit explains the bytes.
pub(super) fn repair_bit(bytes: &[u8]) -> Option<Vec<u8>> {
    let stated = frame::payload_bytes(bytes);
    let mended = stated.and_then(|payload| as_stated(bytes, payload));
    mended.or_else(|| with_another_length(bytes))
}

/// Whether `bytes` begins with a frame whose length has one changed bit.
pub(super) fn has_changed_length(bytes: &[u8]) -> bool {
    with_another_length(bytes).is_some()
}

/// Repairs a frame whose length is right: a bit of the checksum or of the payload is wrong.
fn as_stated(bytes: &[u8], payload: usize) -> Option<Vec<u8>> {
    let mut frame =
        bytes.get(..FRAME_HEADER_BYTES + payload).filter(|f| f.len() <= MAX_FRAME_BYTES)?.to_vec();
    let difference = frame::checksum_difference(&frame)?;
    if difference.is_power_of_two() {
        let bit = difference.trailing_zeros() as usize;
        frame[4 + bit / 8] ^= 1 << (bit % 8);
    } else {
        let bit = position(difference, payload)?;
        frame[FRAME_HEADER_BYTES + bit / 8] ^= 1 << (bit % 8);
    }
    is_record(&frame).then_some(frame)
}

fn with_another_length(bytes: &[u8]) -> Option<Vec<u8>> {
    (0..32).find_map(|bit| {
        let mut prefix: [u8; FRAME_HEADER_BYTES] = *bytes.first_chunk()?;
        prefix[bit / 8] ^= 1 << (bit % 8);
        let payload = frame::payload_bytes(&prefix)?;
        let rest = bytes.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + payload)?;
        let mended = [&prefix, rest].concat();
        is_record(&mended).then_some(mended)
    })
}

/// The payload bit, counted from the first, whose change causes this difference of checksums.
fn position(difference: u32, payload: usize) -> Option<usize> {
    let mut effect = POLYNOMIAL;
    for bit in (0..payload * 8).rev() {
        if effect == difference {
            return Some(bit);
        }
        effect = (effect >> 1) ^ (POLYNOMIAL & (effect & 1).wrapping_neg());
    }
    None
}

fn is_record(frame: &[u8]) -> bool {
    frame::decode(frame)
        .is_some_and(|payload| serde_json::from_slice::<frame::DecodedRecord>(payload).is_ok())
}

#[cfg(test)]
mod tests {
    use rollout_protocol::Timestamp;
    use rollout_protocol::wire::control::StopLevel;

    use super::*;
    use crate::core::JournalRecord;

    #[test]
    fn journal_frame_with_one_flipped_bit_is_repaired_two_are_not() {
        let mut frame = Vec::new();
        let record = JournalRecord::Stopping { level: StopLevel::Drain };
        frame::encode(&mut frame, Timestamp::UNIX_EPOCH, true, &record).expect("a short record");
        let followed = |frame: &[u8]| [frame, b"more".as_slice()].concat();
        for bit in 0..frame.len() * 8 {
            let mut changed = frame.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(repair_bit(&followed(&changed)).as_ref(), Some(&frame), "bit {bit}");
            let other = (bit * 7 + 13) % (frame.len() * 8);
            if other != bit {
                changed[other / 8] ^= 1 << (other % 8);
                assert_eq!(repair_bit(&followed(&changed)), None, "bits {bit} and {other}");
            }
        }
    }
}
