//! `status`, `logs` and `cancel` of a run on a server.

use std::io::Read as _;

use rollout_base::supervise;
use rollout_protocol::exit::ExitCode;
use serde::Deserialize as _;
use serde_json::Value;
use tokio::sync::mpsc;

use super::client::RunUrl;
use crate::cli::error::CliError;
use crate::cli::output::Printer;
use crate::events::sinks::terminal::format::number;
use crate::events::sinks::terminal::score;
use crate::results::escape;
use crate::results::report::ScoreFigures;

/// Bytes of a piece of output.
const PIECE_BYTES: usize = 64 * 1024;

/// Pieces of output that wait to be printed.
const WAITING_PIECES: usize = 4;

/// Prints the state of a run.
///
/// # Errors
/// [`CliError`].
pub(in crate::cli) async fn status(
    run: &RunUrl,
    json: bool,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let shown = run.document().await?;
    match json {
        true => printer.json(&shown)?,
        false => printer.data(&summary(&shown))?,
    }
    Ok(ExitCode::Success)
}

/// Cancels a run.
///
/// # Errors
/// [`CliError`].
pub(in crate::cli) async fn cancel(
    run: &RunUrl,
    json: bool,
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let (of, path) = (run.clone(), run.path("/cancel"));
    let posted = supervise::blocking(move || of.server.post(&path, &Value::Null));
    let shown = posted.await?;
    match json {
        true => printer.json(&shown)?,
        false => printer.data(&summary(&shown))?,
    }
    Ok(ExitCode::Success)
}

/// Prints the output of an item.
///
/// # Errors
/// [`CliError`].
pub(in crate::cli) async fn logs(
    run: &RunUrl,
    item: &str,
    query: &[(&str, String)],
    printer: &Printer,
) -> Result<ExitCode, CliError> {
    let query: Vec<_> =
        query.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    let path = run.path(&format!("/items/{}/logs?{}", encoded(item), query.join("&")));
    let (pieces, mut received) = mpsc::channel(WAITING_PIECES);
    let of = run.clone();
    let reading = supervise::blocking(move || {
        let mut reader = of.server.stream(&path)?.into_body().into_reader();
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let read = reader.read(&mut piece).map_err(|error| {
                let what = "cannot read the output to its end";
                CliError::from_cause(ExitCode::OutOfReach, what, &error)
            })?;
            if read == 0 || pieces.blocking_send(piece[..read].to_vec()).is_err() {
                return Ok::<_, CliError>(());
            }
        }
    });
    let printing = async {
        let mut has_output = false;
        while let Some(piece) = received.recv().await {
            has_output = true;
            if printer.prints_to_terminal() {
                printer.data(&escape::block(&String::from_utf8_lossy(&piece)))?;
            } else {
                printer.bytes(&piece)?;
            }
        }
        Ok::<_, CliError>(has_output)
    };
    let (read, printed) = tokio::join!(reading, printing);
    let has_output = printed?;
    read?;
    if !has_output {
        printer.note_no_output();
    }
    Ok(ExitCode::Success)
}

/// A part of a URL: every byte that could have a meaning there is written in hexadecimal digits.
pub(super) fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// A run in a few lines.
pub(super) fn summary(run: &Value) -> String {
    let text = |key: &str| escape::line(run[key].as_str().unwrap_or("-")).into_owned();
    let progress = &run["progress"];
    let count = |key: &str| progress[key].as_u64().unwrap_or_default();
    let mut lines = format!(
        "{} {}: {}\n{} of {} trials settled: {} completed, {} failed, {} cancelled, {} running\n",
        text("id"),
        text("name"),
        text("state"),
        count("settled"),
        count("total"),
        count("completed"),
        count("failed"),
        count("cancelled"),
        count("running"),
    );
    // A search has no score, and earlier servers send none.
    if let Ok(scored) = ScoreFigures::deserialize(&progress["scored"])
        && count("settled") > 0
    {
        lines.push_str(&format!("{}\n", score::scored(&scored)));
    } else if let Some(mean) = progress["mean_reward"].as_f64() {
        lines.push_str(&format!("mean reward {} of the completed trials\n", number(mean)));
    }
    if let Some(message) = run["failure"]["message"].as_str() {
        lines.push_str(&format!("failed: {}\n", escape::line(message)));
    }
    if run["failure"]["is_temporary"] == true {
        lines.push_str("the run continues when the disk of the server takes writes again\n");
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn summary_has_score_of_run_or_names_trials_of_mean() {
        let run = |progress| summary(&json!({"id": "r", "name": "n", "progress": progress}));
        let scored = json!({"trials": 4, "passed": 1, "pass_rate": 0.25, "mean_reward": 0.1875});
        let shown = run(json!({"settled": 4, "mean_reward": 0.75, "scored": scored}));
        assert!(shown.ends_with("\npassed 1 of 4 (25%), mean reward 0.1875\n"), "{shown}");
        let shown = run(json!({"settled": 4, "mean_reward": 0.75}));
        assert!(shown.ends_with("\nmean reward 0.75 of the completed trials\n"), "{shown}");
        assert_eq!(run(json!({"settled": 4})).lines().count(), 2);
    }

    #[test]
    fn summary_of_run_that_waits_for_a_disk_says_that_it_continues() {
        let run = |is_temporary| {
            let failure = json!({"message": "no space", "is_temporary": is_temporary});
            summary(&json!({"id": "r", "name": "n", "state": "failed", "failure": failure}))
        };
        let shown = run(true);
        let expected =
            "\nfailed: no space\nthe run continues when the disk of the server takes writes";
        assert!(shown.contains(expected), "{shown}");
        assert!(run(false).ends_with("\nfailed: no space\n"));
    }

    #[test]
    fn names_of_items_are_one_part_of_a_path() {
        assert_eq!(encoded("a/d/t__1"), "a%2Fd%2Ft__1");
        assert_eq!(encoded("x?y=1&z"), "x%3Fy%3D1%26z");
    }
}
