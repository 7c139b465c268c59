//! Admission of groups.

use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::farm::{
    AdmissionRefusal, AdmittedGroup, BusyLimit, FarmLimits, FarmRecord, GroupEnd, SubmitReceipt,
    SubmittedGroup,
};
use rollout_protocol::limits;

use super::FarmCore;
use super::handle::reply;
use super::input::{FarmOutput, FarmReply};

impl FarmCore {
    /// A trainer asks for a group.
    pub(super) fn submit(
        &mut self,
        at: Timestamp,
        id: u64,
        group: AdmittedGroup,
        out: &mut FarmOutput,
    ) {
        let submitted = match self.check_submission(&group) {
            Ok(Some(end)) => Ok(SubmitReceipt { state: SubmittedGroup::Known, end }),
            Ok(None) => {
                self.commit(at, FarmRecord::Admitted(Box::new(group)), out);
                Ok(SubmitReceipt { state: SubmittedGroup::Admitted, end: None })
            }
            Err(refusal) => Err(refusal),
        };
        reply(id, FarmReply::Submitted(submitted), out);
    }

    /// Whether the farm knows the group already, and how it ended; `None` for a new group that fits.
    fn check_submission(
        &self,
        group: &AdmittedGroup,
    ) -> Result<Option<Option<GroupEnd>>, AdmissionRefusal> {
        if let Some((content, end)) = self.known(group)? {
            return match content == group.content {
                true => Ok(Some(end)),
                false => Err(AdmissionRefusal::Conflict),
            };
        }
        if self.closed {
            return Err(AdmissionRefusal::Closed);
        }
        let FarmLimits { open_samples, unacknowledged, .. } = self.settings.limits;
        let most = open_samples.min(unacknowledged);
        let checked = group.request.check(most, &self.settings.consumers);
        checked.map_err(|reason| AdmissionRefusal::Invalid { reason })?;
        self.check_version(group.request.policy_version)?;
        self.check_limits(group.request.n)?;
        self.check_bytes(group.request.held_bytes())?;
        Ok(None)
    }

    /// The digest of the request under the same id, and how its group ended.
    fn known(
        &self,
        group: &AdmittedGroup,
    ) -> Result<Option<(Digest, Option<GroupEnd>)>, AdmissionRefusal> {
        let id = &group.request.group;
        if self.cancelled.contains(id) {
            return Err(AdmissionRefusal::Cancelled);
        }
        if let Some(known) = self.groups.get(id) {
            return Ok(Some((known.admitted.content, known.end)));
        }
        let finished = self.finished.get(&Digest::sha256(id.as_str().as_bytes()));
        Ok(finished.map(|known| (known.content, Some(known.end))))
    }

    fn check_version(&self, version: u64) -> Result<(), AdmissionRefusal> {
        let newest = self.policy_version;
        match self.settings.staleness.admission {
            Some(bound) if newest.saturating_sub(version) > bound => {
                Err(AdmissionRefusal::Stale { version, newest, bound })
            }
            _ => Ok(()),
        }
    }

    /// Groups that are cancelled or may be.
    fn cancellable(&self) -> u64 {
        (self.cancelled.len() + self.open_groups) as u64
    }

    /// Whether the id of an unknown group can be kept for ever.
    pub(super) fn check_tombstone(&self) -> Result<(), AdmissionRefusal> {
        let (depth, max) = (self.cancellable(), self.settings.limits.cancelled_groups.into());
        let limit = BusyLimit::CancelledGroups;
        if depth < max { Ok(()) } else { Err(AdmissionRefusal::Busy { limit, depth, max }) }
    }

    /// A farm that holds nothing admits any request that is valid.
    fn check_bytes(&self, more: u64) -> Result<(), AdmissionRefusal> {
        let (depth, max) = (self.held_bytes, limits::FARM_HELD_BYTES);
        let limit = BusyLimit::HeldBytes;
        let fits = depth == 0 || depth.saturating_add(more) <= max;
        if fits { Ok(()) } else { Err(AdmissionRefusal::Busy { limit, depth, max }) }
    }

    fn check_limits(&self, n: u32) -> Result<(), AdmissionRefusal> {
        let limits = &self.settings.limits;
        let open = self.open_samples as u64;
        let bounds = [
            (BusyLimit::OpenGroups, self.open_groups as u64, 1, limits.open_groups),
            (BusyLimit::CancelledGroups, self.cancellable(), 1, limits.cancelled_groups),
            (BusyLimit::OpenSamples, open, n, limits.open_samples),
            (
                BusyLimit::Unacknowledged,
                open + self.completions.len() as u64,
                n,
                limits.unacknowledged,
            ),
        ];
        for (limit, depth, more, max) in bounds {
            let max = u64::from(max);
            if depth + u64::from(more) > max {
                return Err(AdmissionRefusal::Busy { limit, depth, max });
            }
        }
        Ok(())
    }
}
