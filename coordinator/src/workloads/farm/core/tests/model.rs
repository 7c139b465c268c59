//! A simple model of a farm: the assumptions of a trainer, without generations, policies or
//! limits.

use std::collections::{BTreeMap, BTreeSet};

use rollout_protocol::farm::GroupEnd;

use super::*;

/// The knowledge of a trainer.
#[derive(Debug, Default)]
pub(super) struct TrainerModel {
    groups: BTreeMap<GroupId, ModelGroup>,
    cancelled: BTreeSet<GroupId>,
    acknowledged: BTreeSet<u64>,
    /// Completions by cursor.
    log: Vec<Arc<Completion>>,
}

#[derive(Debug)]
struct ModelGroup {
    request: GroupRequest,
    ended: BTreeSet<u32>,
    end: Option<GroupEnd>,
}

impl TrainerModel {
    /// Checks the answer to a submission.
    pub(super) fn submitted(
        &mut self,
        request: &GroupRequest,
        answer: &Result<SubmitReceipt, AdmissionRefusal>,
    ) {
        let id = &request.group;
        if self.cancelled.contains(id) {
            assert_eq!(*answer, Err(AdmissionRefusal::Cancelled));
            return;
        }
        match self.groups.get(id) {
            Some(known) if known.request == *request => {
                let state = SubmittedGroup::Known;
                assert_eq!(*answer, Ok(SubmitReceipt { state, end: known.end }));
            }
            Some(_) => assert_eq!(*answer, Err(AdmissionRefusal::Conflict)),
            None => match answer {
                Ok(receipt) => {
                    assert_eq!(receipt.state, SubmittedGroup::Admitted);
                    let (ended, end) = (BTreeSet::new(), None);
                    let group = ModelGroup { request: request.clone(), ended, end };
                    self.groups.insert(id.clone(), group);
                }
                Err(AdmissionRefusal::Conflict | AdmissionRefusal::Cancelled) => {
                    panic!("a new group is in conflict: {request:?}")
                }
                Err(_) => {}
            },
        }
    }

    /// A group is cancelled, unless it had ended.
    pub(super) fn cancelled(&mut self, id: &GroupId, receipt: &CancelReceipt) {
        match self.groups.get(id).and_then(|group| group.end) {
            Some(end) if receipt.end.is_some() => assert_eq!(receipt.end, Some(end)),
            _ => {
                self.cancelled.insert(id.clone());
            }
        }
    }

    /// Takes completions that were shown for the first time.
    pub(super) fn take(&mut self, shown: &[Arc<Completion>]) {
        for completion in shown {
            assert_eq!(completion.cursor, self.log.len() as u64 + 1, "cursors are dense");
            let id = &completion.sample.group;
            let group = self.groups.get_mut(id).expect("the group was admitted");
            assert_eq!(group.end, None, "a group ends once");
            assert!(group.ended.insert(completion.sample.index), "a sample ends once");
            assert!(completion.sample.index < group.request.n);
            assert_eq!(completion.usable, completion.result.is_usable());
            if matches!(completion.result.end, SampleEnd::NoResult { .. }) {
                assert_eq!(completion.result.reward, None, "no verdict, no reward");
            }
            let is_last = group.ended.len() as u32 == group.request.n;
            assert_eq!(completion.group_end.is_some(), is_last, "the last sample ends the group");
            group.end = completion.group_end;
            let is_cancelled = completion.group_end == Some(GroupEnd::Cancelled);
            assert_eq!(is_cancelled, is_last && self.cancelled.contains(id));
            self.log.push(Arc::clone(completion));
        }
    }

    /// A consumer acknowledged a completion.
    pub(super) fn acknowledged(&mut self, cursor: u64) {
        self.acknowledged.insert(cursor);
    }

    /// The completions that the farm must show now.
    pub(super) fn unacknowledged(&self) -> Vec<Arc<Completion>> {
        let log = self.log.iter().filter(|one| !self.acknowledged.contains(&one.cursor));
        log.cloned().collect()
    }

    /// Every group has ended.
    pub(super) fn assert_ended(&self) {
        for (id, group) in &self.groups {
            assert!(group.end.is_some(), "{id} has not ended");
            assert_eq!(group.ended.len() as u32, group.request.n);
        }
    }
}
