//! Files with a conversation that agents continue.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use rollout_protocol::limits::TRAJECTORY_BYTES;
use rollout_worker::agents::PriorConversation;

/// Reads a file.
///
/// # Errors
/// Why it cannot be read, in words.
pub(crate) fn read(file: &Path) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let opened = File::open(file).map_err(|error| error.to_string())?;
    let read = opened.take(TRAJECTORY_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > TRAJECTORY_BYTES {
        return Err(format!("more than {TRAJECTORY_BYTES} bytes"));
    }
    Ok(bytes)
}

/// Reads a file that must have a conversation.
///
/// # Errors
/// Why it has none, in words.
pub(crate) fn read_valid(file: &Path) -> Result<Vec<u8>, String> {
    let bytes = read(file)?;
    PriorConversation::parse(&bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}
