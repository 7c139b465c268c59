//! Searches that die between any two of their steps.

use super::*;

#[tokio::test]
async fn death_after_every_write_changes_nothing() {
    let whole = Lab::new();
    whole.run().await;
    for parallel in [1, 3] {
        let lab = Lab::new().parallel(parallel);
        let mut sittings = 1;
        while !lab.sit(1).await {
            sittings += 1;
        }
        assert!(sittings > 40, "{sittings}");
        assert_same(&format!("{parallel} at once"), &whole.files(), &lab.files());
    }
}

#[tokio::test]
async fn death_after_any_write_changes_nothing() {
    let whole = Lab::new();
    whole.run().await;
    for writes in (1..60).step_by(9) {
        let lab = Lab::new().parallel(3);
        if !lab.sit(writes).await {
            assert!(lab.sit(u32::MAX).await);
        }
        assert_same(&format!("after write {writes}"), &whole.files(), &lab.files());
    }
}

/// A player that notes down what it begins.
struct Counting {
    player: Player,
    begun: Arc<std::sync::Mutex<Vec<u32>>>,
}

impl Keeper for Counting {
    fn keep(
        &mut self,
        wanted: &Wanted,
        deferred: &std::collections::BTreeSet<String>,
    ) -> Result<Vec<Left>, WorkError> {
        self.player.keep(wanted, deferred)
    }

    fn remove(&mut self, item: &crate::workloads::search::manifest::Cleanup) -> Result<(), String> {
        self.player.remove(item)
    }
}

impl Workshop for Counting {
    fn resolve(&mut self, name: &str) -> Result<String, WorkError> {
        self.player.resolve(name)
    }

    fn diff(&mut self, from: &str, to: &str) -> Result<Vec<u8>, WorkError> {
        self.player.diff(from, to)
    }

    fn ideas(
        &mut self,
        orders: Vec<IdeasOrder>,
        done: &mut dyn FnMut(rollout_protocol::search::NodeId) -> Result<(), TreeError>,
    ) -> Result<(), TreeError> {
        self.player.ideas(orders, done)
    }

    fn begin(&mut self, order: EvalOrder) -> Result<(), WorkError> {
        self.begun.lock().expect("no panic").push(order.eval.eval_id.0);
        self.player.begin(order)
    }

    fn ended(&mut self) -> Result<EvalResult, WorkError> {
        self.player.ended()
    }

    fn score(
        &self,
        sweep: &Sweep<'_>,
    ) -> Result<Scores, crate::workloads::search::score::SweepError> {
        self.player.score(sweep)
    }
}

#[tokio::test]
async fn results_that_are_there_are_merged_and_not_made_again() {
    let lab = Lab::new().parallel(4);
    let begun = Arc::new(std::sync::Mutex::new(Vec::new()));
    let sit = async |writes| {
        let workshop = Counting { player: lab.player(), begun: Arc::clone(&begun) };
        let (mut sitting, _lock) = lab.open(lab.opening(), workshop).await.expect("opened");
        sitting.writes_left = Some(writes);
        sitting.run().is_ok()
    };
    // The ideas, the plan, four that run, and the first result: all four are on disk then.
    assert!(!sit(7).await);
    let results =
        (0..4).filter(|id| lab.root().join(format!("eval/000{id}/eval_result.json")).exists());
    assert_eq!((results.count(), begun.lock().expect("no panic").len()), (4, 4));
    assert!(sit(u32::MAX).await);
    let mut all = begun.lock().expect("no panic").clone();
    all.sort_unstable();
    assert_eq!(all, (0..20).collect::<Vec<_>>(), "every eval was begun once");
}

#[tokio::test]
async fn a_search_has_one_owner_and_a_takeover_is_told() {
    let lab = Lab::new();
    let (sitting, lock) = lab.open(lab.opening(), lab.player()).await.expect("opened");
    let refused = lab.open(lab.opening(), lab.player()).await.err();
    assert!(matches!(refused, Some(TreeError::Lock(_))), "{refused:?}");
    let taken = lab.take(true, lab.opening(), lab.player()).await;
    let (mut second, second_lock) = taken.expect("taken over");
    second.run().expect("to its end");
    let kinds = &second.manifest().events;
    let told = |event: &crate::workloads::search::manifest::Event| {
        matches!(event.kind, crate::workloads::search::manifest::EventKind::LockTakeover { .. })
    };
    assert_eq!(kinds.iter().filter(|event| told(event)).count(), 1);
    // The first one wakes up after its successor has ended and gone: it writes nothing more.
    drop((second, second_lock));
    let before = lab.files();
    let useless = lab.root().join("cand/9999");
    std::fs::create_dir_all(&useless).expect("made");
    let mut first = sitting;
    let lost = first.run();
    assert!(matches!(lost, Err(TreeError::Lost(_))), "{lost:?}");
    let (directory, mut player) = (Directory::new(lab.root()), lab.player());
    let lost = tidy(&directory, &mut player, &first.fence);
    assert!(matches!(lost, Err(TreeError::Lost(_))), "{lost:?}");
    // Also what is written before the first turn, and what is removed on request.
    let opening = Opening { rerun_evals: true, force_regenerate_ideas: true, ..lab.opening() };
    let mut manifest = directory.manifest().expect("there");
    let refused = directory.write(&manifest, &first.fence);
    assert!(matches!(refused, Err(TreeError::Lost(_))), "{refused:?}");
    manifest.state.stopped = false;
    let refused = resume::discard(&directory, &mut manifest, &opening, &first.fence);
    assert!(matches!(refused, Err(TreeError::Lost(_))), "{refused:?}");
    let owned = Owned { fence: first.fence.clone(), former: Some("somebody".to_owned()) };
    let refused = open(directory, &opening, owned, player, Arc::default()).err();
    assert!(matches!(refused, Some(TreeError::Lost(_))), "{refused:?}");
    assert!(useless.exists(), "it removes nothing, either");
    assert_same("the former owner", &before, &lab.files());
    drop(lock);
}
