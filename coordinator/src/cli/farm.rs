//! `rollout farm`: the farms of a server of `rollout serve` or `rollout up`.

use clap::{Args, Subcommand};
use rollout_protocol::Timestamp;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::farm::{FarmStatus, FarmTotals};
use serde::Deserialize as _;
use serde_json::Value;

use super::error::CliError;
use super::output::Printer;
use super::remote_api::{self, FarmUrl, ServerUrl, is_api_url};
use crate::config::{env_vars, local_time};
use crate::events::sinks::terminal::table;
use crate::results::escape;

/// The server of `rollout up` on this host.
const LOCAL_SERVER: &str = "http://127.0.0.1:4280";

/// Subcommands of `rollout farm`.
#[derive(Debug, Subcommand)]
pub(super) enum FarmCommand {
    /// List the farms of a server: state, groups, samples
    List(FarmListArgs),
    /// Show a farm: its groups, samples and policy, and why it failed
    Show(FarmShowArgs),
}

/// Arguments of `rollout farm list`.
#[derive(Debug, Args)]
pub(super) struct FarmListArgs {
    /// Server: `http://host:4280`
    #[arg(env = env_vars::API_URL.name, default_value = LOCAL_SERVER)]
    server: String,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Arguments of `rollout farm show`.
#[derive(Debug, Args)]
pub(super) struct FarmShowArgs {
    /// Farm: `http://host:4280/v1/farms/ID`, or its id on the server of `--server`
    farm: String,

