//! Merge of calls into trajectories: a call continues an earlier one if its prompt begins exactly
//! with the prompt and the reply of that call. Calls that continue the same one are branches; all of
//! them are kept.

use rollout_protocol::record::{TrajectoryBasis, TrajectoryRecord};

/// A call as a sequence of items: token ids, or digests of messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallItems<T> {
    /// Number of the call.
    pub(crate) call: u64,
    /// Its prompt.
    pub(crate) prompt: Vec<T>,
    /// Its reply.
    pub(crate) reply: Vec<T>,
}

impl<T: PartialEq> CallItems<T> {
    fn is_continued_by(&self, prompt: &[T]) -> bool {
        let rest = prompt.strip_prefix(self.prompt.as_slice());
        rest.is_some_and(|rest| rest.starts_with(&self.reply))
    }

    fn length(&self) -> usize {
        self.prompt.len() + self.reply.len()
    }
}

/// For each call, the index of the call that it continues: the longest of those before it, and the
/// latest of several.
pub(crate) fn parents<T: PartialEq>(calls: &[CallItems<T>]) -> Vec<Option<usize>> {
    (0..calls.len()).map(|at| parent(calls, at)).collect()
}

/// The longest call before the one at `at` that it continues. In a conversation without branches
/// this is the first one compared: only longer ones would be compared after it.
fn parent<T: PartialEq>(calls: &[CallItems<T>], at: usize) -> Option<usize> {
    let prompt = &calls[at].prompt;
    let mut best: Option<usize> = None;
    for (index, earlier) in calls[..at].iter().enumerate().rev() {
        let longer = best.is_none_or(|best| calls[best].length() < earlier.length());
        if longer && !earlier.reply.is_empty() && earlier.is_continued_by(prompt) {
            best = Some(index);
        }
    }
    best
}

/// The paths from a first call to a call that none continues, as indexes, in the order of their
/// last calls.
pub(crate) fn paths(parents: &[Option<usize>]) -> Vec<Vec<usize>> {
    let mut continued = vec![false; parents.len()];
    for parent in parents.iter().flatten() {
        continued[*parent] = true;
    }
    let leaves = (0..parents.len()).filter(|index| !continued[*index]);
    leaves
        .map(|leaf| {
            let mut path: Vec<_> =
                std::iter::successors(Some(leaf), |index| parents[*index]).collect();
            path.reverse();
            path
        })
        .collect()
}

/// Trajectories of calls with token ids; `logprobs` holds those of the replies, by index.
pub(crate) fn by_tokens(
    calls: &[CallItems<u32>],
    logprobs: &[Option<Vec<Option<f64>>>],
) -> Vec<TrajectoryRecord> {
    let record = |path: Vec<usize>| {
        let Some(last) = path.last().map(|index| &calls[*index]) else {
            return trajectory(Vec::new(), TrajectoryBasis::Tokens);
        };
        let ids: Vec<u32> = last.prompt.iter().chain(&last.reply).copied().collect();
        let (mut mask, mut all) = (vec![0; ids.len()], vec![None; ids.len()]);
        for index in &path {
            let call = &calls[*index];
            let known = logprobs.get(*index).and_then(Option::as_ref);
            for position in 0..call.reply.len() {
                mask[call.prompt.len() + position] = 1;
                let logprob = known.and_then(|known| known.get(position).copied().flatten());
                all[call.prompt.len() + position] = logprob;
            }
        }
        let numbers = path.iter().map(|index| calls[*index].call).collect();
        TrajectoryRecord {
            ids,
            mask,
            logprobs: all,
            ..trajectory(numbers, TrajectoryBasis::Tokens)
        }
    };
    paths(&parents(calls)).into_iter().map(record).collect()
}

/// Trajectories of calls with messages.
pub(crate) fn by_messages<T: PartialEq>(calls: &[CallItems<T>]) -> Vec<TrajectoryRecord> {
    let record = |path: Vec<usize>| {
        let numbers = path.iter().map(|index| calls[*index].call).collect();
        trajectory(numbers, TrajectoryBasis::Messages)
    };
    paths(&parents(calls)).into_iter().map(record).collect()
}

