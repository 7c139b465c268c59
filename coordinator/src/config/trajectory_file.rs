//! Files with a conversation that agents continue.

use std::io;
use std::path::Path;

use rollout_base::confined::ConfinedDir;
use rollout_base::regular_file;
use rollout_gateway::agents::PriorConversation;
use rollout_protocol::limits::TRAJECTORY_BYTES;

/// Reads a file that must have a conversation.
///
/// # Errors
/// Why it has none, in words.
pub(crate) fn read_valid(file: &Path) -> Result<Vec<u8>, String> {
    valid(regular_file::read(file, TRAJECTORY_BYTES))
}

/// Reads such a file of the task in `dir`.
///
/// # Errors
/// As [`read_valid`].
pub(crate) fn read_valid_of_task(dir: &Path, path: &Path) -> Result<Vec<u8>, String> {
    valid(ConfinedDir::open(dir).and_then(|dir| dir.read(path, TRAJECTORY_BYTES)))
}

fn valid(read: io::Result<Vec<u8>>) -> Result<Vec<u8>, String> {
    let bytes = read.map_err(|error| match error.kind() {
        io::ErrorKind::FileTooLarge => format!("more than {TRAJECTORY_BYTES} bytes"),
        _ => error.to_string(),
    })?;
    PriorConversation::parse(&bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}
