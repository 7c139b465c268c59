//! Answers to workers that hold a suspicious delivery.
//!
//! ```text
//! nothing is pending, or another try is            ─▶ drop
//! a live worker shows another execution of it      ─▶ hold
//! not known yet whether an execution runs          ─▶ no answer yet
//! an execution no longer runs anywhere             ─▶ look for its result, no answer yet
//! otherwise: executions not shown are lost, then   ─▶ run (or drop, if that settles the item)
//! ```

use rollout_protocol::id::ExecId;
use rollout_protocol::wire::claim::{Claim, ClaimAnswer};

use super::Core;
use super::deferred_claim::DeferredClaim;
use super::effect::CoreEffect;
use super::handle::CoreOutput;
use super::input::InputTime;
use super::item::{ItemEntry, ItemStatus, KnownExecution};
use super::merge;
use super::record::JournalRecord;
use super::worker_liveness::WorkerLiveness;

/// The decision on a claim.
enum ClaimVerdict {
    Answer(ClaimAnswer),
    /// Run it, and declare these lost. The store may have their results.
    RunAfter(Vec<ExecId>),
    /// Run it.
    Run,
    /// Decide again at this time: heartbeats until then matter.
    Wait(u64),
}

impl Core {
    pub(super) fn claim(
        &mut self,
        now: InputTime,
        id: u64,
        claim: Claim,
        out: &mut impl CoreOutput,
    ) {
        let mut ids = vec![id];
        if let Some(remote) = &mut self.remote {
            remote.awaiting_claim.insert(claim.item, now.monotonic_ms);
            if let Some(former) = remote.deferred_claims.remove(&claim.exec) {
                ids.extend(former.ids);
            }
        }
        let (requested_at, retry_at) = (now.monotonic_ms, now.monotonic_ms);
        self.reconsider(now, DeferredClaim { ids, claim, requested_at, retry_at }, out);
    }

    /// Decides again about every deferred claim.
    pub(super) fn answer_deferred_claims(&mut self, now: InputTime, out: &mut impl CoreOutput) {
        let Some(remote) = &mut self.remote else { return };
        for (_, question) in std::mem::take(&mut remote.deferred_claims) {
            self.reconsider(now, question, out);
        }
    }

    fn reconsider(&mut self, now: InputTime, question: DeferredClaim, out: &mut impl CoreOutput) {
        let DeferredClaim { ids, claim, requested_at, .. } = question;
        let answer = match self.decide_claim(now, &claim, out) {
            Ok(answer) => answer,
            // The worker no longer waits: it decides by itself after one lease.
            Err(_) if self.is_stale(now, requested_at) => ClaimAnswer::Hold,
            Err(retry_at) => {
                let Some(remote) = &mut self.remote else { return };
                let exec = claim.exec;
                remote
                    .deferred_claims
                    .insert(exec, DeferredClaim { ids, claim, requested_at, retry_at });
                return;
            }
        };
        if answer == ClaimAnswer::Run {
            if let Some(remote) = &mut self.remote {
                remote.record_seen(now.monotonic_ms, claim.exec);
            }
            let row = self.items.get_mut(&claim.item);
            // The answer may have been lost on its way.
            if row.is_none_or(|row| row.find(&claim.exec).is_none()) {
                self.commit(now, JournalRecord::Claimed { claim }, out);
            }
        }
        let answers = ids.into_iter().map(|id| CoreEffect::Answer { id, answer });
        out.effects().extend(answers);
    }

    /// The answer, or when to decide again.
    fn decide_claim(
        &mut self,
        now: InputTime,
        claim: &Claim,
        out: &mut impl CoreOutput,
    ) -> Result<ClaimAnswer, u64> {
        match self.verdict(now, claim) {
            ClaimVerdict::Answer(answer) => Ok(answer),
            ClaimVerdict::Run => Ok(ClaimAnswer::Run),
            ClaimVerdict::Wait(due) => Err(due),
            ClaimVerdict::RunAfter(gone) => {
                self.has_looked_up_results(now, claim, out)?;
                for exec in gone {
                    self.declare_lost(now, claim.item, exec, out);
                }
                // That may have settled the item.
                match self.verdict(now, claim) {
                    ClaimVerdict::Answer(answer) => Ok(answer),
                    ClaimVerdict::Run | ClaimVerdict::RunAfter(_) => Ok(ClaimAnswer::Run),
                    ClaimVerdict::Wait(due) => Err(due),
                }
            }
        }
    }

