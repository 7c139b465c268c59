//! Tests of searches that crash between any two steps.

use super::*;

#[tokio::test]
async fn search_killed_after_every_write_leaves_same_files() {
    let whole = SearchFixture::new();
    whole.run().await;
    for parallel in [1, 3] {
        let lab = SearchFixture::new().parallel(parallel);
        let mut sittings = 1;
        while !lab.run_session(1).await {
            sittings += 1;
        }
        assert!(sittings > 40, "{sittings}");
        assert_same(&format!("{parallel} at once"), &whole.files(), &lab.files());
    }
}

#[tokio::test]
async fn search_killed_once_after_any_write_leaves_same_files() {
    let whole = SearchFixture::new();
    whole.run().await;
    for writes in (1..60).step_by(9) {
        let lab = SearchFixture::new().parallel(3);
        if !lab.run_session(writes).await {
            assert!(lab.run_session(u32::MAX).await);
        }
        assert_same(&format!("after write {writes}"), &whole.files(), &lab.files());
    }
}

/// A simulation that records which evals it begins.
struct CountingBackend {
    simulated: SimulatedBackend,
    begun: Arc<std::sync::Mutex<Vec<u32>>>,
}

impl RepositoryMaintenance for CountingBackend {
    fn reconcile(
        &mut self,
        wanted: &DesiredRepositoryState,
        deferred: &std::collections::BTreeSet<String>,
    ) -> Result<Vec<FailedRemoval>, BackendError> {
        self.simulated.reconcile(wanted, deferred)
    }

    fn remove(
        &mut self,
        item: &crate::workloads::search::manifest::DeferredCleanup,
    ) -> Result<(), String> {
        self.simulated.remove(item)
    }
}

impl SearchBackend for CountingBackend {
    fn resolve(&mut self, name: &str) -> Result<String, BackendError> {
        self.simulated.resolve(name)
    }

    fn diff(&mut self, from: &str, to: &str) -> Result<Vec<u8>, BackendError> {
        self.simulated.diff(from, to)
    }

    fn generate_ideas(
        &mut self,
        orders: Vec<IdeasOrder>,
        done: &mut dyn FnMut(rollout_protocol::search::NodeId) -> Result<(), SearchError>,
    ) -> Result<(), SearchError> {
        self.simulated.generate_ideas(orders, done)
    }

    fn begin_eval(&mut self, order: EvalOrder) -> Result<(), BackendError> {
        self.begun.lock().expect("no panic").push(order.eval.eval_id.0);
        self.simulated.begin_eval(order)
    }

    fn next_result(&mut self) -> Result<EvalResult, BackendError> {
        self.simulated.next_result()
    }

    fn score(&self, sweep: &SweepFiles<'_>) -> Result<Scores, ScoreError> {
        self.simulated.score(sweep)
    }
}

#[tokio::test]
async fn search_resume_with_stored_results_reruns_no_eval() {
    let lab = SearchFixture::new().parallel(4);
    let begun = Arc::new(std::sync::Mutex::new(Vec::new()));
    let sit = async |writes| {
        let workshop = CountingBackend { simulated: lab.backend(), begun: Arc::clone(&begun) };
        let (mut session, _lock) = lab.open(lab.opening(), workshop).await.expect("opened");
        session.writes_left = Some(writes);
        session.run().is_ok()
    };
    // The ideas, the plan, four running evals, and the first result: all four results are on disk
    // then.
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
async fn search_lock_lost_by_takeover_prevents_all_writes() {
    let lab = SearchFixture::new();
    let (session, lock) = lab.open(lab.opening(), lab.backend()).await.expect("opened");
    let refused = lab.open(lab.opening(), lab.backend()).await.err();
    assert!(matches!(refused, Some(SearchError::Lock(_))), "{refused:?}");
    let taken = lab.lock_and_open(true, lab.opening(), lab.backend()).await;
    let (mut second, second_lock) = taken.expect("taken over");
    second.run().expect("to its end");
    let kinds = &second.manifest().events;
    let told = |event: &crate::workloads::search::manifest::ManifestEvent| {
        matches!(
            event.kind,
            crate::workloads::search::manifest::ManifestEventKind::LockTakeover { .. }
        )
    };
    assert_eq!(kinds.iter().filter(|event| told(event)).count(), 1);
    // The first session wakes up after its successor has ended: it must write nothing more.
    drop((second, second_lock));
    let before = lab.files();
    let useless = lab.root().join("cand/9999");
    std::fs::create_dir_all(&useless).expect("made");
    let mut first = session;
    let lost = first.run();
    assert!(matches!(lost, Err(SearchError::Lost(_))), "{lost:?}");
    let (directory, mut player) = (SearchDirectory::new(lab.root()), lab.backend());
    let lost = collect_garbage(&directory, &mut player, &first.fence);
    assert!(matches!(lost, Err(SearchError::Lost(_))), "{lost:?}");
    // The same for writes before the first turn, and for removals on request.
    let opening =
        SearchOpenOptions { rerun_evals: true, force_regenerate_ideas: true, ..lab.opening() };
    let mut manifest = directory.manifest().expect("there");
    let refused = directory.write(&manifest, &first.fence);
    assert!(matches!(refused, Err(SearchError::Lost(_))), "{refused:?}");
    manifest.state.stopped = false;
    let refused = resume::discard(&directory, &mut manifest, &opening, &first.fence);
    assert!(matches!(refused, Err(SearchError::Lost(_))), "{refused:?}");
    let owned = SearchOwnership { fence: first.fence.clone(), former: Some("somebody".to_owned()) };
    let refused = open(directory, &opening, owned, player, Arc::default()).err();
    assert!(matches!(refused, Some(SearchError::Lost(_))), "{refused:?}");
    assert!(useless.exists(), "it must remove nothing");
    assert_same("the former owner", &before, &lab.files());
    drop(lock);
}
