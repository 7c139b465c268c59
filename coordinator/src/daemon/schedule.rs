//! Which run starts next. Pure.

use std::collections::HashMap;

use super::id::HostedRunId;

/// A run that waits for its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QueuedRun {
    pub(super) id: HostedRunId,
    pub(super) user: String,
    pub(super) priority: i32,
}

/// The run that starts next: one of the highest priority, of the user with the fewest running runs,
/// the oldest of those.
pub(super) fn next_run(
    queued: impl IntoIterator<Item = QueuedRun>,
    running_by_user: &HashMap<String, usize>,
) -> Option<HostedRunId> {
    let running = |run: &QueuedRun| running_by_user.get(&run.user).copied().unwrap_or_default();
    let order = |run: &QueuedRun| (std::cmp::Reverse(run.priority), running(run), run.id.clone());
    queued.into_iter().min_by_key(order).map(|run| run.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(id: u8, user: &str, priority: i32) -> QueuedRun {
        let id = format!("r{id:024x}").parse().expect("an id");
        QueuedRun { id, user: user.to_owned(), priority }
    }

    fn next(runs: &[QueuedRun], running: &[(&str, usize)]) -> Option<u8> {
        let running = running.iter().map(|(user, count)| ((*user).to_owned(), *count)).collect();
        let id = next_run(runs.iter().cloned(), &running)?;
        u8::from_str_radix(&id.as_str()[23..], 16).ok()
    }

    #[test]
    fn priority_precedes_fairness_and_fairness_precedes_age() {
        let runs = [queued(1, "ada", 0), queued(2, "ada", 0), queued(3, "bob", 0)];
        assert_eq!(next(&runs, &[]), Some(1));
        assert_eq!(next(&runs, &[("ada", 1)]), Some(3));
        assert_eq!(next(&runs, &[("ada", 1), ("bob", 2)]), Some(1));
        let urgent = [queued(1, "bob", 0), queued(2, "ada", 5)];
        assert_eq!(next(&urgent, &[("ada", 9)]), Some(2));
        assert_eq!(next(&[], &[]), None);
    }
}
