//! Shared access to the terminal: prints lines above the live region and redraws the region below
//! them.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use console::Term;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};

/// Maximum number of redraws per second.
const REDRAW_HZ: u8 = 10;

/// Columns at the end of the live region that stay free. A terminal shows `^C` where the cursor is,
/// which is there: without room the text would begin another line, and the region would be replaced
/// a line too low.
const ECHO_COLUMNS: u16 = 4;

/// Columns of a live region.
pub(super) fn region_width(columns: u16) -> u16 {
    columns.saturating_sub(ECHO_COLUMNS).max(1)
}

/// Output for progress, lines and log messages. Clones share the same output.
#[derive(Clone)]
pub struct Screen {
    /// `None` if a live region cannot be shown.
    live: Option<MultiProgress>,
    out: Arc<Mutex<Box<dyn Write + Send>>>,
}

impl Screen {
    /// A screen on standard error, which must be a terminal; `out` must write to it, too.
    pub fn terminal(out: Box<dyn Write + Send>) -> Self {
        let terminal = Box::new(ClosableTerminal(Term::buffered_stderr()));
        let target = ProgressDrawTarget::term_like_with_hz(terminal, REDRAW_HZ);
        let live = MultiProgress::with_draw_target(target);
        Self { live: Some(live), out: Arc::new(Mutex::new(out)) }
    }

    /// A screen without a live region.
    pub fn lines(out: Box<dyn Write + Send>) -> Self {
        Self { live: None, out: Arc::new(Mutex::new(out)) }
    }

    /// Writes whole lines, line ends included. Ignores errors: there is no place to report them.
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

    /// A new live region; `None` if it cannot be shown.
    pub(super) fn region(&self) -> Option<LiveRegion> {
        let live = self.live.as_ref()?;
        let style = ProgressStyle::with_template("{msg}").expect("the template is valid");
        let bar = live.add(ProgressBar::new_spinner().with_style(style));
        Some(LiveRegion { bar })
    }
}

impl fmt::Debug for Screen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Screen").field("live", &self.live.is_some()).finish_non_exhaustive()
    }
}

/// A terminal that may be closed during a run. Failed writes are ignored: an error would make
/// `indicatif` panic, which would end the process and leave environments behind.
#[derive(Debug)]
struct ClosableTerminal(Term);

impl ClosableTerminal {
    #[expect(clippy::unnecessary_wraps, reason = "the trait's methods return results")]
    fn ignore_closed(drawn: io::Result<()>) -> io::Result<()> {
        let _closed = drawn;
        Ok(())
    }
}

impl TermLike for ClosableTerminal {
    fn width(&self) -> u16 {
        region_width(self.0.size().1)
    }

    fn height(&self) -> u16 {
        self.0.size().0
    }

    fn move_cursor_up(&self, lines: usize) -> io::Result<()> {
        Self::ignore_closed(self.0.move_cursor_up(lines))
    }

    fn move_cursor_down(&self, lines: usize) -> io::Result<()> {
        Self::ignore_closed(self.0.move_cursor_down(lines))
    }

    fn move_cursor_right(&self, columns: usize) -> io::Result<()> {
        Self::ignore_closed(self.0.move_cursor_right(columns))
    }

    fn move_cursor_left(&self, columns: usize) -> io::Result<()> {
        Self::ignore_closed(self.0.move_cursor_left(columns))
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        Self::ignore_closed(self.0.write_line(text))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        Self::ignore_closed(self.0.write_str(text))
    }

    fn clear_line(&self) -> io::Result<()> {
        Self::ignore_closed(self.0.clear_line())
    }

    fn flush(&self) -> io::Result<()> {
        Self::ignore_closed(self.0.flush())
    }
}

/// Lines at the bottom of the terminal that are replaced in place.
#[derive(Debug)]
pub(super) struct LiveRegion {
    bar: ProgressBar,
}

impl LiveRegion {
    /// Replaces the lines.
    pub(super) fn show(&self, lines: &[String]) {
        self.bar.set_message(lines.join("\n"));
        self.bar.tick();
    }
}

impl Drop for LiveRegion {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
