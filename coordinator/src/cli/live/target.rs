//! The coordinator that a user means, and the way to it.

use std::io::ErrorKind;
use std::path::Path;

use rollout_engine::journal::RunLayout;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::id::RunId;
use rollout_protocol::limits;
use rollout_protocol::wire::command::{CommandReceipt, RunCommand, RunFile};
#[cfg(feature = "nats")]
use rollout_queue::nats::Nats;
use rollout_queue::traits::{QueueError, RunControl};

use super::ServerArgs;
use super::run_id::run_id;
use crate::cli::error::CliError;
#[cfg(feature = "nats")]
use crate::cli::nats::ServerAddress;
use crate::cli::search_dir;
use crate::launch::control_socket::ControlSocketClient;

/// Hint for a run without a coordinator on this host.
const SERVER_HINT: &str = "if it runs elsewhere, name the NATS server of the run with `--nats`";

/// Space that the rest of a message takes at most.
const MESSAGE_FRAME_BYTES: u64 = 1024;

/// Hint for a socket of another user.
const SOCKET_HINT: &str = "only the user of its coordinator may send commands on this host; others \
                           name the NATS server of the run with `--nats`";

/// The end of a command at its coordinator.
#[derive(Debug)]
pub(super) enum CommandAnswer {
    /// It was handled.
    Receipt(Box<CommandReceipt>),
    /// The run has no coordinator, or it ended before it answered.
    NoCoordinator,
    /// The coordinator did not answer in time. It may still handle the command.
    Late,
}

/// The error of a command that the coordinator did not answer in time.
pub(super) fn late() -> CliError {
    CliError::new(
        ExitCode::OutOfReach,
        "cannot tell whether the command took effect: the coordinator did not answer in time",
    )
    .hint("it may be busy, and the command may still take effect; `rollout status` shows the run")
}

/// Whether the socket belongs to another user.
fn is_forbidden(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::PermissionDenied
}

#[cfg(feature = "nats")]
fn has_server(server: &ServerArgs) -> bool {
    server.url.is_some()
}

#[cfg(not(feature = "nats"))]
fn has_server(_: &ServerArgs) -> bool {
    false
}

/// A run, and a way to its coordinator, which may have ended.
#[derive(Debug)]
pub(in crate::cli) struct LiveRun {
    run: RunId,
    route: Route,
}

/// A way to a coordinator.
#[derive(Debug)]
enum Route {
    Socket(ControlSocketClient),
    #[cfg(feature = "nats")]
    Server(Box<Nats>),
}

impl LiveRun {
    /// Finds the way to the coordinator of a run: `nats://host:4222#RUN`; a run directory whose
    /// coordinator listens on this host; otherwise the server of `--nats`. `None` without any.
    /// A directory of a search is refused for this `action`, an infinitive with a preposition.
    ///
    /// # Errors
    /// The run or its coordinator cannot be found, or not be reached.
    pub(in crate::cli) async fn find(
        text: &str,
        server: &ServerArgs,
        action: &str,
        search_hint: &str,
    ) -> Result<Option<Self>, CliError> {
        #[cfg(feature = "nats")]
        if let Some(address) = ServerAddress::parse(Path::new(text)) {
            let nats = Box::new(address.connect().await?);
            let run = address.find(&nats).await?.run;
            return Ok(Some(Self { run, route: Route::Server(nats) }));
        }
        let directory = Path::new(text);
        if directory.is_dir() {
            search_dir::refuse(action, directory, search_hint)?;
            let found = ControlSocketClient::find(&RunLayout::new(directory)).await;
            match found {
                Ok(Some(client)) => {
                    return Ok(Some(Self { run: client.run(), route: Route::Socket(client) }));
                }
                Ok(None) => {}
                // Another user may send commands over the server.
                Err(error) if is_forbidden(&error) && has_server(server) => {}
                Err(error) => {
                    return Err(CliError::failure(
                        "cannot use the control socket of the run",
                        &error,
                    )
                    .hint(SOCKET_HINT));
                }
            }
        }
        Self::on_server(text, server).await
    }

    /// The same, for a command that needs a coordinator.
    ///
    /// # Errors
    /// As [`find`](Self::find), or there is no way to the coordinator.
    pub(in crate::cli) async fn require(
        text: &str,
        server: &ServerArgs,
        action: &str,
        search_hint: &str,
    ) -> Result<Self, CliError> {
        match Self::find(text, server, action, search_hint).await? {
            Some(live) => Ok(live),
            None => {
                // A text that is no run is refused for that.
                run_id(text).await?;
                let message =
                    format!("cannot {action} the run: its coordinator does not run on this host");
                Err(CliError::refused(message).hint(SERVER_HINT))
            }
        }
    }