    /// `Ok` when results of the item's lost executions were looked up, otherwise until when to wait
    /// for the store's answer. The lookup only saves a repetition: a store that does not answer
    /// delays a claim only briefly.
    fn has_looked_up_results(
        &mut self,
        now: InputTime,
        claim: &Claim,
        out: &mut impl CoreOutput,
    ) -> Result<(), u64> {
        let now = now.monotonic_ms;
        let Some(remote) = &mut self.remote else { return Ok(()) };
        let (lease, silence) = (remote.timeouts.lease, remote.timeouts.silence);
        let Some(flight) = remote.offered.get_mut(&claim.item) else { return Ok(()) };
        let recent = |at: u64, within: u64| now.saturating_sub(at) < within;
        if flight.loss_lookup.is_none_or(|at| !recent(at, lease)) {
            (flight.loss_lookup, flight.lookup_done) = (Some(now), false);
            out.effects().push(CoreEffect::LookForResults { item: claim.item });
        }
        match flight.loss_lookup {
            Some(at) if !flight.lookup_done && recent(at, silence) => Err(at + silence),
            _ => Ok(()),
        }
    }

    fn is_stale(&self, now: InputTime, asked: u64) -> bool {
        let lease = self.remote.as_ref().map_or(0, |remote| remote.timeouts.lease);
        now.monotonic_ms >= asked.saturating_add(lease.saturating_mul(2))
    }

    fn verdict(&self, now: InputTime, claim: &Claim) -> ClaimVerdict {
        let Some(row) = self.items.get(&claim.item) else {
            return ClaimVerdict::Answer(ClaimAnswer::Drop);
        };
        if self.stop.is_some() || row.cancelled || row.state != ItemStatus::Offered {
            return ClaimVerdict::Answer(ClaimAnswer::Drop);
        }
        if claim.try_id != row.current || claim.spec != row.spec || merge::is_withheld(row) {
            return ClaimVerdict::Answer(ClaimAnswer::Drop);
        }
        match &self.remote {
            Some(remote) => remote.verdict(now.monotonic_ms, claim, row),
            None => {
                let another = |known: &KnownExecution| known.is_open() && known.exec != claim.exec;
                let held = row.executions.iter().any(another);
                ClaimVerdict::Answer(if held { ClaimAnswer::Hold } else { ClaimAnswer::Run })
            }
        }
    }
}

impl WorkerLiveness {
    /// When to decide again about a deferred claim.
    pub(super) fn next_claim_due(&self) -> Option<u64> {
        self.deferred_claims.values().map(|question| question.retry_at).min()
    }

    /// The answer to a claim of the current try of an offered item.
    fn verdict(&self, now: u64, claim: &Claim, row: &ItemEntry) -> ClaimVerdict {
        let others = || {
            row.executions.iter().filter(|known| {
                known.exec != claim.exec && known.try_id >= row.floor && known.may_run()
            })
        };
        if others().any(|known| self.is_shown(now, &known.exec)) {
            return ClaimVerdict::Answer(ClaimAnswer::Hold);
        }
        let own = row.executions.iter().find(|known| known.exec == claim.exec);
        if own.is_some_and(KnownExecution::is_open) {
            return ClaimVerdict::Run;
        }
        if own.is_some() {
            // It was given up. The next delivery starts a new execution.
            return ClaimVerdict::Answer(ClaimAnswer::Hold);
        }
        let alive = others().filter_map(|known| self.alive_until(now, &known.exec)).max();
        if let Some(until) = alive {
            return ClaimVerdict::Wait(until);
        }
        let open: Vec<ExecId> =
            others().filter(|known| known.is_open()).map(|known| known.exec).collect();
        // A worker that was not seen since the watch began cannot hold a try offered after that.
        let inherited = self.offered.get(&claim.item).is_none_or(|flight| flight.inherited);
        let watched_at = self.item_watched_at(now, &claim.item);
        if (!open.is_empty() || inherited) && now < watched_at {
            return ClaimVerdict::Wait(watched_at);
        }
        // One that was declared lost before may also have a result in the store.
        if others().next().is_none() { ClaimVerdict::Run } else { ClaimVerdict::RunAfter(open) }
    }
}
