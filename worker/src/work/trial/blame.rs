//! Full disks: a trial that met one says nothing about its agent, unless the trial filled it itself
//! beyond its own limit.

use rollout_protocol::error::{ErrorClass, ErrorCode, ErrorType, RetryClass, TrialError};
use rollout_protocol::phase::Phase;
use rollout_protocol::record::Outcome;

use super::run::{Run, is_of_trial};

impl Run<'_> {
    /// Puts the blame for a trial that did not pass where it belongs, when a disk of this host was
    /// full meanwhile. To be called while the environments are still there to be measured.
    pub(super) async fn blame_disk(&mut self) {
        let verdict = self.verdict(0.0);
        let error = verdict.error.as_ref().filter(|error| is_of_trial(error));
        let doubtful = match verdict.outcome {
            Outcome::Completed => !verdict.passed(),
            Outcome::Failed => !error.is_some_and(TrialError::is_retryable),
            _ => false,
        };
        if !doubtful || error.is_some_and(|error| error.code == ErrorCode::STORAGE_EXCEEDED) {
            return;
        }
        let seen = self.services.disks.full_since(self.began).await;
        let Some(full) = seen.or_else(|| self.met_full_disk()) else { return };
        match self.over_storage().await {
            // A reward stands: it is this agent's own doing.
            Some(_) if verdict.outcome == Outcome::Completed => {}
            Some(excess) => self.charge(&excess),
            None => self.excuse(&full),
        }
    }

    /// The full disk that the trial's own output met, maybe between two looks at it.
    fn met_full_disk(&self) -> Option<String> {
        let lost = self.later.iter().any(|error| error.code == ErrorCode::DISK_FULL);
        let met = lost || self.outputs.met_full_disk();
        met.then(|| "a disk of this host was full".to_owned())
    }

    /// How one of the environments exceeds its own limit.
    async fn over_storage(&self) -> Option<String> {
        for site in [Some(&self.main), self.apart.as_deref()].into_iter().flatten() {
            if let Some(environment) = site.up()
                && let Err(excess) = environment.check_storage().await
            {
                return Some(excess.message);
            }
        }
        None
    }

    /// The agent filled the disk beyond what it was given.
    fn charge(&mut self, excess: &str) {
        let (kind, phase) = self.cause(ErrorType::AgentExecutionFailed);
        let (class, retry) = (ErrorClass::Agent, RetryClass::Permanent);
        let message = self.redactor.text(excess);
        let error = TrialError::new(kind, ErrorCode::STORAGE_EXCEEDED, class, retry, message);
        self.replace(error.in_phase(phase));
    }

    /// The disk was full, and not by this trial alone.
    fn excuse(&mut self, full: &str) {
        let (kind, phase) = self.cause(ErrorType::VerifierFailed);
        let said = match (&self.first, &self.score) {
            (Some(error), _) => format!("{full} while the trial ran: {}", error.message),
            (None, Some(score)) => {
                let reward = score.reward.map_or_else(|| "no reward".into(), |r| r.to_string());
                format!("{full} while the trial ran, so that its reward of {reward} does not count")
            }
            (None, None) => format!("{full} while the trial ran"),
        };
        let message = self.redactor.text(&said);
        self.score = None;
        self.replace(TrialError::transient(kind, ErrorCode::DISK_FULL, message).in_phase(phase));
    }

    /// Type and phase of what went wrong first.
    fn cause(&self, otherwise: ErrorType) -> (ErrorType, Phase) {
        let first = self.first.as_ref();
        first.map_or((otherwise, otherwise.phase()), |error| (error.kind, error.phase))
    }

    /// Puts an error before all others.
    fn replace(&mut self, error: TrialError) {
        let former = self.first.replace(error);
        self.later.splice(0..0, former);
    }
}
