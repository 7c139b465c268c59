//! The outcome of an execution on this host: a record, and files that are not stored yet.

use std::path::PathBuf;

use rollout_protocol::blob::MediaType;

/// A record whose files are not stored yet; `Role` says what a file becomes in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft<Record, Role> {
    /// The record; it lacks its files until they are stored.
    pub record: Record,
    /// The files, in the execution's scratch directory.
    pub files: Vec<DraftFile<Role>>,
}

/// A file that waits to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftFile<Role> {
    /// Where it is.
    pub file: PathBuf,
    /// Its media type.
    pub media_type: MediaType,
    /// Its part in the record.
    pub role: Role,
}

impl<Record, Role> Draft<Record, Role> {
    /// The same draft as one of any kind of execution.
    pub(crate) fn map<R, O>(
        self,
        record: impl FnOnce(Record) -> R,
        role: impl Fn(Role) -> O,
    ) -> Draft<R, O> {
        let Self { record: own, files } = self;
        let of = |DraftFile { file, media_type, role: own }| {
            let role = role(own);
            DraftFile { file, media_type, role }
        };
        Draft { record: record(own), files: files.into_iter().map(of).collect() }
    }
}
