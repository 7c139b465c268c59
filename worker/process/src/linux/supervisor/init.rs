//! `init`: process 1 of a sandbox.
//!
//! Signals from inside cannot end it (the kernel shields process 1 of a namespace) and its
//! descriptors are closed on exec. It is not in the control groups of the commands, and they cannot
//! `ptrace` it (it keeps capabilities that they dropped). When it ends, the kernel kills every
//! process of the namespace.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, WaitOptions, getrlimit};

use super::{StepResultExt as _, capabilities, network, root};
use crate::linux::message::{
    self, PACKET_BYTES, SandboxSetup, SetupStepError, SupervisorEvent, SupervisorRequest,
};

/// Timeout of a kill. Killed processes that do not end are stuck in the kernel.
const KILL_TIMEOUT: Duration = Duration::from_secs(8);

/// Pause between two kills when no signal reports an end.
const KILL_RETRY_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Serves requests until the worker's end of the control socket, which is standard input, closes.
pub(super) fn main(helper: &[OsString]) -> Result<ExitCode, SetupStepError> {
    let kill = Some(rustix::process::Signal::KILL);
    rustix::process::set_parent_process_death_signal(kill).step("follow the parent")?;
    // No process of the sandbox has the worker's terminal.
    rustix::process::setsid().step("leave the session of the worker")?;
    rustix::thread::set_no_new_privs(true).step("forbid new privileges")?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let control = rustix::io::fcntl_dupfd_cloexec(std::io::stdin().as_fd(), 3);
    let control = control.step("keep the control socket")?;
    let null = File::open("/dev/null").step("open /dev/null")?;
    let mut ends = SigSet::empty();
    ends.add(Signal::SIGCHLD);
    ends.thread_block().step("block signals")?;
    let signals = SignalFd::with_flags(&ends, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC);
    let signals = signals.step("receive signals")?;

    let Some((SupervisorRequest::Setup(setup), _)) = receive(&control)? else {
        return Ok(ExitCode::FAILURE);
    };
    prepare(&setup)?;
    rustix::stdio::dup2_stdin(null.as_fd()).step("replace standard input")?;
    let (null, commands, limits) = (null.into(), BTreeMap::new(), own_limits());
    let mut init = InitProcess { control, null, signals, helper, commands, limits };
    init.send_event(&SupervisorEvent::Ready);
    init.serve()?;
    Ok(ExitCode::SUCCESS)
}

fn prepare(setup: &SandboxSetup) -> Result<(), SetupStepError> {
    root::enter(setup)?;
    if setup.own_network {
        network::start_loopback().step("start the loopback interface")?;
    }
    capabilities::limit_children().step("limit the capabilities of commands")
}

/// The next request with its descriptors; `None` when the worker has closed the socket.
fn receive(control: &OwnedFd) -> Result<Option<(SupervisorRequest, Vec<OwnedFd>)>, SetupStepError> {
    let mut buffer = vec![0; PACKET_BYTES];
    let (length, fds) = rustix::io::retry_on_intr(|| message::receive_with(control, &mut buffer))
        .step("read the control socket")?;
    if length == 0 {
        return Ok(None);
    }
    let request = message::decode(&buffer[..length]).step("decode a request")?;
    Ok(Some((request, fds)))
}

/// The limits of this process on what the start of a command needs.
fn own_limits() -> [Rlimit; 2] {
    [Resource::Nofile, Resource::Nproc].map(getrlimit)
}

struct InitProcess<'a> {
    control: OwnedFd,
    null: OwnedFd,
    signals: SignalFd,
    helper: &'a [OsString],
    /// Request numbers by process ID.
    commands: BTreeMap<i32, u64>,
    /// Limits of this process at its start.
    limits: [Rlimit; 2],
}