const fn trajectory(calls: Vec<u64>, by: TrajectoryBasis) -> TrajectoryRecord {
    TrajectoryRecord {
        calls,
        by,
        ids: Vec::new(),
        ids_at: None,
        mask: Vec::new(),
        mask_at: None,
        logprobs: Vec::new(),
        logprobs_at: None,
        policies: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn call(call: u64, prompt: &[u32], reply: &[u32]) -> CallItems<u32> {
        CallItems { call, prompt: prompt.to_vec(), reply: reply.to_vec() }
    }

    #[test]
    fn trajectory_with_branches_keeps_both() {
        let calls = [
            call(1, &[1, 2], &[3]),
            call(2, &[1, 2, 3, 9], &[4]),
            call(3, &[1, 2, 3, 8], &[5]),
            call(4, &[1, 2, 3, 9, 4, 7], &[6]),
            call(5, &[1, 2], &[3]),
            call(6, &[2], &[1]),
        ];
        let logprobs = vec![Some(vec![Some(-1.0)]); 6];
        let found = by_tokens(&calls, &logprobs);
        let numbers: Vec<_> = found.iter().map(|one| one.calls.clone()).collect();
        assert_eq!(numbers, [vec![1, 3], vec![1, 2, 4], vec![5], vec![6]]);
        let long = &found[1];
        assert_eq!(long.ids, [1, 2, 3, 9, 4, 7, 6]);
        assert_eq!(long.mask, [0, 0, 1, 0, 1, 0, 1]);
        assert_eq!(long.logprobs[2], Some(-1.0));
        assert_eq!(long.logprobs[3], None);
    }

    #[test]
    fn trajectory_of_call_without_reply_is_not_continued() {
        let calls = [call(1, &[1], &[]), call(2, &[1, 2], &[3])];
        let found = by_messages(&calls);
        assert_eq!(found.len(), 2);
    }

    fn conversations() -> impl Strategy<Value = Vec<CallItems<u32>>> {
        let step = (any::<prop::sample::Index>(), any::<bool>(), 0u32..3, 1usize..3);
        prop::collection::vec(step, 1..14).prop_map(|steps| {
            let mut calls: Vec<CallItems<u32>> = Vec::new();
            for (number, (earlier, fresh, token, length)) in steps.into_iter().enumerate() {
                let mut prompt = vec![token];
                if !fresh && !calls.is_empty() {
                    let earlier = earlier.get(&calls);
                    prompt = earlier.prompt.iter().chain(&earlier.reply).copied().collect();
                    prompt.push(token);
                }
                calls.push(call(number as u64 + 1, &prompt, &vec![token + 3; length]));
            }
            calls
        })
    }

    proptest! {
        #[test]
        fn trajectories_cover_every_call_and_continue_exactly(calls in conversations()) {
            let found = by_tokens(&calls, &[]);
            let mut covered: Vec<u64> = found.iter().flat_map(|one| one.calls.clone()).collect();
            covered.sort_unstable();
            covered.dedup();
            let numbers: Vec<u64> = calls.iter().map(|call| call.call).collect();
            prop_assert_eq!(covered, numbers, "every call is in a trajectory");
            let mut ends: Vec<_> = found.iter().map(|one| one.calls.last()).collect();
            ends.sort_unstable();
            ends.dedup();
            prop_assert_eq!(ends.len(), found.len(), "no trajectory is a part of another");
            for one in &found {
                let of = |number: &u64| &calls[usize::try_from(*number).expect("small") - 1];
                for pair in one.calls.windows(2) {
                    prop_assert!(of(&pair[0]).is_continued_by(&of(&pair[1]).prompt));
                }
                let sampled: usize = one.calls.iter().map(|number| of(number).reply.len()).sum();
                prop_assert_eq!(one.mask.iter().filter(|bit| **bit == 1).count(), sampled);
                prop_assert_eq!(one.ids.len(), one.mask.len());
                prop_assert_eq!(one.ids.len(), one.logprobs.len());
                for number in &one.calls {
                    let call = of(number);
                    let whole: Vec<u32> = call.prompt.iter().chain(&call.reply).copied().collect();
                    prop_assert!(one.ids.starts_with(&whole), "each call is a prefix");
                }
            }
        }
    }
}
