//! Progress for people, on standard error: a live region on a terminal, lines elsewhere.
//!
//! Folding events is cheap and happens where they come in; drawing happens on a thread of its own,
//! at most ten times a second, so that a slow or stopped terminal never holds up a run.

mod format;
mod frame;
mod score;
mod screen;
mod style;
pub mod summary;
pub mod table;
#[cfg(test)]
mod tests;
mod view;

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rollout_protocol::spec::metric::MetricKind;
use rollout_worker::supervise;

pub use screen::Screen;
pub use style::Style;
use view::View;

use crate::events::ReportError;
use crate::events::sink::{Batch, EventSink, Told};
use crate::results::metrics::AgentTotal;
use crate::results::report::JobResult;

/// Time between two looks at the state.
const TICK: Duration = Duration::from_millis(100);

/// Time between two progress lines where there is no live region.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// The same for jobs that have a line per trial: a sign of life only.
const LINE_EVERY_IF_SMALL: Duration = Duration::from_secs(60);

/// Size of a terminal that does not tell.
const DEFAULT_SIZE: (u16, u16) = (24, 80);

/// Shows the progress of a run.
#[derive(Debug)]
pub(super) struct Terminal {
    view: Arc<Mutex<View>>,
    /// Dropped to end the thread.
    ended: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Terminal {
    /// Starts drawing. The lines of `header` follow the one that says that the run started.
    pub(super) fn start(
        screen: Screen,
        style: Style,
        agents: &[AgentTotal],
        kinds: &[MetricKind],
        header: Vec<String>,
    ) -> io::Result<Self> {
        let mut view = View::new(agents, kinds, style);
        view.header = header;
        let view = Arc::new(Mutex::new(view));
        let (ended, end) = mpsc::channel();
        let shown = Arc::clone(&view);
        let thread = supervise::thread("terminal", move || draw(&screen, &shown, &end))?;
        Ok(Self { view, ended, thread })
    }
}

#[async_trait]
impl EventSink for Terminal {
    async fn take(&mut self, batch: &Batch) {
        let now = Instant::now();
        let mut view = self.view.lock().unwrap_or_else(PoisonError::into_inner);
        for event in batch.iter() {
            view.apply(event, now);
        }
    }

    /// Shows what is left to show and clears the live region.
    async fn finish(self: Box<Self>, _result: Option<Arc<JobResult>>) -> Result<Told, ReportError> {
        let Self { ended, thread, .. } = *self;
        drop(ended);
        let joined = supervise::blocking(move || thread.join()).await;
        if let Err(panic) = joined {
            let message = supervise::panic_message(panic.as_ref());
            tracing::error!(message, "drawing the progress panicked");
        }
        Ok(Told::default())
    }
}

fn draw(screen: &Screen, view: &Mutex<View>, end: &mpsc::Receiver<()>) {
    let region = screen.region();
    let mut told = Instant::now();
    let mut started = false;
    loop {
        let ended = end.recv_timeout(TICK) == Err(RecvTimeoutError::Disconnected);
        let now = Instant::now();
        let (lines, live, progress) = {
            let mut view = view.lock().unwrap_or_else(PoisonError::into_inner);
            let lines = view.take_lines();
            started |= !view.job.is_empty();
            let every = if view.is_small() { LINE_EVERY_IF_SMALL } else { LINE_EVERY };
            let due = started && region.is_none() && !ended && now.duration_since(told) >= every;
            let live = (started && region.is_some() && !ended).then(|| {
                let (rows, columns) = size();
                frame::live(&view, now, usize::from(columns), usize::from(rows))
            });
            (lines, live, due.then(|| frame::plain(&view, now)))
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
