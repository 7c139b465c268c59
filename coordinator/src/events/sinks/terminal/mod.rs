//! Progress for people, on standard error: a live region on a terminal, lines elsewhere.
//!
//! Folding events is cheap and happens where they come in; drawing happens on a thread of its own,
//! at most ten times a second, so that a slow or stopped terminal never holds up a run.

mod format;
mod frame;
mod job_view;
mod run_view;
mod score;
mod screen;
mod search_view;
mod style;
pub mod summary;
pub mod table;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rollout_protocol::event::RunEvent;
use rollout_worker::supervise;

use job_view::JobView;
pub use screen::Screen;
use search_view::SearchView;
pub use style::Style;

use crate::events::sink::{EventBatch, EventSink, RunResult, SinkReport};
use crate::events::{JobFacts, ReportError};

/// Time between two looks at the state.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

/// Size of a terminal that does not tell.
const DEFAULT_SIZE: (u16, u16) = (24, 80);

/// Progress as it is shown, folded from events.
trait ProgressView: Send + fmt::Debug {
    /// Takes in an event.
    fn apply(&mut self, event: &RunEvent, now: Instant);

    /// The lines that wait to be shown, oldest first.
    fn take_lines(&mut self) -> Vec<String>;

    /// Whether the run began: there is nothing to draw before.
    fn has_begun(&self) -> bool;

    /// Time between two progress lines where there is no live region.
    fn line_every(&self) -> Duration;

    /// The live region. No line is wider than `width`; no more lines than `height` allows.
    fn live(&self, now: Instant, width: usize, height: usize) -> Vec<String>;

    /// The progress in one line, for outputs that are not terminals.
    fn plain(&self, now: Instant) -> String;
}

/// Shows the progress of a run.
#[derive(Debug)]
pub(super) struct TerminalSink {
    picture: Arc<Mutex<Box<dyn ProgressView>>>,
    /// Dropped to end the thread.
    ended: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl TerminalSink {
    /// Starts drawing a job. The lines of `header` follow the one that says that the run started.
    pub(super) fn for_job(
        screen: Screen,
        style: Style,
        facts: &JobFacts,
        header: Vec<String>,
    ) -> io::Result<Self> {
        Self::start(screen, Box::new(JobView::new(&facts.agents, &facts.metrics, style, header)))
    }

    /// Starts drawing a search.
    pub(super) fn for_search(screen: Screen, style: Style) -> io::Result<Self> {
        Self::start(screen, Box::new(SearchView::new(style)))
    }

    fn start(screen: Screen, picture: Box<dyn ProgressView>) -> io::Result<Self> {
        let picture = Arc::new(Mutex::new(picture));
        let (ended, end) = mpsc::channel();
        let shown = Arc::clone(&picture);
        let thread = supervise::thread("terminal", move || draw(&screen, &shown, &end))?;
        Ok(Self { picture, ended, thread })
    }
}

#[async_trait]
impl EventSink for TerminalSink {
    async fn accept(&mut self, batch: &EventBatch) {
        let now = Instant::now();
        let mut picture = self.picture.lock().unwrap_or_else(PoisonError::into_inner);
        for event in batch.iter() {
            picture.apply(event, now);
        }
    }

    /// Shows what is left to show and clears the live region.
    async fn finish(
        self: Box<Self>,
        _result: Option<RunResult>,
    ) -> Result<SinkReport, ReportError> {
        let Self { ended, thread, .. } = *self;
        drop(ended);
        let joined = supervise::blocking(move || thread.join()).await;
        if let Err(panic) = joined {
            let message = supervise::panic_message(panic.as_ref());
            tracing::error!(message, "drawing the progress panicked");
        }
        Ok(SinkReport::default())
    }
}

fn draw(screen: &Screen, picture: &Mutex<Box<dyn ProgressView>>, end: &mpsc::Receiver<()>) {
    let region = screen.region();
    let mut told = Instant::now();
    loop {
        let ended = end.recv_timeout(REDRAW_INTERVAL) == Err(RecvTimeoutError::Disconnected);
        let now = Instant::now();
        let (lines, live, progress) = {
            let mut picture = picture.lock().unwrap_or_else(PoisonError::into_inner);
            let (lines, begun) = (picture.take_lines(), picture.has_begun());
            let waited = now.duration_since(told) >= picture.line_every();
            let due = begun && region.is_none() && !ended && waited;
            let live = (begun && region.is_some() && !ended).then(|| {
                let (rows, columns) = size();
                picture.live(now, usize::from(columns), usize::from(rows))
            });
            (lines, live, due.then(|| picture.plain(now)))
        };
        if !lines.is_empty() || progress.is_some() {
            if progress.is_some() {
                told = now;
            }
            let text: String = lines
                .into_iter()
                .chain(progress)
                .flat_map(|line| [line, "\n".to_owned()])
                .collect();
            screen.write(text.as_bytes());
        }
        if let (Some(region), Some(live)) = (&region, &live) {
            region.show(live);
        }
        if ended {
            return;
        }
    }
}

fn size() -> (u16, u16) {
    console::Term::stderr().size_checked().unwrap_or(DEFAULT_SIZE)
}
