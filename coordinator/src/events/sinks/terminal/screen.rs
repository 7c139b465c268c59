//! The one door to the terminal: lines go above the live region, which is drawn again after them.

use std::fmt;
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Most redraws per second.
const HZ: u8 = 10;

/// Where progress, lines and log messages are shown. Clones show in the same place.
#[derive(Clone)]
pub struct Screen {
    /// Present where a live region can be shown.
    live: Option<MultiProgress>,
    out: Arc<Mutex<Box<dyn Write + Send>>>,
}

impl Screen {
    /// Shows on standard error, which is a terminal; `out` writes to it too.
    pub fn terminal(out: Box<dyn Write + Send>) -> Self {
        let live = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(HZ));
        Self { live: Some(live), out: Arc::new(Mutex::new(out)) }
    }

    /// Writes lines only.
    pub fn lines(out: Box<dyn Write + Send>) -> Self {
        Self { live: None, out: Arc::new(Mutex::new(out)) }
    }

    /// Writes whole lines, line ends included. Nobody is there to be told when that fails.
    pub fn write(&self, text: &[u8]) {
        let write = || {
            let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
            let _unwritten = out.write_all(text).and_then(|()| out.flush());
        };
        match &self.live {
            Some(live) => live.suspend(write),
            None => write(),
        }
    }

    /// A live region, where there can be one.
    pub(super) fn region(&self) -> Option<Region> {
        let live = self.live.as_ref()?;
        let style = ProgressStyle::with_template("{msg}").expect("the template is valid");
        let bar = live.add(ProgressBar::new_spinner().with_style(style));
        Some(Region { bar })
    }
}

impl fmt::Debug for Screen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Screen").field("live", &self.live.is_some()).finish_non_exhaustive()
    }
}

/// Lines at the bottom that are replaced in place.
#[derive(Debug)]
pub(super) struct Region {
    bar: ProgressBar,
}

impl Region {
    /// Shows these lines instead of the former ones.
    pub(super) fn show(&self, lines: &[String]) {
        self.bar.set_message(lines.join("\n"));
        self.bar.tick();
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
