//! `rollout bench dispatch`: trials that do nothing, through the whole embedded path.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollout_base::supervise;
use rollout_base::traces::Tracer;
use rollout_engine::atomic_file;
use rollout_engine::journal::RunLayout;
use rollout_protocol::id::RunId;
use rollout_store::BlobStore;
use serde::Serialize;
use tokio::sync::mpsc;

use super::{DispatchBenchError, floor, noop, usage};
use crate::events::{MaterializeMode, ReportError, Reporter};
use crate::launch::embedded::{self, EmbeddedRun, WorkerEquipment};
use crate::plan::{JobPlan, PlanDocument};
use crate::results::tables;
use crate::workloads::job::JobPlanner;

/// Parameters of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct DispatchBench {
    /// Trials.
    pub items: u32,
    /// Trials at a time.
    pub window: u32,
    /// Which result files are written.
    pub materialize: MaterializeMode,
}

/// Results of a measurement.
#[derive(Debug, Clone, Serialize)]
pub struct DispatchMeasurement {
    /// Trials.
    pub items: u32,
    /// Trials at a time.
    pub window: u32,
    /// Which result files were written.
    pub materialize: MaterializeMode,
    /// Wall-clock time of the run, seconds.
    pub seconds: f64,
    /// Wall-clock time of the analysis tables that a job adds at its end, seconds.
    pub tables_seconds: f64,
    /// Trials per second.
    pub items_per_second: f64,
    /// Processor time per trial, microseconds.
    pub cpu_us_per_item: f64,
    /// Largest memory of the process so far, MiB.
    pub peak_memory_mib: Option<f64>,
    /// Bytes of journal per trial.
    pub journal_bytes_per_item: f64,
    /// Operations of the floor.
    pub floor: &'static str,
    /// Trials per second of the floor.
    pub floor_per_second: f64,
    /// Trials per second divided by the floor's.
    pub ratio: f64,
}

/// Runs the trials in `directory` (which is left as it is afterwards) and measures the floor there.
///
/// # Errors
/// [`DispatchBenchError`].
pub async fn dispatch(
    bench: DispatchBench,
    store: Arc<dyn BlobStore>,
    directory: &Path,
) -> Result<DispatchMeasurement, DispatchBenchError> {
    let plan = Arc::new(noop::plan(bench.items, &*store).await?);
    let layout = RunLayout::new(directory.join("run"));
    std::fs::create_dir_all(layout.root())?;
    let facts = noop::facts(layout.root().to_owned(), bench.items, bench.materialize);
    let (events, reporter) = Reporter::start(facts, Arc::clone(&store), Vec::new())?;

    let (cpu, start) = (usage::cpu(), Instant::now());
    let session = embedded::run(run(bench, &plan, store, layout.clone(), events)).await?;
    let ended = session.outcome;
    let report = reporter.finish().await?;
    let (took, cpu) = (start.elapsed(), usage::cpu() - cpu);
    let Some(result) = report.result else {
        return Err(DispatchBenchError::Owed { owed: bench.items.into() });
    };
    if ended.pending > 0 {
        return Err(DispatchBenchError::Owed { owed: ended.pending });
    }
    let journal = std::fs::metadata(layout.segment(1))?.len();
    let tables_took = measure_tables(&layout, &plan, result.run).await?;
    let (floor, floor_took) = measure_floor(bench, &layout, journal).await?;
    let per_second = |took: Duration| f64::from(bench.items) / took.as_secs_f64();
    Ok(DispatchMeasurement {
        items: bench.items,
        window: bench.window,
        materialize: bench.materialize,
        seconds: took.as_secs_f64(),
        tables_seconds: tables_took.as_secs_f64(),
        items_per_second: per_second(took),
        cpu_us_per_item: cpu.as_secs_f64() * 1e6 / f64::from(bench.items),
        peak_memory_mib: usage::peak_memory_bytes().map(|bytes| bytes as f64 / 1048576.0),
        journal_bytes_per_item: journal as f64 / f64::from(bench.items),
        floor,
        floor_per_second: per_second(floor_took),
        ratio: per_second(took) / per_second(floor_took),
    })
}

fn run(
    what: DispatchBench,
    plan: &Arc<JobPlan>,
    store: Arc<dyn BlobStore>,
    layout: RunLayout,
    events: mpsc::Sender<Vec<rollout_protocol::event::RunEvent>>,
) -> EmbeddedRun {
    let (_stops, stops) = mpsc::channel(1);
    let blobs = Arc::clone(&store);
    EmbeddedRun {
        options: noop::run_open_options(layout, plan, what.window),
        planner: Box::new(JobPlanner::new(Arc::clone(plan), false)),
        store,
        queue: Arc::default(),
        slots: what.window,
        events,
        stops,
        // Without a plan document, the run writes no tables: they are measured apart.
        on_open: Box::new(|_| Box::pin(async { Ok(()) })),
        takes_commands: false,
        equip: Box::new(move |dir| {
            Ok(WorkerEquipment { runner: noop::runner(dir, blobs)?, providers: Vec::new() })
        }),
        tracer: Tracer::default(),
    }
}

/// Writes the plan and the tables of the run.
async fn measure_tables(
    layout: &RunLayout,
    plan: &JobPlan,
    run: RunId,
) -> Result<Duration, DispatchBenchError> {
    let (layout, trials, document) = (layout.clone(), plan.len(), PlanDocument::from(plan));
    supervise::blocking(move || {
        atomic_file::write_json(&layout.plan(), &document)?;
        let start = Instant::now();
        tables::write_to_run(layout.root(), run, trials).map_err(ReportError::from)?;
        Ok(start.elapsed())
    })
    .await
}

async fn measure_floor(
    what: DispatchBench,
    layout: &RunLayout,
    journal: u64,
) -> Result<(&'static str, Duration), DispatchBenchError> {
    let root = layout.root().to_owned();
    let materialize = what.materialize;
    let items = u64::from(what.items);
    supervise::blocking(move || match materialize {
        MaterializeMode::None => {
            let bytes = usize::try_from(journal / items.max(1)).unwrap_or(usize::MAX);
            let took = floor::group_commit(&root, items, u64::from(what.window), bytes)?;
            Ok(("write and fdatasync of as many bytes in batches of the window", took))
        }
        MaterializeMode::MetadataOnly | MaterializeMode::OutputsOnly | MaterializeMode::Full => {
            let result = root.join("nop/bench/noop__1/result.json");
            let bytes = usize::try_from(std::fs::metadata(result)?.len()).unwrap_or(usize::MAX);
            let files = [("result.json".to_owned(), bytes)];
            let took = floor::result_tree(&root, items, &files)?;
            Ok(("write and fsync of the same files and directories, one after the other", took))
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use rollout_store::FsStore;

    use super::*;

    async fn run(materialize: MaterializeMode) -> DispatchMeasurement {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = FsStore::open(&directory.path().join("blobs")).await.expect("a store");
        let what = DispatchBench { items: 300, window: 16, materialize };
        dispatch(what, Arc::new(store), directory.path()).await.expect("measured")
    }

    #[tokio::test]
    async fn dispatch_bench_settles_and_measures_every_trial() {
        for materialize in [MaterializeMode::None, MaterializeMode::Full] {
            let measured = run(materialize).await;
            assert!(measured.items_per_second > 0.0 && measured.floor_per_second > 0.0);
            assert!(measured.journal_bytes_per_item > 100.0, "{measured:?}");
            assert!(measured.tables_seconds > 0.0, "{measured:?}");
        }
    }
}
