//! `command`: the step between a request and the program it asks for.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use rustix::process::{Resource, Rlimit};

use crate::linux::message::{self, COMMAND_BYTES, CommandRequest, PACKET_BYTES, SetupStepError};

/// Reads a request from standard input, a socket, and becomes the requested command. On success the
/// socket closes without data; otherwise it carries the reason.
pub(super) fn main() -> Result<ExitCode, SetupStepError> {
    let reason = match socket() {
        Ok(mut socket) => {
            let Err(reason) = become_command(&mut socket);
            // The worker may have ended; then the reason is not needed.
            let _told = socket.write_all(reason.to_string().as_bytes());
            reason
        }
        Err(reason) => reason,
    };
    let not_found = reason.kind() == io::ErrorKind::NotFound;
    Ok(ExitCode::from(if not_found { 127 } else { 126 }))
}

/// The socket under a number that the command does not inherit.
fn socket() -> io::Result<UnixStream> {
    let socket = rustix::io::fcntl_dupfd_cloexec(io::stdin().as_fd(), 3)?;
    // Standard output is the supervisor's /dev/null until the command's own replaces it.
    rustix::stdio::dup2_stdin(io::stdout().as_fd())?;
    Ok(UnixStream::from(socket))
}

fn become_command(socket: &mut UnixStream) -> io::Result<std::convert::Infallible> {
    let (request, fds) = receive(socket)?;
    let mut fds = fds.into_iter();
    let (Some(stdout), Some(stderr)) = (fds.next(), fds.next()) else {
        return Err(io::Error::other("the request has no streams"));
    };
    for group in fds {
        // Zero means the writer itself.
        File::from(group).write_all(b"0")?;
    }
    limit(Resource::Core, Some(0))?;
    limit(Resource::Data, request.data_bytes)?;
    limit(Resource::Nproc, request.processes)?;
    begin_with(Resource::Nofile, request.open_files)?;
    rustix::process::setsid()?;
    rustix::process::chdir(&request.workdir).map_err(|error| {
        let error = io::Error::from(error);
        io::Error::new(error.kind(), format!("working directory {}: {error}", request.workdir))
    })?;
    rustix::stdio::dup2_stdout(stdout.as_fd())?;
    rustix::stdio::dup2_stderr(stderr.as_fd())?;
    drop((stdout, stderr));
    let (program, arguments) = request.argv.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let error = Command::new(program).args(arguments).env_clear().envs(&request.env).exec();
    Err(io::Error::new(error.kind(), format!("{program}: {error}")))
}

fn receive(socket: &mut UnixStream) -> io::Result<(CommandRequest, Vec<OwnedFd>)> {
    let mut bytes = vec![0; PACKET_BYTES];
    let (length, fds) = message::receive_with(&*socket, &mut bytes)?;
    bytes.truncate(length);
    socket.take(COMMAND_BYTES).read_to_end(&mut bytes)?;
    Ok((message::decode(&bytes)?, fds))
}

/// Sets a limit that the command may raise again.
fn begin_with(resource: Resource, most: Option<u64>) -> io::Result<()> {
    let Some(most) = most else { return Ok(()) };
    let maximum = rustix::process::getrlimit(resource).maximum;
    let current = Some(maximum.map_or(most, |maximum| maximum.min(most)));
    Ok(rustix::process::setrlimit(resource, Rlimit { current, maximum })?)
}

fn limit(resource: Resource, most: Option<u64>) -> io::Result<()> {
    let Some(most) = most else { return Ok(()) };
    let now = rustix::process::getrlimit(resource);
    let most = Some(now.maximum.map_or(most, |maximum| maximum.min(most)));
    Ok(rustix::process::setrlimit(resource, Rlimit { current: most, maximum: most })?)
}
