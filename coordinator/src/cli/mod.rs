//! The `rollout` program: parse, dispatch, exit. One file per command; only this module prints and
//! knows exit codes.

mod agents;
mod arena_limit;
mod args;
mod bench;
mod blob;
mod ca_bundle;
mod check;
mod client_file;
mod dry_run;
mod env_file;
mod error;
mod events;
mod executor;
mod export;
mod farm;
mod follow_logs;
#[cfg(feature = "gateway")]
mod gateway;
mod gc;
mod gc_datasets;
#[cfg(feature = "docker")]
mod gc_docker;
#[cfg(feature = "nats")]
mod gc_queue;
mod gc_store;
#[cfg(feature = "serve")]
mod gc_uploads;
mod harbor_options;
mod help;
mod hint_command;
mod hook_events;
mod invocation;
mod keys;
mod left_out;
mod list;
mod listen;
mod live;
mod logging;
mod logs;
#[cfg(feature = "nats")]
mod nats;
mod output;
mod overrides;
mod remote_api;
mod repair;
mod resume;
mod retry;
mod run;
mod run_place;
mod search_dir;
#[cfg(feature = "serve")]
mod serve;
#[cfg(feature = "serve")]
mod server_user;
mod shell;
mod show;
mod status;
mod store_url;
mod task_init;
#[cfg(test)]
mod tests;
mod traces;
mod tree;
#[cfg(feature = "serve")]
mod up;
mod value_parsers;
#[cfg(feature = "nats")]
mod worker;
#[cfg(feature = "nats")]
mod worker_value_parsers;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode as ProcessExit;
use std::time::Duration;

use rollout_protocol::exit::ExitCode;

use args::{Cli, Command};
use error::CliError;
use output::Printer;

use crate::config::without_logins_of;
use crate::launch::host::RunnerDecorator;
#[cfg(feature = "process")]
use crate::launch::host::SANDBOX_COMMAND;

/// Runs the program with the arguments of the process.
pub fn main() -> ProcessExit {
    main_with(|runner| runner)
}

/// Longest wait at the end for blocking work that was left, such as a removal of files.
const END_LIMIT: Duration = Duration::from_secs(30);

/// How long a thread for blocking work waits for more: longer than the pauses between the disk checks of a
/// process that runs nothing, each of which would start a thread.
const THREAD_KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Runs the program with a decorator around a worker's runner: tests need workers that die on
/// request.
pub fn main_with(decorate: RunnerDecorator) -> ProcessExit {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // First: this process becomes part of a sandbox and must stay small and single-threaded.
    #[cfg(feature = "process")]
    if arguments.get(1).is_some_and(|first| first == SANDBOX_COMMAND) {
        return rollout_process::supervisor::main(&arguments[2..]);
    }
    let cli = match help::parse(args::with_run(arguments)) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    if cli.runs_for_long() {
        arena_limit::restart();
    }
    rollout_base::open_files::raise_limit();
    let printer = Printer::from_environment(cli.is_quiet());
    let ran = runtime().and_then(|runtime| {
        let ran = runtime.block_on(dispatch(cli, decorate, &printer));
        // Work on a disk that gives no answer would keep the process for ever.
        runtime.shutdown_timeout(END_LIMIT);
        ran
    });
    // Only now is nothing logged any more.
    #[cfg(feature = "nats")]
    logging::flush();
    ended(ran, &printer)
}

fn ended(outcome: Result<ExitCode, CliError>, printer: &Printer) -> ProcessExit {
    let code = outcome.unwrap_or_else(|error| {
        let error = error.for_this_command(&[]).without_logins_of(&own_words());
        printer.error(&error);
        error.code
    });
    ProcessExit::from(code.code())
}

#[cfg_attr(not(feature = "nats"), expect(unused_variables, reason = "workers need a server"))]
async fn dispatch(
    cli: Cli,
    decorate: RunnerDecorator,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    match cli.command {
        Command::Completions(args) => shell::completions(&args, printer),
        Command::Man(args) => shell::man(args, printer).await,
        Command::Run(args) => Box::pin(run::run(*args, printer)).await,
        Command::Resume(args) => Box::pin(resume::resume(*args, printer)).await,
        Command::Retry(args) => Box::pin(retry::retry(*args, printer)).await,
        Command::Status(args) => Box::pin(status::run(&args, printer)).await,
        Command::List(args) => Box::pin(list::run(&args, printer)).await,
        Command::Show(args) => Box::pin(show::run(&args, printer)).await,
        Command::Logs(args) => Box::pin(logs::run(&args, printer)).await,
        Command::Events(args) => Box::pin(events::run(&args, printer)).await,
        Command::Gc(args) => Box::pin(gc::run(&args, printer)).await,
        #[cfg(feature = "nats")]
        Command::Worker(args) => Box::pin(worker::run(*args, decorate, printer)).await,
        #[cfg(feature = "serve")]
        Command::Serve(args) => Box::pin(serve::run(*args, printer)).await,
        #[cfg(feature = "serve")]
        Command::Up(args) => Box::pin(up::run(args, printer)).await,
        Command::Cancel(args) => Box::pin(live::cancel(&args, printer)).await,
        Command::Pause(args) => Box::pin(live::pause(&args, printer)).await,
        Command::Control(args) => Box::pin(live::control(&args, printer)).await,
        #[cfg(feature = "nats")]
        Command::Workers(args) => Box::pin(nats::workers(&args, printer)).await,
        #[cfg(feature = "nats")]
        Command::Setup(args) => Box::pin(nats::setup(&args, printer)).await,
        #[cfg(feature = "nats")]
        Command::Doctor(args) => Box::pin(nats::doctor(&args, printer)).await,
        Command::Check(args) => check::run(args, printer).await,
        Command::Task(command) => task_init::run(command, printer).await,
        Command::Agents(what) => what.run(printer).await,
        #[cfg(feature = "gateway")]
        Command::Gateway(args) => Box::pin(gateway::run(args, printer)).await,
        Command::Keys(args) => keys::run(&args, printer),
        Command::Tree(what) => what.run(printer).await,
        Command::Farm(what) => Box::pin(what.run(printer)).await,
        Command::Repair(args) => Box::pin(repair::run(args, printer)).await,
        Command::Export(args) => Box::pin(export::run(args, printer)).await,
        Command::Blob(what) => Box::pin(what.run(printer)).await,
        Command::Bench(what) => Box::pin(bench::run(&what, printer)).await,
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, CliError> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_keep_alive(THREAD_KEEP_ALIVE)
        .build()
        .map_err(|error| CliError::failure("cannot start the runtime", &error))
}

/// The words of the command line.
fn own_words() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Prints help or version (success), or a usage error.
fn usage(error: &clap::Error) -> ProcessExit {
    let plain = error.render().to_string();
    let shown = without_logins_of(&own_words(), &plain);
    // A failure has nowhere to be reported.
    let _unwritten =
        if shown == plain { error.print() } else { std::io::stderr().write_all(shown.as_bytes()) };
    let code = if error.use_stderr() { ExitCode::Usage } else { ExitCode::Success };
    ProcessExit::from(code.code())
}
