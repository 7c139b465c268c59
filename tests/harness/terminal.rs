//! A pseudo-terminal that runs a program and can be closed.

use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::wait;

/// A program on a terminal. Dropping it closes the terminal and kills the program.
#[derive(Debug)]
pub struct Terminal {
    screen: Option<OwnedFd>,
    program: Child,
}

impl Terminal {
    /// Starts a program with a terminal of 100 columns as controlling terminal and as all three
    /// standard streams.
    ///
    /// # Panics
    /// When there is no terminal, or the program `setsid` is missing.
    pub fn start(of_program: &Command) -> Self {
        Self::with_columns(of_program, 100)
    }

    /// The same on a terminal of this width.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    pub fn with_columns(of_program: &Command, columns: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let screen = openpt(flags).expect("a terminal");
        grantpt(&screen).and_then(|()| unlockpt(&screen)).expect("a terminal");
        let size = Winsize { ws_row: 30, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&screen, size).expect("a terminal has a size");
        // The program's writes must not block on the test.
        fcntl_setfl(&screen, OFlags::NONBLOCK).expect("settable");
        let line = ioctl_tiocgptpeer(&screen, flags).expect("the other end");
        let copy = || line.try_clone().expect("a descriptor");
        // If the test leads a process group, `setsid` forks and waits for the child.
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait", "env", "--default-signal=HUP"]);
        command.arg(of_program.get_program()).args(of_program.get_args());
        command.env_clear().env("TERM", "xterm-256color");
        command.envs(of_program.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(of_program.get_current_dir().expect("tests name the directory"));
        command.stdin(copy()).stdout(copy()).stderr(line);
        let program = command.spawn().expect("setsid runs");
        Self { screen: Some(screen), program }
    }

    /// Output since the last call.
    pub fn shown(&self) -> Vec<u8> {
        let mut shown = Vec::new();
        let mut part = [0; 4096];
        while let Some(screen) = &self.screen
            && let Ok(length @ 1..) = rustix::io::read(screen, &mut part)
        {
            shown.extend_from_slice(&part[..length]);
        }
        shown
    }

    /// Types a text. Control characters act as the terminal's keys: `\u{3}` is Ctrl-C.
    ///
    /// # Panics
    /// When the terminal is closed, or takes no more text.
    pub fn type_text(&self, text: &str) {
        let screen = self.screen.as_ref().expect("the terminal is open");
        let written = rustix::io::write(screen, text.as_bytes()).expect("the terminal takes it");
        assert_eq!(written, text.len(), "the terminal takes all of it");
    }

    /// Closes the terminal.
    pub fn close(&mut self) {
        self.screen = None;
    }

    /// Exit code of the program if it has ended; -1 when a signal ended it.
    ///
    /// # Panics
    /// When the program cannot be waited for.
    pub fn ended(&mut self) -> Option<i32> {
        let ended = self.program.try_wait().expect("a child can be waited for");
        ended.map(|status| status.code().unwrap_or(-1))
    }

    /// Exit code of the program; `None` when a signal ended it.
    ///
    /// # Panics
    /// When it does not end within `deadline`.
    #[track_caller]
    pub fn wait(&mut self, deadline: Duration) -> Option<i32> {
        let mut ended = None;
        wait::until(deadline, "the program in the terminal to end", || {
            let _shown = self.shown();
            ended = self.program.try_wait().expect("a child can be waited for");
            ended.is_some()
        });
        ended.and_then(|status| status.code())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The program may have ended.
        let _killed = self.program.kill();
        let _ended = self.program.wait();
    }
}
