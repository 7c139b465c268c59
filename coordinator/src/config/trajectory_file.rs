//! Files with a conversation that agents continue.

use std::io::ErrorKind;
use std::path::Path;

use rollout_protocol::limits::TRAJECTORY_BYTES;
use rollout_worker::agents::PriorConversation;

use super::host_file;

/// Reads a file.
///
/// # Errors
/// Why it cannot be read, in words.
pub(crate) fn read(file: &Path) -> Result<Vec<u8>, String> {
    host_file::read(file, TRAJECTORY_BYTES).map_err(|error| match error.kind() {
        ErrorKind::FileTooLarge => format!("more than {TRAJECTORY_BYTES} bytes"),
        _ => error.to_string(),
    })
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
