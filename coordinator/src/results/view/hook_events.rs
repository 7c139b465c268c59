//! The logs of hook events of a trial: in chunks while an execution runs or if it died, and as one
//! blob when its record has it.

use std::collections::BTreeMap;

use rollout_engine::core::AnnouncedChunk;
use rollout_protocol::blob::BlobRef;
use rollout_protocol::id::{ExecId, ItemId, TryId, WorkerId};
use rollout_protocol::record::{Execution, ExecutionEnd, StepEventLog, TrialRecord};
use rollout_store::BlobStore;

use super::captured::{CapturedError, record_of};
use super::detail::{ExecutionRole, ExecutionView};
use super::run::RunView;

/// The logs of one execution.
#[derive(Debug, Clone)]
pub struct HookEventLogs {
    item: ItemId,
    /// Try.
    pub try_id: TryId,
    /// Execution.
    pub exec: ExecId,
    /// Its worker.
    pub worker: WorkerId,
    /// Whether it settled the trial.
    pub is_settling: bool,
    /// Whether no more events are announced, as far as is known.
    pub has_ended: bool,
    /// The execution, if the journal has more of it than its events.
    execution: Option<Execution>,
    chunks: Vec<AnnouncedChunk>,
}

/// The log of one step of an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookLog {
    /// Index of the step, from 0.
    pub step: u32,
    /// Name of the step, if it has one and the record states it.
    pub name: Option<String>,
    /// Where the bytes are.
    pub content: HookLogContent,
}

/// Where the bytes of a log are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookLogContent {
    /// In one blob, which is authoritative. It is the last one that was announced in chunks, which
    /// has this number, if there was one.
    Whole(Option<u32>, BlobRef),
    /// In the chunks of the log with this number, in the order of their offsets. More may follow.
    Chunks(u32, Vec<AnnouncedChunk>),
}

impl RunView {
    /// The executions of the watched trial that may have hook events, oldest first.
    pub fn hook_event_logs(&self) -> Vec<HookEventLogs> {
        let Some(watched) = &self.fold.watched else { return Vec::new() };
        let known = self.detail().map(|detail| detail.executions).unwrap_or_default();
        let mut found: Vec<HookEventLogs> =
            known.iter().map(|view| HookEventLogs::new(watched.item, view)).collect();
        for chunk in &watched.event_chunks {
            let at = found.iter().position(|logs| logs.exec == chunk.exec).unwrap_or_else(|| {
                found.push(HookEventLogs::unknown(chunk));
                found.len() - 1
            });
            found[at].chunks.push(chunk.clone());
        }
        found
    }
}

impl HookEventLogs {
    fn new(item: ItemId, view: &ExecutionView) -> Self {
        let execution = &view.execution;
        Self {
            item,
            try_id: execution.try_id,
            exec: execution.exec,
            worker: execution.worker.clone(),
            is_settling: view.role == ExecutionRole::Settled,
            has_ended: execution.end != ExecutionEnd::Open,
            execution: Some(execution.clone()),
            chunks: Vec::new(),
        }
    }

    /// An execution of which only events are known.
    fn unknown(chunk: &AnnouncedChunk) -> Self {
        Self {
            item: chunk.item,
            try_id: chunk.try_id,
            exec: chunk.exec,
            worker: chunk.worker.clone(),
            is_settling: false,
            has_ended: false,
            execution: None,
            chunks: Vec::new(),
        }
    }

    /// Whether it may have events.
    pub fn has_source(&self) -> bool {
        let recorded = self.execution.as_ref().is_some_and(|execution| execution.record.is_some());
        recorded || !self.chunks.is_empty()
    }

    /// Violations that were found so far, while it has no record.
    pub fn announced_violations(&self) -> u64 {
        let logs = announced_logs(&self.chunks);
        let last = logs.values().filter_map(|(_, chunks)| chunks.last());
        last.map(|chunk| chunk.violations).sum()
    }
}

/// The logs of an execution, in the order of the steps. The log of a record replaces the chunks of
/// its step.
///
/// # Errors
/// [`CapturedError`] when the record cannot be read.
pub async fn resolve_hook_logs(
    store: &dyn BlobStore,
    logs: &HookEventLogs,
) -> Result<Vec<HookLog>, CapturedError> {
    let mut found: BTreeMap<u32, HookLog> = announced_logs(&logs.chunks)
        .into_iter()
        .map(|(step, (number, chunks))| {
            let content = HookLogContent::Chunks(number, chunks);
            (step, HookLog { step, name: None, content })
        })
        .collect();
    let record = match &logs.execution {
        Some(execution) => record_of(store, logs.item, execution).await?,
        None => None,
    };
    for StepEventLog { step, name, log } in record.iter().flat_map(TrialRecord::event_logs) {
        let announced = found.get(&step).and_then(|announced| match &announced.content {
            HookLogContent::Chunks(number, _) => Some(*number),
            HookLogContent::Whole(..) => None,
        });
        let content = HookLogContent::Whole(announced, log.clone());
        found.insert(step, HookLog { step, name: name.map(str::to_owned), content });
    }
    Ok(found.into_values().collect())
}

/// The newest log of each step: its number, and its chunks in the order of their offsets.
pub type AnnouncedLogs = BTreeMap<u32, (u32, Vec<AnnouncedChunk>)>;

/// The logs of these chunks, which are of one execution.
pub fn announced_logs(chunks: &[AnnouncedChunk]) -> AnnouncedLogs {
    let mut steps = AnnouncedLogs::new();
    for chunk in chunks {
        let (log, known) = steps.entry(chunk.step).or_default();
        if chunk.log > *log {
            // A later attempt began from the start.
            (*log, *known) = (chunk.log, Vec::new());
        }
        if chunk.log == *log {
            known.push(chunk.clone());
        }
    }
    for (_, chunks) in steps.values_mut() {
        chunks.sort_by_key(|chunk| (chunk.offset, chunk.end()));
    }
    steps
}
