//! Versions of what is written to disk.

/// Version of the journal's records, the record documents and the manifest. A reader accepts
/// anything up to its own version; a run directory of a newer version is never written.
pub const RUN_FORMAT: u32 = 1;
