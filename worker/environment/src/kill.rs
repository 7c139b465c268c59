//! The end of all processes that commands started in a container.

/// The script that ends them, for `/bin/sh -c` as root. It depends on the shell of the image, which may be
/// missing or hostile: its result is checked from outside.
pub const SCRIPT: &str = include_str!("kill.sh");
