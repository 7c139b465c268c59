//! Division of free slots among size classes.

use std::time::Duration;

use rollout_protocol::wire::delivery::FreeCapacity;
use rollout_protocol::wire::offer::SizeClass;

/// How long a request waits when the pool has one class.
const SINGLE_CLASS_EXPIRY: Duration = Duration::from_secs(5);
/// How long a request waits when classes share the slots: a class with work waits up to this long
/// for slots that another class requested.
const SHARED_EXPIRY: Duration = Duration::from_secs(1);
/// How long a request waits when classes take turns, because there are fewer slots than classes.
const TURN_EXPIRY: Duration = Duration::from_millis(250);

/// A size class of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClassDemand {
    pub(super) class: SizeClass,
    /// Waiting offers, as far as known.
    pub(super) waiting: u64,
    /// Offers that are requested, or arrived and not taken.
    pub(super) open: usize,
}

/// A request for offers of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PullRequest {
    pub(super) class: SizeClass,
    pub(super) count: usize,
    pub(super) expires: Duration,
}

/// The requests for this capacity. `classes` are sorted, the largest first; `turn` is incremented
/// while classes take turns.
pub(super) fn divide_slots(
    capacity: FreeCapacity,
    classes: &[ClassDemand],
    turn: &mut usize,
) -> Vec<PullRequest> {
    let open: usize = classes.iter().map(|class| class.open).sum();
    let mut left =
        classes.iter().fold(capacity, |left, class| left.without(class.class, class.open));
    // Otherwise each slot that becomes free would cost a request.
    if left.slots == 0 || left.slots * 2 < open {
        return Vec::new();
    }
    let solo = classes.iter().find(|class| class.class == SizeClass::SOLO);
    if let Some(solo) = solo
        && (solo.open > 0 || solo.waiting > 0 && capacity.idle)
    {
        // It runs alone: no other request may be open.
        let ask = PullRequest { class: SizeClass::SOLO, count: 1, expires: SHARED_EXPIRY };
        return if open == 0 { vec![ask] } else { Vec::new() };
    }
    let shared: Vec<&ClassDemand> = classes.iter().filter(|c| c.class != SizeClass::SOLO).collect();
    let mut counts = vec![0; shared.len()];
    for (count, class) in counts.iter_mut().zip(&shared) {
        let known = usize::try_from(class.waiting).unwrap_or(usize::MAX).saturating_sub(class.open);
        *count = left.count_for(class.class).min(known);
        left = left.without(class.class, *count);
    }
    spread_evenly(left, &shared, &mut counts, turn);
    let crowded = capacity.slots < shared.len();
    let expires = match shared.len() {
        1 => SINGLE_CLASS_EXPIRY,
        _ if crowded => TURN_EXPIRY,
        _ => SHARED_EXPIRY,
    };
    let requests = shared.iter().zip(counts).filter(|(_, count)| *count > 0);
    requests.map(|(class, count)| PullRequest { class: class.class, count, expires }).collect()
}

/// Spreads the slots that no known work needs evenly, so that the next offer of any class is
/// noticed.
fn spread_evenly(
    mut left: FreeCapacity,
    classes: &[&ClassDemand],
    counts: &mut [usize],
    turn: &mut usize,
) {
    let total = classes.len();
    if left.slots > 0 && left.slots < total {
        *turn = turn.wrapping_add(1);
    }
    for n in 0..total {
        let index = if left.slots < total - n { (n + *turn) % total } else { n };
        let share = left.slots.div_ceil(total - n);
        let count = left.count_for(classes[index].class).min(share);
        counts[index] += count;
        left = left.without(classes[index].class, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class_demand(class: u8, waiting: u64, open: usize) -> ClassDemand {
        ClassDemand { class: SizeClass(class), waiting, open }
    }

    fn request_counts(
        room: FreeCapacity,
        classes: &[ClassDemand],
        turn: &mut usize,
    ) -> Vec<(u8, usize)> {
        let asks = divide_slots(room, classes, turn);
        let slots: usize = asks.iter().map(|ask| ask.count).sum();
        let open: usize = classes.iter().map(|class| class.open).sum();
        assert!(slots == 0 || open + slots <= room.slots, "{asks:?}");
        asks.into_iter().map(|ask| (ask.class.0, ask.count)).collect()
    }

    #[test]
    fn pull_requests_prefer_waiting_and_largest_class() {
        let busy = FreeCapacity { idle: false, ..FreeCapacity::with_slots(8) };
        assert_eq!(
            request_counts(busy, &[class_demand(1, 3, 0), class_demand(0, 90, 0)], &mut 0),
            [(1, 3), (0, 5)]
        );
        let tight = FreeCapacity { shares: Some(9), ..busy };
        assert_eq!(
            request_counts(tight, &[class_demand(1, 3, 0), class_demand(0, 90, 0)], &mut 0),
            [(1, 2), (0, 1)]
        );
        assert_eq!(
            request_counts(busy, &[class_demand(1, 0, 0), class_demand(0, 0, 0)], &mut 0),
            [(1, 4), (0, 4)]
        );
        assert_eq!(request_counts(busy, &[class_demand(0, 0, 0)], &mut 0), [(0, 8)]);
    }

    #[test]
    fn pull_requests_are_limited_to_free_slots_in_batches() {
        let room = FreeCapacity::with_slots(9);
        assert_eq!(request_counts(room, &[class_demand(0, 90, 8)], &mut 0), []);
        assert_eq!(request_counts(room, &[class_demand(0, 90, 9)], &mut 0), []);
        assert_eq!(request_counts(room, &[class_demand(0, 90, 6)], &mut 0), [(0, 3)]);
        assert_eq!(request_counts(room, &[class_demand(0, 90, 12)], &mut 0), []);
    }

    #[test]
    fn pull_requests_with_few_slots_rotate_size_classes() {
        let (mut turn, mut seen) = (0, std::collections::BTreeSet::new());
        let classes = [class_demand(2, 0, 0), class_demand(1, 0, 0), class_demand(0, 0, 0)];
        for _ in 0..3 {
            let asks = request_counts(FreeCapacity::with_slots(1), &classes, &mut turn);
            assert_eq!(asks.len(), 1);
            seen.insert(asks[0].0);
        }
        assert_eq!(seen.len(), 3);
    }

    #[test]
    fn pull_request_for_solo_needs_idle_worker() {
        let solo = SizeClass::SOLO.0;
        let classes = |waiting, solo_open, open| {
            [class_demand(solo, waiting, solo_open), class_demand(0, 9, open)]
        };
        assert_eq!(
            request_counts(FreeCapacity::with_slots(4), &classes(1, 0, 0), &mut 0),
            [(solo, 1)]
        );
        assert_eq!(
            request_counts(FreeCapacity::with_slots(4), &classes(1, 0, 1), &mut 0),
            [],
            "other requests are open"
        );
        assert_eq!(
            request_counts(FreeCapacity::with_slots(4), &classes(1, 1, 0), &mut 0),
            [],
            "it is requested already"
        );
        assert_eq!(
            request_counts(FreeCapacity::with_slots(4), &classes(0, 0, 0), &mut 0),
            [(0, 4)]
        );
        let busy = FreeCapacity { idle: false, ..FreeCapacity::with_slots(4) };
        assert_eq!(request_counts(busy, &classes(1, 0, 0), &mut 0), [(0, 4)]);
    }
}
