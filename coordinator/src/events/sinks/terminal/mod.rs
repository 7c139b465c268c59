//! Terminal sink: progress on standard error, as a live region on a terminal, else as lines.
//!
//! Folding events is cheap and happens in the sink itself; drawing happens on its own thread, at
//! most ten times a second, so that a slow or stopped terminal never blocks a run. Without a live
//! region the thread sleeps until there are events or a progress line is due.

pub(crate) mod format;
mod frame;
mod job_view;
mod run_view;
pub(crate) mod score;
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
use rollout_base::supervise;
use rollout_protocol::event::RunEvent;

use job_view::JobView;
pub use screen::Screen;
use screen::region_width;
use search_view::SearchView;
pub use style::Style;

use crate::events::sink::{Delivery, EventBatch, EventSink, RunResult, SinkReport};
use crate::events::{JobFacts, ReportError};

/// Time between two redraws.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);

/// Rows and columns of a terminal of unknown size.
const DEFAULT_SIZE: (u16, u16) = (24, 80);

/// Displayed progress, folded from events.
trait ProgressView: Send + fmt::Debug {
    /// Applies an event.
    fn apply(&mut self, event: &RunEvent, now: Instant);

    /// Takes the pending lines, oldest first.
    fn take_lines(&mut self) -> Vec<String>;

    /// Whether the run has started: nothing is drawn before.
    fn has_begun(&self) -> bool;

    /// Time between two progress lines without a live region.
    fn line_every(&self) -> Duration;

    /// The live region. Lines have at most `width` columns; their number fits `height`.
    fn live(&self, now: Instant, width: usize, height: usize) -> Vec<String>;

    /// The progress in one line, for outputs that are not terminals.
    fn plain(&self, now: Instant) -> String;
}

/// Shows the progress of a run.
#[derive(Debug)]
pub(super) struct TerminalSink {
    view: Arc<Mutex<Box<dyn ProgressView>>>,
    /// Told of new events. Dropped to end the thread.
    changes: mpsc::SyncSender<()>,
    thread: JoinHandle<()>,
}

impl TerminalSink {
    /// Starts drawing a job. The lines of `header` follow the first one, which announces the run.
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

    fn start(screen: Screen, view: Box<dyn ProgressView>) -> io::Result<Self> {
        let view = Arc::new(Mutex::new(view));
        let (changes, changed) = mpsc::sync_channel(1);
        let drawn_view = Arc::clone(&view);
        let thread = supervise::thread("terminal", move || draw(&screen, &drawn_view, &changed))?;
        Ok(Self { view, changes, thread })
    }
}

#[async_trait]
impl EventSink for TerminalSink {
    fn delivery(&self) -> Delivery {
        Delivery::Lossy
    }

    async fn accept(&mut self, batch: &EventBatch) {
        let now = Instant::now();
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        for event in batch.iter() {
            view.apply(event, now);
        }
        drop(view);
        // One message is enough, and a thread that panicked needs none.
        let _is_told = self.changes.try_send(());
    }

    async fn dropped(&mut self, events: u64) {
        tracing::warn!(events, "the progress lacks events");
    }

    /// Shows the remaining lines and clears the live region.
    async fn finish(
        self: Box<Self>,
        _result: Option<RunResult>,
    ) -> Result<SinkReport, ReportError> {
        let Self { changes, thread, .. } = *self;
        drop(changes);
        let joined = supervise::blocking(move || thread.join()).await;
        if let Err(panic) = joined {
            let message = supervise::panic_message(panic.as_ref());
            tracing::error!(message, "drawing the progress panicked");
        }
        Ok(SinkReport::default())
    }
}

fn draw(screen: &Screen, view: &Mutex<Box<dyn ProgressView>>, changes: &mpsc::Receiver<()>) {
    let region = screen.region();
    let mut last_progress_at = Instant::now();
    let mut idle = REDRAW_INTERVAL;
    loop {
        let ended = wait_for_redraw(changes, idle);
        let now = Instant::now();
        let (lines, live, progress) = {
            let mut view = view.lock().unwrap_or_else(PoisonError::into_inner);
            let (lines, has_begun) = (view.take_lines(), view.has_begun());
            let (waited, line_every) = (now.duration_since(last_progress_at), view.line_every());
            let due = has_begun && region.is_none() && !ended && waited >= line_every;
            if region.is_none() {
                let left =
                    if has_begun && !due { line_every.saturating_sub(waited) } else { line_every };
                idle = left.max(REDRAW_INTERVAL);
            }
            let live = (has_begun && region.is_some() && !ended).then(|| {
                let (rows, columns) = size();
                view.live(now, usize::from(region_width(columns)), usize::from(rows))
            });
            (lines, live, due.then(|| view.plain(now)))
        };
        let lines: Vec<String> = if region.is_some() {
            lines.iter().map(|line| on_screen(line)).collect()
        } else {
            lines
        };
        if !lines.is_empty() || progress.is_some() {
            if progress.is_some() {
                last_progress_at = now;
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

/// Waits until there are events, at most for `idle`; those of a moment are drawn together. Returns whether
/// the run has ended.
fn wait_for_redraw(changes: &mpsc::Receiver<()>, idle: Duration) -> bool {
    let draw_at = Instant::now() + REDRAW_INTERVAL;
    let mut left = idle;
    loop {
        match changes.recv_timeout(left) {
            Err(RecvTimeoutError::Disconnected) => return true,
            Err(RecvTimeoutError::Timeout) => return false,
            Ok(()) => left = draw_at.saturating_duration_since(Instant::now()),
        }
        if left.is_zero() {
            return false;
        }
    }
}

/// A line as the terminal shows it: a line that is too long ends between words.
fn on_screen(line: &str) -> String {
    let style = Style { width: Some(usize::from(size().1)), ..Style::PLAIN };
    style.wrapped(line)
}

fn size() -> (u16, u16) {
    console::Term::stderr().size_checked().unwrap_or(DEFAULT_SIZE)
}
