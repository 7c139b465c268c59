//! Which run starts next. Pure.

use std::cmp::Reverse;
use std::collections::HashMap;

use rollout_base::shared_limit::{LimitShares, LimitUser};

use super::id::HostedRunId;

/// A run that waits for its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QueuedRun {
    pub(super) id: HostedRunId,
    pub(super) user: LimitUser,
    pub(super) priority: i32,
}

/// Numbers of something by user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct UserCounts(HashMap<String, u64>);

impl UserCounts {
    /// The number of a user.
    pub(super) fn of(&self, user: &str) -> u64 {
        self.0.get(user).copied().unwrap_or_default()
    }

    /// The number of all users.
    pub(super) fn total(&self) -> u64 {
        self.0.values().sum()
    }
}

/// Counts each user as often as it comes.
impl<'a> FromIterator<&'a str> for UserCounts {
    fn from_iter<I: IntoIterator<Item = &'a str>>(users: I) -> Self {
        let mut counts = HashMap::new();
        for user in users {
            *counts.entry(user.to_owned()).or_default() += 1;
        }
        Self(counts)
    }
}

/// The run that starts next: one of the user with the fewest running runs, of those of the one whose
/// last start is longest ago; of that user, one of the highest priority, the oldest of those. Users who
/// run their part of the limit wait.
pub(super) fn next_run(
    queued: impl IntoIterator<Item = QueuedRun>,
    shares: LimitShares,
    running: &UserCounts,
    last_starts: &HashMap<String, u64>,
) -> Option<HostedRunId> {
    let all = running.total();
    let may_start =
        |run: &QueuedRun| shares.allows(run.user.is_admin, [running.of(&run.user.name), all], 1);
    let queued: Vec<_> = queued.into_iter().filter(may_start).collect();
    let claim = |run: &&QueuedRun| {
        let name = &run.user.name;
        let last_start = last_starts.get(name).copied().unwrap_or_default();
        (running.of(name), last_start, run.id.clone())
    };
    let user = &queued.iter().min_by_key(claim)?.user.name;
    let of_user = queued.iter().filter(|run| run.user.name == *user);
    of_user.min_by_key(|run| (Reverse(run.priority), run.id.clone())).map(|run| run.id.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(id: u8, name: &str, priority: i32) -> QueuedRun {
        let id = format!("r{id:024x}").parse().expect("an id");
        let user = LimitUser { name: name.to_owned(), is_admin: name == "root" };
        QueuedRun { id, user, priority }
    }

    fn next(runs: &[QueuedRun], running: &[(&str, usize)], last: &[(&str, u64)]) -> Option<u8> {
        let running = running.iter().flat_map(|(user, count)| vec![*user; *count]).collect();
        let last = last.iter().map(|(user, number)| ((*user).to_owned(), *number)).collect();
        let id = next_run(runs.iter().cloned(), LimitShares::new(8), &running, &last)?;
        u8::from_str_radix(&id.as_str()[23..], 16).ok()
    }

    #[test]
    fn users_take_turns_and_priority_counts_among_runs_of_a_user() {
        let runs = [queued(1, "ada", 0), queued(2, "ada", 0), queued(3, "bob", 0)];
        assert_eq!(next(&runs, &[], &[]), Some(1));
        assert_eq!(next(&runs, &[("ada", 1)], &[]), Some(3));
        assert_eq!(next(&runs, &[("ada", 1), ("bob", 2)], &[]), Some(1));
        let urgent = [queued(1, "bob", 0), queued(2, "ada", 0), queued(3, "ada", 1000)];
        assert_eq!(next(&urgent, &[("bob", 1)], &[]), Some(3));
        assert_eq!(next(&urgent, &[("ada", 1)], &[]), Some(1));
        assert_eq!(next(&urgent, &[], &[("ada", 7)]), Some(1), "her last start was later");
        assert_eq!(next(&urgent, &[], &[("ada", 7), ("bob", 8)]), Some(3));
        assert_eq!(next(&[], &[], &[]), None);
    }

    #[test]
    fn user_who_runs_all_leaves_a_start_for_others_and_the_administrator() {
        let of = |name| [queued(1, name, 1000)];
        assert_eq!(next(&of("ada"), &[("ada", 3)], &[]), Some(1));
        assert_eq!(next(&of("ada"), &[("ada", 4)], &[]), None);
        assert_eq!(next(&of("bob"), &[("ada", 4)], &[]), Some(1));
        let full = [("ada", 4), ("bob", 2), ("eve", 1)];
        assert_eq!(next(&of("fay"), &full, &[]), None);
        assert_eq!(next(&of("root"), &full, &[]), Some(1));
    }
}
