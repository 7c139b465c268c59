//! Versions of the on-disk formats.

/// Version of the journal's records, the record documents and the manifest. A reader accepts any
/// version up to its own; it never writes to a run directory of a newer version.
pub const RUN_FORMAT: u32 = 1;