impl InitProcess<'_> {
    fn serve(&mut self) -> Result<(), SetupStepError> {
        loop {
            let control = self.wait(None)?;
            self.reap();
            if !control {
                continue;
            }
            match receive(&self.control)? {
                // The kernel kills all processes when this returns.
                None => return Ok(()),
                Some((SupervisorRequest::Spawn { id }, fds)) => self.spawn(id, fds),
                Some((SupervisorRequest::KillAll { id }, _)) => {
                    let gone = self.kill_all()?;
                    self.send_event(&SupervisorEvent::Killed { id, gone });
                }
                Some((SupervisorRequest::Listen { id }, _)) => self.listen(id),
                Some((SupervisorRequest::Setup(_), _)) => {}
            }
        }
    }

    /// Waits for a request or the end of a process; returns whether it is a request.
    fn wait(&self, timeout: Option<&Timespec>) -> Result<bool, SetupStepError> {
        let mut fds = [
            PollFd::new(&self.control, PollFlags::IN),
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
        ];
        match rustix::event::poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).step("wait for requests"),
        }
        let (control, signal) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
        if signal {
            // Signals are merged, so they do not identify the process: `reap` asks the kernel.
            while let Ok(Some(_)) = self.signals.read_signal() {}
        }
        Ok(control)
    }

    /// Starts a command, whose socket is the first descriptor. The command reads its request from
    /// that socket.
    fn spawn(&mut self, id: u64, fds: Vec<OwnedFd>) {
        let Some(socket) = fds.into_iter().next() else {
            // The kernel drops a descriptor where this process may open no more files.
            let reason = "its socket did not arrive: too many open files".to_owned();
            let errno = self.shortage(Errno::MFILE);
            return self.send_event(&SupervisorEvent::NotStarted { id, reason, errno });
        };
        let started = self.null.try_clone().and_then(|null| {
            let mut command = Command::new("/proc/self/exe");
            command.arg0(&self.helper[0]).args(&self.helper[1..]).arg("command").env_clear();
            command.stdin(socket).stdout(null).stderr(Stdio::inherit()).spawn()
        });
        match started {
            Ok(child) => {
                let pid = i32::try_from(child.id()).expect("process ids are positive");
                self.commands.insert(pid, id);
            }
            Err(error) => {
                let errno = Errno::from_io_error(&error).map_or(0, |errno| self.shortage(errno));
                self.send_event(&SupervisorEvent::NotStarted {
                    id,
                    reason: error.to_string(),
                    errno,
                });
            }
        }
    }

    /// The number of an error, by which the worker may find a shortage of the host. 0 if the limits of this
    /// process have changed: programs of the sandbox may lower them, as they may have the same user.
    fn shortage(&self, errno: Errno) -> i32 {
        if own_limits() == self.limits { errno.raw_os_error() } else { 0 }
    }

    /// Reaps ended processes, commands and orphans.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            let Some(id) = self.commands.remove(&pid.as_raw_nonzero().get()) else { continue };
            let signal = status.terminating_signal().map(|signal| 128 + signal);
            let code = status.exit_status().or(signal).unwrap_or(-1);
            self.send_event(&SupervisorEvent::Exited { id, code });
        }
    }

    /// Kills and reaps every process of the namespace; returns whether none is left. The kernel
    /// signals all of them in one step except this one, and no fork escapes.
    fn kill_all(&mut self) -> Result<bool, SetupStepError> {
        let everybody = nix::unistd::Pid::from_raw(-1);
        let until = Instant::now() + KILL_TIMEOUT;
        while Instant::now() < until {
            if nix::sys::signal::kill(everybody, Signal::SIGKILL) == Err(nix::errno::Errno::ESRCH) {
                return Ok(true);
            }
            self.reap();
            if nix::sys::signal::kill(everybody, None) == Err(nix::errno::Errno::ESRCH) {
                return Ok(true);
            }
            self.wait_for_end()?;
            self.reap();
        }
        Ok(false)
    }

    /// Listens on the loopback interface of the sandbox's network and hands the listener over: its
    /// connections are accepted outside.
    fn listen(&self, id: u64) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let number = |error| match Errno::from_io_error(error).map(|errno| self.shortage(errno)) {
            None | Some(0) => -1,
            Some(errno) => errno,
        };
        let errno = listener.as_ref().err().map_or(0, number);
        let packet = message::encode(&SupervisorEvent::Listening { id, errno });
        let fds: Vec<_> = listener.iter().map(AsFd::as_fd).collect();
        let _sent = rustix::io::retry_on_intr(|| message::send_with(&self.control, &packet, &fds));
    }

    /// Waits a moment for the end of a process, regardless of the control socket.
    fn wait_for_end(&self) -> Result<(), SetupStepError> {
        let mut fds = [PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN)];
        match rustix::event::poll(&mut fds, Some(&KILL_RETRY_INTERVAL)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).step("wait for the end of processes"),
        }
        while let Ok(Some(_)) = self.signals.read_signal() {}
        Ok(())
    }

    /// An error is ignored: the next read shows that the worker has ended.
    fn send_event(&self, event: &SupervisorEvent) {
        let packet = message::encode(event);
        let _sent = rustix::io::retry_on_intr(|| message::send_with(&self.control, &packet, &[]));
    }
}
