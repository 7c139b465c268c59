//! `rollout gateway`.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use rollout_base::secrets::Redactor;
use rollout_base::supervise;
use rollout_environment::ListenerRoute;
use rollout_gateway::proxy::Gateway;
use rollout_gateway::{ModelGateway as _, TrajectoryAgent, TryRequest, Upstream};
use rollout_protocol::exit::ExitCode;
use rollout_protocol::id::RunId;

use super::error::CliError;
use super::output::Printer;
use crate::config::{Diagnostics, GatewayFile, read_gateway};
use crate::launch::signals;

/// Run the model gateway alone
///
/// Agents of any kind call model servers through it, and every call is recorded in `calls.jsonl`. It
/// prints variables that clients need as lines of a shell, and ends with SIGINT or SIGTERM.
#[derive(Debug, Args)]
pub(super) struct GatewayArgs {
    /// File with the keys `gateway`, `prices` and `budget` of a job file; `budget.try` limits all calls
    /// together
    file: PathBuf,

    /// Address to listen on; port 0 is any free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// Directory for the records, which has none yet
    #[arg(long, value_name = "DIR")]
    records: PathBuf,
}

/// Runs the command.
pub(super) async fn run(args: GatewayArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let GatewayArgs { file, listen, records } = args;
    let read = supervise::blocking(move || {
        let mut problems = Diagnostics::default();
        let is_set = |name: &str| std::env::var(name).is_ok();
        let found = read_gateway(&file, &is_set, &mut problems);
        problems.finish(found)
    });
    let (found, warnings) = read.await?;
    for warning in &warnings {
        printer.warning(&warning.to_string());
    }
    let file = found.expect("a file without errors was read");
    if std::fs::exists(records.join("calls.jsonl")).unwrap_or(false) {
        let message = format!("{} has records of calls already", records.display());
        return Err(CliError::refused(message).hint("name another directory as `--records`"));
    }
    if !listen.ip().is_loopback() {
        printer.warning("keys and calls of agents cross the network without encryption");
    }
    let (mut stops, _listening) =
        signals::listen().map_err(|error| CliError::failure("cannot handle signals", &error))?;
    let failed = |error| CliError::config("cannot run the gateway", &error);
    let gateway = Gateway::new();
    let opened = gateway.open(request(file, records)).await.map_err(failed)?;
    let route = ListenerRoute::HostAddress(listen);
    let variables = opened.serve(route).await.map_err(failed)?;
    let mut text = String::new();
    for (name, value) in variables {
        let _infallible = writeln!(text, "export {name}={value}");
    }
    printer.data(&text)?;
    stops.recv().await;
    printer.json(&opened.close(None).await.summary)?;
    Ok(ExitCode::Success)
}

/// The needs of all calls, with the keys of this process.
fn request(file: GatewayFile, directory: PathBuf) -> TryRequest {
    let GatewayFile { gateway, budget } = file;
    let key = |template: &rollout_protocol::template::Template| {
        let (name, _) = template.variables().into_iter().next()?;
        Some((std::env::var(&name).ok()?, name))
    };
    let keys: Vec<_> = gateway.keys().filter_map(key).collect();
    let redactor = Redactor::new(keys.iter().map(|(value, name)| (name.as_str(), value.as_str())));
    let upstreams = gateway.upstreams.into_iter().map(|spec| {
        let key = spec.key.as_ref().and_then(key).map(|(value, _)| value);
        Upstream { spec, key }
    });
    let run = RunId::from_bytes(rand::random());
    TryRequest {
        run,
        upstreams: upstreams.collect(),
        only: None,
        budget,
        is_leased: false,
        directory,
        redactor,
        agent: TrajectoryAgent {
            name: "gateway".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            model: None,
            session: run.to_string(),
        },
    }
}
