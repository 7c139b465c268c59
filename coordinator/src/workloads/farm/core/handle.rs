//! Input handling: decides which records each input causes.

use rollout_protocol::Timestamp;
use rollout_protocol::digest::Digest;
use rollout_protocol::farm::{
    AckReceipt, AdmissionRefusal, CancelReason, CancelReceipt, FarmRecord, GroupEnd, GroupId,
};

use super::FarmCore;
use super::input::{FarmEffect, FarmInput, FarmOutput, FarmReply};

impl FarmCore {
    /// Handles one input at the time `at`.
    pub fn handle(&mut self, at: Timestamp, input: FarmInput, out: &mut FarmOutput) {
        match input {
            FarmInput::Configure(settings) => {
                if self.settings != settings {
                    self.commit(at, FarmRecord::Configured(Box::new(settings)), out);
                }
            }
            FarmInput::Submit { id, group } => self.submit(at, id, *group, out),
            FarmInput::Cancel { id, group } => {
                let receipt = self.cancel(at, group, out);
                reply(id, FarmReply::Cancelled(receipt), out);
            }
            FarmInput::Acknowledge { id, consumer, completions } => {
                let receipt = self.acknowledge(at, &consumer, completions, out);
                reply(id, FarmReply::Acknowledged(receipt), out);
            }
            FarmInput::PolicyVersion { id, version } => {
                self.set_version(at, version, out);
                self.reply_status(id, out);
            }
            FarmInput::Pause { id } => {
                if self.paused_since.is_none() {
                    self.commit(at, FarmRecord::Paused, out);
                }
                self.reply_status(id, out);
            }
            FarmInput::Resume { id, version } => {
                if let Some(version) = version {
                    self.set_version(at, version, out);
                }
                if self.paused_since.is_some() {
                    self.commit(at, FarmRecord::Resumed, out);
                }
                self.reply_status(id, out);
            }
            FarmInput::Close { id } => {
                if !self.closed {
                    self.commit(at, FarmRecord::Closed, out);
                }
                self.reply_status(id, out);
            }
            FarmInput::Settled { item, result } => self.settle(at, &item, *result, out),
            FarmInput::Tick => {
                self.end_overdue(at, out);
                self.begin_probes(at);
                if std::mem::take(&mut self.rechecks_versions) {
                    self.end_stale(at, out);
                }
            }
        }
    }

    pub(super) fn commit(&mut self, at: Timestamp, record: FarmRecord, out: &mut FarmOutput) {
        self.apply(at, &record, &mut out.effects);
        out.records.push(record);
    }

    fn reply_status(&self, id: u64, out: &mut FarmOutput) {
        reply(id, FarmReply::Status(Box::new(self.status())), out);
    }

    fn set_version(&mut self, at: Timestamp, version: u64, out: &mut FarmOutput) {
        if version > self.policy_version {
            self.commit(at, FarmRecord::PolicyVersion { version }, out);
            self.end_stale(at, out);
        }
    }

    fn cancel(
        &mut self,
        at: Timestamp,
        id: GroupId,
        out: &mut FarmOutput,
    ) -> Result<CancelReceipt, AdmissionRefusal> {
        if let Some(group) = self.groups.get(&id) {
            let (end, samples) = (group.end, group.open().into());
            if end.is_some() {
                return Ok(CancelReceipt { end, ..CancelReceipt::default() });
            }
            self.cancel_group(at, &id, CancelReason::Requested, Some(GroupEnd::Cancelled), out);
            return Ok(CancelReceipt { samples, ..CancelReceipt::default() });
        }
        if self.cancelled.contains(&id) {
            let end = Some(GroupEnd::Cancelled);
            return Ok(CancelReceipt { end, ..CancelReceipt::default() });
        }
        let digest = Digest::sha256(id.as_str().as_bytes());
        if let Some(finished) = self.finished.get(&digest) {
            return Ok(CancelReceipt { end: Some(finished.end), ..CancelReceipt::default() });
        }
        self.check_tombstone()?;
        self.commit(at, FarmRecord::Tombstoned { group: id }, out);
        Ok(CancelReceipt { unknown: true, ..CancelReceipt::default() })
    }

    fn acknowledge(
        &mut self,
        at: Timestamp,
        consumer: &str,
        cursors: Vec<u64>,
        out: &mut FarmOutput,
    ) -> AckReceipt {
        let mut receipt = AckReceipt::default();
        let mut completions = Vec::with_capacity(cursors.len());
        for cursor in cursors {
            match self.completions.get(&cursor) {
                Some(completion) if completion.consumer == consumer => completions.push(cursor),
                None if (1..self.next_cursor).contains(&cursor) => receipt.repeated += 1,
                Some(_) | None => receipt.unknown += 1,
            }
        }
        let named = completions.len();
        completions.sort_unstable();
        completions.dedup();
        receipt.repeated += (named - completions.len()) as u64;
        receipt.acknowledged = completions.len() as u64;
        if !completions.is_empty() {
            self.commit(at, FarmRecord::Acknowledged { completions }, out);
        }
        receipt
    }
}

pub(super) fn reply(id: u64, reply: FarmReply, out: &mut FarmOutput) {
    out.effects.push(FarmEffect::Reply { id, reply });
}