    #[cfg(feature = "nats")]
    async fn on_server(text: &str, server: &ServerArgs) -> Result<Option<Self>, CliError> {
        let Some(url) = &server.url else { return Ok(None) };
        // A text that is no run is refused for that, also if the server is away.
        let run = run_id(text).await?;
        let nats = Box::new(server.access.connect(url).await?);
        Ok(Some(Self { run, route: Route::Server(nats) }))
    }

    #[cfg(not(feature = "nats"))]
    #[expect(clippy::unused_async, reason = "as with servers")]
    async fn on_server(_: &str, _: &ServerArgs) -> Result<Option<Self>, CliError> {
        Ok(None)
    }

    /// The run.
    pub(in crate::cli) fn run(&self) -> RunId {
        self.run
    }

    /// The server, if the commands go over one.
    #[cfg(feature = "nats")]
    pub(in crate::cli) fn server(&self) -> Option<&Nats> {
        match &self.route {
            Route::Server(nats) => Some(nats),
            Route::Socket(_) => None,
        }
    }

    /// The receiver of commands.
    pub(in crate::cli) fn control(&self) -> &dyn RunControl {
        match &self.route {
            Route::Socket(client) => client,
            #[cfg(feature = "nats")]
            Route::Server(nats) => &**nats,
        }
    }

    /// Refuses options of a new session if the run has a coordinator, whose session keeps its own.
    ///
    /// # Errors
    /// The refusal, or the coordinator cannot be asked.
    pub(in crate::cli) async fn refuse_options(
        &self,
        verb: &str,
        options: &[String],
    ) -> Result<(), CliError> {
        let Some(first) = options.first() else { return Ok(()) };
        // It changes nothing.
        let question = RunCommand::ReadFile { file: RunFile::Owner, offset: 0, max_bytes: None };
        if self.command(question).await?.is_none() {
            return Ok(());
        }
        // The value may be a secret.
        let option = first.split_once('=').map_or(first.as_str(), |(option, _)| option);
        Err(CliError::usage(format!(
            "cannot {verb} with `-- {option}`: the run's coordinator runs, and its session keeps its \
             settings"
        ))
        .hint(&format!(
            "leave out `--` and what follows it, or stop the run first: `rollout {verb}` then begins \
             a session with these options"
        )))
    }

    /// Sends a command; `None` if the run has no coordinator.
    ///
    /// # Errors
    /// The command could not be sent, or the coordinator did not answer in time.
    pub(in crate::cli) async fn command(
        &self,
        command: RunCommand,
    ) -> Result<Option<CommandReceipt>, CliError> {
        match self.send(command).await? {
            CommandAnswer::Receipt(receipt) => Ok(Some(*receipt)),
            CommandAnswer::NoCoordinator => Ok(None),
            CommandAnswer::Late => Err(late()),
        }
    }

    /// The same, for a command that can be sent again.
    ///
    /// # Errors
    /// The command could not be sent.
    pub(super) async fn send(&self, command: RunCommand) -> Result<CommandAnswer, CliError> {
        let size = serde_json::to_vec(&command).map_or(0, |text| text.len() as u64);
        if size > limits::COORDINATOR_REQUEST_BYTES - MESSAGE_FRAME_BYTES {
            return Err(CliError::usage("cannot send the command: it names too many trials")
                .hint("use several commands"));
        }
        match self.control().command(self.run, command).await {
            Ok(receipt) => Ok(CommandAnswer::Receipt(Box::new(receipt))),
            Err(QueueError::NoAnswer { .. }) => Ok(CommandAnswer::NoCoordinator),
            Err(QueueError::NoAnswerInTime { .. }) => Ok(CommandAnswer::Late),
            Err(error) => Err(self.error(error)),
        }
    }

    /// The error of a request that could not be sent.
    #[cfg_attr(
        not(feature = "nats"),
        expect(clippy::needless_pass_by_value, reason = "errors of servers are converted")
    )]
    pub(in crate::cli) fn error(&self, error: QueueError) -> CliError {
        match &self.route {
            Route::Socket(_) if matches!(error, QueueError::NoAnswerInTime { .. }) => late(),
            Route::Socket(_) => CliError::failure("cannot send the command", &error),
            #[cfg(feature = "nats")]
            Route::Server(_) => error.into(),
        }
    }
}
