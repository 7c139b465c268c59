//! Disk that an account lacks for a stream.

use std::fmt;

use super::error::NatsError;
use super::server_info::AccountLimits;

/// A stream for which an account, or the server, has too little disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingDisk {
    /// Stream.
    pub name: String,
    /// Bytes that it reserves, all copies together.
    pub reserved: u64,
    /// The disk there is.
    pub available: String,
}

impl MissingDisk {
    /// That of a stream which the server has refused, where the account has these limits.
    pub(super) fn of_refused(
        name: &str,
        reserved: u64,
        limits: Result<AccountLimits, NatsError>,
    ) -> Self {
        let available = match limits {
            Ok(AccountLimits { max_storage: Some(most), storage, .. }) => {
                format!("the account may use {most} bytes, of which {storage} are taken")
            }
            // The server's own disk is the limit.
            Ok(_) => "the server has less".to_owned(),
            Err(fault) => format!("the limits of the account are unknown: {fault}"),
        };
        Self { name: name.to_owned(), reserved, available }
    }
}

impl fmt::Display for MissingDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, reserved, available } = self;
        write!(f, "cannot create {name}, which reserves {reserved} bytes of disk: {available}")
    }
}

/// Disk that an account can still reserve for streams that do not exist yet.
#[derive(Debug)]
pub(super) struct DiskLeft {
    /// Its limits, where what streams reserve counts as used.
    limits: AccountLimits,
    /// Bytes that streams reserve, with those that are to be created.
    reserved: u64,
}

impl DiskLeft {
    pub(super) fn new(limits: AccountLimits, reserved: u64) -> Self {
        Self { limits, reserved }
    }

    /// Reserves bytes for a stream. Returns the disk that it lacks, if the server will refuse it.
    pub(super) fn reserve(&mut self, name: &str, bytes: u64) -> Option<MissingDisk> {
        let reserved = self.reserved.saturating_add(bytes);
        if bytes > 0 && self.limits.max_storage.is_some_and(|most| reserved > most) {
            return Some(MissingDisk::of_refused(name, bytes, Ok(self.limits)));
        }
        self.reserved = reserved;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(max_storage: Option<u64>, reserved: u64) -> DiskLeft {
        let limits = AccountLimits { memory: 0, max_memory: None, storage: reserved, max_storage };
        DiskLeft::new(limits, reserved)
    }

    #[test]
    fn stream_larger_than_the_rest_of_the_account_lacks_disk() {
        let mut disk = left(Some(1000), 300);
        assert_eq!(disk.reserve("WORK", 0), None, "it reserves nothing");
        assert_eq!(disk.reserve("REPORTS", 600), None);
        let missing = disk.reserve("OTHER", 101).expect("one byte too much");
        let text = "cannot create OTHER, which reserves 101 bytes of disk: the account may use 1000 \
                    bytes, of which 300 are taken";
        assert_eq!(missing.to_string(), text);
        assert_eq!(disk.reserve("SMALLER", 100), None, "the other one reserves nothing");
    }

    #[test]
    fn account_without_a_limit_lacks_nothing() {
        assert_eq!(left(None, 7).reserve("REPORTS", u64::MAX), None);
    }
}
