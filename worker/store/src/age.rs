//! Ages of blobs.

use std::time::SystemTime;

use rollout_protocol::limits;

/// Whether a blob with this modification time gets a new one when its content is stored again. A
/// time in the future is as good as now.
pub(super) fn needs_renewal(modified: SystemTime) -> bool {
    modified.elapsed().is_ok_and(|age| age > limits::BLOB_RENEWAL)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn blob_older_than_half_of_default_grace_needs_renewal() {
        assert_eq!(limits::BLOB_RENEWAL * 2, limits::BLOB_GRACE);
        let now = SystemTime::now();
        assert!(needs_renewal(now - limits::BLOB_RENEWAL - Duration::from_secs(1)));
        assert!(!needs_renewal(now - limits::BLOB_RENEWAL + Duration::from_secs(60)));
        assert!(!needs_renewal(now + Duration::from_secs(60)), "a clock ahead of this one");
    }
}
