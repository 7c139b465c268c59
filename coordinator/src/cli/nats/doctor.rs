//! `rollout doctor`.

use clap::Args;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::limits;
use rollout_queue::nats::{AccountLimits, MissingDisk, NatsServerInfo, StreamCopies};

use super::RequiredNatsArgs;
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::events::sinks::terminal::Style;
use crate::results::escape;

/// Show the state of a NATS server and what it lacks for runs
///
/// Exits with 3 when a setting has to be corrected. The lease of consumers is compared with
/// `--lease`.
#[derive(Debug, Args)]
pub(in crate::cli) struct DoctorArgs {
    #[command(flatten)]
    nats: RequiredNatsArgs,
}

/// Versions in which known losses of acknowledged messages are fixed.
const RECOMMENDED: &str = "2.12.12, 2.14.3 or newer";

/// Blanks before the text of a fact.
const FACT_INDENT: usize = 11;

/// Runs the command.
pub(in crate::cli) async fn doctor(
    args: &DoctorArgs,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let nats = args.nats.connect().await?;
    let info = nats.server_info().await?;
    let silence_limit = limits::worker_silence(args.nats.access.lease);
    let mut workers = nats.heartbeats().await?;
    workers.retain(|seen| !seen.heartbeat.gone);
    let living = workers.iter().filter(|seen| seen.age < silence_limit).count();
    let mut lines = describe(&info);
    lines.push(format!("workers    {living} alive, {} silent", workers.len() - living));
    printer.data(&render(&lines, printer.out))?;
    let is_ready = !info.has_differences() && !info.lacks_disk();
    Ok(if is_ready { ExitCode::Success } else { ExitCode::Config })
}

fn render(lines: &[String], style: Style) -> String {
    let shown = lines.iter().map(|line| style.wrapped_at(&escape::line(line), FACT_INDENT));
    shown.map(|line| line + "\n").collect()
}

fn describe(info: &NatsServerInfo) -> Vec<String> {
    let NatsServerInfo { address, version, cluster, max_message_bytes, api_level, limits, .. } =
        info;
    let cluster = cluster.as_ref().map_or("single".to_owned(), |name| format!("cluster {name}"));
    let level = api_level.map_or("below 1".to_owned(), |level| level.to_string());
    let mut lines = vec![
        format!("server     {address}, version {version}, {cluster}, API level {level}"),
        format!("           recommended: {RECOMMENDED}; messages up to {max_message_bytes} bytes"),
        format!("limits     {}", describe_limits(limits)),
        "durability the server does not show its `sync_interval`: with `always` a power failure \
         loses no acknowledged message; otherwise it may lose minutes of messages, which repeats \
         work but loses no result"
            .to_owned(),
    ];
    for stream in &info.streams {
        let name = &stream.name;
        if !stream.present {
            lines.push(describe_missing(name, stream.missing_disk.as_ref()));
            continue;
        }
        lines.push(format!(
            "stream     {name}: {} messages, {} bytes",
            stream.messages, stream.bytes
        ));
        lines.extend(stream.copies.as_ref().map(describe_copies));
        lines.extend(difference_lines(&stream.differences));
    }
    for consumer in &info.consumers {
        lines.push(format!(
            "consumer   {}: {} waiting, {} in flight ({} redelivered), {} open pulls",
            consumer.name,
            consumer.waiting,
            consumer.in_flight,
            consumer.redelivered,
            consumer.waiting_pulls
        ));
        lines.extend(difference_lines(&consumer.differences));
    }
    lines
}

/// A stream that does not exist, and why it cannot be created, if it cannot.
fn describe_missing(name: &str, lacks: Option<&MissingDisk>) -> String {
    match lacks {
        None => format!("stream     {name} does not exist yet; the first run creates it"),
        Some(missing) => format!(
            "stream     {missing}: give the account more disk (`max_file`), or create the stream \
             beforehand with a smaller `max_bytes`"
        ),
    }
}

/// The servers that have a copy of a stream.
fn describe_copies(copies: &StreamCopies) -> String {
    let leader = copies.leader.as_deref().unwrap_or("none at present");
    let followers = copies.followers.iter().map(|follower| {
        let state = match (follower.offline, follower.current) {
            (true, _) => " (offline)",
            (false, false) => " (behind)",
            (false, true) => "",
        };
        format!(", {}{state}", follower.name)
    });
    let count = copies.followers.len() + 1;
    format!("  copies   {count}: leader {leader}{}", followers.collect::<String>())
}

fn difference_lines(differences: &[String]) -> impl Iterator<Item = String> {
    differences.iter().map(|difference| format!("  differs  {difference}"))
}

fn describe_limits(limits: &AccountLimits) -> String {
    let part = |used: u64, most: Option<u64>| match most {
        Some(most) => format!("{used} of {most} bytes"),
        None => format!("{used} bytes, no limit"),
    };
    format!(
        "disk {}; memory {}",
        part(limits.storage, limits.max_storage),
        part(limits.memory, limits.max_memory)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_that_cannot_be_created_is_shown_as_the_error_of_a_run() {
        let (name, available) = ("REPORTS".to_owned(), "the account may use 5 bytes".to_owned());
        let missing = MissingDisk { name, reserved: 7, available };
        let line = describe_missing("REPORTS", Some(&missing));
        assert!(line.starts_with(&format!("stream     {missing}: give the account")), "{line}");
        assert!(describe_missing("REPORTS", None).ends_with("the first run creates it"));
    }

    #[test]
    fn facts_of_narrow_terminal_continue_below_their_text() {
        let lines =
            ["durability the server does not show it".to_owned(), "workers    1".to_owned()];
        let narrow = Style { width: Some(30), ..Style::PLAIN };
        let expected = "durability the server does not\n           show it\nworkers    1\n";
        assert_eq!(render(&lines, narrow), expected);
    }
}