    /// Server of a farm that is named by its id
    #[arg(long, value_name = "URL", env = env_vars::API_URL.name, default_value = LOCAL_SERVER)]
    server: String,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl FarmCommand {
    /// Runs the command.
    pub(super) async fn run(self, printer: &Printer) -> Result<ExitCode, CliError> {
        match self {
            Self::List(args) => list(&args, printer).await,
            Self::Show(args) => show(&args, printer).await,
        }
    }
}

async fn list(args: &FarmListArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let server = server(&args.server)?;
    let farms = server.farms().await?;
    match args.json {
        true => printer.json(&farms)?,
        false => printer.data(&render_list(&farms, printer.out.width)?)?,
    }
    Ok(ExitCode::Success)
}

async fn show(args: &FarmShowArgs, printer: &Printer) -> Result<ExitCode, CliError> {
    let address = match is_api_url(&args.farm) {
        true => args.farm.clone(),
        false => server(&args.server)?.address("farms", &args.farm).to_string_lossy().into_owned(),
    };
    let farm = FarmUrl::parse(&address)?.document().await?;
    match args.json {
        true => printer.json(&farm)?,
        false => {
            printer.warn_of_unknown_zone();
            printer.data(&render(&farm, printer.out.width)?)?;
        }
    }
    Ok(ExitCode::Success)
}

fn server(url: &str) -> Result<ServerUrl, CliError> {
    ServerUrl::parse(url)?.ok_or_else(|| {
        CliError::usage(format!("cannot use `{url}`: it is not the URL of a server"))
            .hint("the URL of a server is `http://host:4280`")
    })
}

/// The status of a farm; `None` before it is open.
fn status(farm: &Value) -> Result<Option<FarmStatus>, CliError> {
    match &farm["status"] {
        Value::Null => Ok(None),
        status => remote_api::read(status.clone()).map(Some),
    }
}

fn text(document: &Value, key: &str) -> String {
    document[key].as_str().unwrap_or("-").to_owned()
}

/// Samples of a farm that have ended, in any way.
fn ended(totals: &FarmTotals) -> u64 {
    totals.completed + totals.truncated + totals.no_result + totals.cancelled
}

fn render_list(farms: &[Value], width: Option<usize>) -> Result<String, CliError> {
    if farms.is_empty() {
        return Ok("no farms\n".to_owned());
    }
    let header =
        ["farm", "name", "user", "state", "policy", "open groups", "samples", "ended", "usable"];
    let mut rows = Vec::with_capacity(farms.len());
    for farm in farms {
        let state = farm["state"].as_str().unwrap_or("unreadable").to_owned();
        let mut row = vec![text(farm, "id"), text(farm, "name"), text(farm, "user"), state];
        row.extend(match status(farm)? {
            None => vec!["-".to_owned(); 5],
            Some(FarmStatus { policy_version, open_groups, totals, .. }) => {
                let FarmTotals { samples, usable, .. } = totals;
                let counts = [policy_version, open_groups, samples, ended(&totals), usable];
                counts.map(|count| count.to_string()).to_vec()
            }
        });
        rows.push(row.iter().map(|cell| escape::line(cell).into_owned()).collect());
    }
    let mut text = format!("{}\n", table::aligned(&header, rows, 4, width));
    for farm in farms {
        if let (Some(id), Some(reason)) = (farm["id"].as_str(), farm["reason"].as_str()) {
            text.push_str(&format!("{}: {}\n", escape::line(id), escape::line(reason)));
        }
    }
    Ok(text)
}

fn render(farm: &Value, width: Option<usize>) -> Result<String, CliError> {
    let is_final = farm["is_final"].as_bool().unwrap_or_default();
    let state = match is_final {
        true => format!("{}, ended", text(farm, "state")),
        false => text(farm, "state"),
    };
    let mut facts = vec![
        ("farm", text(farm, "id")),
        ("name", text(farm, "name")),
        ("user", text(farm, "user")),
        ("state", state),
    ];
    if let Some(status) = status(farm)? {
        facts.extend(status_facts(&status));
    }
    if let Some(message) = farm["failure"]["message"].as_str() {
        let continues = match farm["failure"]["is_temporary"] == true {
            true => "; the farm continues when the disk of the server takes writes again",
            false => "",
        };
        facts.push(("failure", format!("{message}{continues}")));
    }
    for (name, key) in [("opened", "created_at"), ("ended", "ended_at")] {
        let at = Timestamp::deserialize(&farm[key]).ok();
        facts.extend(at.map(|at| (name, local_time::shown(at))));
    }
    let rows = facts.into_iter();
    let rows = rows.map(|(key, value)| vec![key.to_owned(), escape::line(&value).into_owned()]);
    Ok(format!("{}\n", table::aligned(&[], rows.collect(), 2, width)))
}

fn status_facts(status: &FarmStatus) -> Vec<(&'static str, String)> {
    let totals = &status.totals;
    let counts = [
        (totals.usable, "usable"),
        (totals.completed, "completed"),
        (totals.truncated, "truncated"),
        (totals.no_result, "without result"),
        (totals.cancelled, "cancelled"),
        (status.begun_samples, "running"),
        (status.queued_samples, "queued"),
    ];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts.map(|(count, word)| format!("{count} {word}")).collect();
    let beside = if counts.is_empty() { String::new() } else { format!(": {}", counts.join(", ")) };
    let mut facts = vec![
        ("policy", status.policy_version.to_string()),
        (
            "groups",
            format!(
                "{} open of {}, {} complete",
                status.open_groups, totals.groups, totals.complete_groups
            ),
        ),
        ("samples", format!("{}{beside}", totals.samples)),
        ("to read", format!("{} completions not acknowledged", status.unacknowledged)),
    ];
    if totals.calls_without_ids > 0 {
        let calls = format!("{} model calls without token ids", totals.calls_without_ids);
        facts.push(("warning", format!("{calls}: nothing can be trained on them")));
    }
    facts.extend(
        status.pause.map(|pause| ("paused", format!("since {}", local_time::shown(pause.since)))),
    );
    facts.extend(status.model_calls.map(|calls| {
        let held = format!("{} in flight, {} held back", calls.in_flight, calls.held);
        ("calls", held)
    }));
    facts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn farm() -> Value {
        let totals = json!({"groups": 3, "complete_groups": 2, "samples": 12, "completed": 7,
                            "cancelled": 1, "usable": 7});
        json!({
            "id": "f1", "name": "policy", "user": "ann", "state": "running", "is_final": false,
            "created_at": "2026-05-01T10:00:00Z",
            "status": {
                "name": "policy", "policy_version": 4, "closed": false, "last_cursor": 8,
                "open_groups": 1, "queued_samples": 1, "begun_samples": 3, "unacknowledged": 2,
                "totals": totals,
            },
        })
    }

    #[test]
    fn farms_are_listed_with_their_samples() {
        let starting = json!({"id": "f2", "name": "new", "user": "ann", "state": "starting"});
        let damaged = json!({"id": "f3", "reason": "its journal is damaged"});
        let text = render_list(&[farm(), starting, damaged], None).expect("readable");
        let expected = "\
farm  name    user  state       policy  open groups  samples  ended  usable
f1    policy  ann   running          4            1       12      8       7
f2    new     ann   starting         -            -        -      -       -
f3    -       -     unreadable       -            -        -      -       -
f3: its journal is damaged
";
        assert_eq!(text, expected);
        assert_eq!(render_list(&[], None).expect("readable"), "no farms\n");
    }

    #[test]
    fn farm_is_shown_with_counts_and_failure() {
        let mut farm = farm();
        farm["failure"] = json!({"message": "no space"});
        let text = render(&farm, None).expect("readable");
        let expected = "\
farm     f1
name     policy
user     ann
state    running
policy   4
groups   1 open of 3, 2 complete
samples  12: 7 usable, 7 completed, 1 cancelled, 3 running, 1 queued
to read  2 completions not acknowledged
failure  no space
opened   2026-05-01T10:00:00Z
";
        assert_eq!(text, expected);
        farm["status"]["totals"]["calls_without_ids"] = 9.into();
        let text = render(&farm, None).expect("readable");
        assert!(text.contains("\nwarning  9 model calls without token ids: "), "{text}");
        farm["failure"]["is_temporary"] = true.into();
        let text = render(&farm, None).expect("readable");
        assert!(text.contains("\nfailure  no space; the farm continues when the disk"), "{text}");
        farm["status"] = json!({"name": 1});
        assert!(render(&farm, None).is_err(), "a status that cannot be read is an error");
    }

    #[test]
    fn server_that_is_no_url_is_refused() {
        let refused = server("queue:4280").expect_err("no URL");
        assert!(refused.message.contains("`queue:4280`"), "{}", refused.message);
    }
}
