//! The cost that a command reports: a decimal number in a file of its own. A command that writes
//! nothing reports no cost; invalid content does not fail the command.

use rollout_environment::{Environment, Upload};
use rollout_store::archive::{self, CapturedFile};

use super::context::COPY_LIMIT;

/// File for the cost of a command.
pub const COST_FILE: &str = "/cost/reported";

/// The directory of the file: empty when a command begins, and used for nothing else.
const COST_DIRECTORY: &str = "/cost";

/// Largest size of the file: a number needs 25 bytes.
const MAX_COST_BYTES: u64 = 4096;

/// Largest cost: far above any real one, so that sums stay finite.
const MAX_COST: f64 = 1e12;

/// An empty directory for the cost of the next command.
pub fn fresh_directory() -> Upload {
    Upload::FreshDir { path: COST_DIRECTORY.to_owned() }
}

/// The cost that the last command reported; `None` when it reported none.
///
/// # Errors
/// Why the reported cost is invalid or cannot be read.
pub async fn read_reported(environment: &dyn Environment) -> Result<Option<f64>, String> {
    let reading = async {
        let stream = match environment.copy_from(COST_FILE).await {
            Ok(Some(stream)) => stream,
            Ok(None) => return Ok(None),
            Err(error) => return Err(error.chain()),
        };
        match archive::first_file(stream, MAX_COST_BYTES).await {
            CapturedFile::Found(bytes) => parse_cost(&bytes).map(Some),
            CapturedFile::Missing => Ok(None),
            CapturedFile::NotRegular | CapturedFile::HardLink => {
                Err("it is not a regular file".to_owned())
            }
            CapturedFile::TooLarge(bytes) => Err(format!("it has {bytes} bytes")),
            CapturedFile::NotReached => Err("it cannot be read".to_owned()),
        }
    };
    let read = tokio::time::timeout(COPY_LIMIT, reading).await;
    read.unwrap_or_else(|_| Err(format!("reading it took longer than {COPY_LIMIT:?}")))
}

/// Parses a finite number that is not negative.
fn parse_cost(bytes: &[u8]) -> Result<f64, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_owned())?;
    let number: f64 = text.trim().parse().map_err(|_| "it is not a number".to_owned())?;
    match (0.0..=MAX_COST).contains(&number) {
        // Turns -0 into 0.
        true => Ok(number + 0.0),
        false => Err("it is not a number from 0 to 1e12".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cost_file_invalid_number_is_refused() {
        for (text, cost) in [("0.25\n", 0.25), (" 3", 3.0), ("1e-3", 0.001), ("-0", 0.0)] {
            assert_eq!(parse_cost(text.as_bytes()), Ok(cost), "{text}");
        }
        assert!(parse_cost(b"-0").expect("a number").is_sign_positive());
        for text in ["", "-1", "nan", "inf", "1e13", "1 2", "1,5", "$1", "\u{ff11}"] {
            assert!(parse_cost(text.as_bytes()).is_err(), "{text}");
        }
        assert!(parse_cost(&[0xff, b'1']).is_err());
    }
}
