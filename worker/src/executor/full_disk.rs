//! Full and failed disks of this host. A failure during which one was full or took no writes does not
//! count against the agent, unless the execution itself filled the disk beyond its own limit.

use rollout_base::shortage::Shortage;
use rollout_environment::Environment;
use rollout_protocol::error::{ErrorCode, TrialError};
use tokio::time::Instant;

use super::capture::Capture;
use super::host_fault::FaultedExecution;
use crate::disk::DiskWatch;

/// Evidence of a full disk in an execution.
pub(crate) struct DiskFullEvidence<'a> {
    /// When the execution began.
    pub(crate) began: Instant,
    /// Captured output. Checking it ends the captures.
    pub(crate) captures: Vec<&'a Capture>,
    /// Errors of the execution except the first.
    pub(crate) errors: &'a [TrialError],
    /// The running environments, whose storage can be measured.
    pub(crate) environments: Vec<&'a dyn Environment>,
}

/// A disk of this host that was full or took no writes while an execution ran.
#[derive(Debug)]
pub(crate) struct FullDisk {
    /// The disk, as named in messages.
    disk: String,
    code: ErrorCode,
    /// How the execution exceeds its own limit, if it does.
    excess: Option<String>,
}

/// Whether an error stands although a disk was full: it is retried, or concerns the storage limit.
pub(crate) fn is_conclusive(error: &TrialError) -> bool {
    error.is_retryable() || error.code == ErrorCode::STORAGE_EXCEEDED
}

impl FullDisk {
    /// Detects a full or failed disk during an execution.
    pub(crate) async fn detect(disks: &DiskWatch, evidence: DiskFullEvidence<'_>) -> Option<Self> {
        if let Some(disk) = disks.failed_since(evidence.began).await {
            return Some(Self { disk, code: ErrorCode::DISK_FAILED, excess: None });
        }
        let mut seen = disks.full_since(evidence.began).await;
        // The execution's output may have met one between two checks of the disks.
        if seen.is_none() && evidence.has_lost_output().await {
            seen = Some("a disk of this host was full".to_owned());
        }
        let disk = seen?;
        let mut excess = None;
        for environment in evidence.environments {
            if let Err(failure) = environment.check_storage().await {
                excess = Some(failure.message);
                break;
            }
        }
        Some(Self { disk, code: ErrorCode::DISK_FULL, excess })
    }

    /// Whether the execution itself filled the disk beyond its own limit.
    pub(crate) const fn is_own_excess(&self) -> bool {
        self.excess.is_some()
    }

    /// The error of an execution.
    pub(crate) fn error(&self, execution: FaultedExecution<'_>) -> TrialError {
        match &self.excess {
            Some(excess) => execution.blame_agent(excess),
            None => execution.blame_host(&self.disk, self.code.clone()),
        }
    }
}

impl DiskFullEvidence<'_> {
    /// Whether output was lost because a disk was full.
    async fn has_lost_output(&self) -> bool {
        if self.errors.iter().any(|error| error.code == ErrorCode::DISK_FULL) {
            return true;
        }
        let full = |error| Shortage::from_io_error(&error) == Some(Shortage::Disk);
        for capture in &self.captures {
            if capture.finish().await.is_err_and(full) {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use rollout_base::secrets::Redactor;
    use rollout_protocol::error::{ErrorClass, ErrorType};

    use super::*;

    #[test]
    fn disk_full_is_retryable_unless_storage_limit_exceeded() {
        let redactor = Redactor::default();
        let error = |excess: Option<&str>, cause: Option<&TrialError>| {
            let (disk, code) = ("/ was full".to_owned(), ErrorCode::DISK_FULL);
            let full = FullDisk { disk, code, excess: excess.map(str::to_owned) };
            full.error(FaultedExecution {
                work: "eval",
                cause,
                otherwise: ErrorType::AgentExecutionFailed,
                without_cause: ": no change",
                redactor: &redactor,
            })
        };
        let late = TrialError::transient(ErrorType::VerifierTimeout, ErrorCode::TIMED_OUT, "late");
        let excuse = error(None, Some(&late));
        assert_eq!(
            (excuse.kind, &excuse.code),
            (ErrorType::VerifierTimeout, &ErrorCode::DISK_FULL)
        );
        assert_eq!(excuse.message, "/ was full while the eval ran: late");
        assert!(excuse.is_retryable());
        assert_eq!(error(None, None).message, "/ was full while the eval ran: no change");
        let charge = error(Some("it has too much"), None);
        assert_eq!((charge.class, charge.is_retryable()), (ErrorClass::Agent, false));
        assert_eq!(
            (charge.code, charge.message.as_str()),
            (ErrorCode::STORAGE_EXCEEDED, "it has too much")
        );
    }
}
