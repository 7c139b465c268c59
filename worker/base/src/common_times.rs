//! Times at which a process does its periodic work together, so that it wakes once for all of it.

use std::sync::LazyLock;
use std::time::Duration;

use tokio::time::Instant;

/// All these times are whole intervals after this one. Processes that were started together have
/// different ones.
static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The next time for work that is done in this interval. It is not further away than the interval.
pub fn next_time(interval: Duration) -> Instant {
    next_after(Instant::now(), *BEGIN, interval)
}

fn next_after(now: Instant, begin: Instant, interval: Duration) -> Instant {
    let passed = now.saturating_duration_since(begin).as_nanos();
    let since_last = passed % interval.as_nanos().max(1);
    now + interval.saturating_sub(Duration::from_nanos(u64::try_from(since_last).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn works_of_several_intervals_have_times_in_common() {
        let begin = Instant::now();
        let [second, two] = [1, 2].map(Duration::from_secs);
        for passed in [0, 1, 700, 999, 1000, 1001, 1999] {
            let now = begin + Duration::from_millis(passed);
            let next = next_after(now, begin, two);
            assert_eq!(next, begin + two, "{passed}");
            let sooner = next_after(now, begin, second);
            assert!(sooner > now && sooner <= next && sooner - now <= second, "{passed}");
        }
        assert_eq!(next_after(begin + second, begin, second), begin + two);
        assert_eq!(next_after(begin, begin + second, two), begin + two, "a clock of a test");
    }
}
