//! What a command says that it cost: a decimal number in a file that is its own. A command that
//! says nothing reports nothing; one that writes something else has done no worse than that.

use super::context::COPY_LIMIT;
use crate::archive::{self, CapturedFile};
use crate::environment::{Environment, Upload};

/// Where a command may write what it cost.
pub const COST_FILE: &str = "/cost/reported";

/// The directory of the file: empty when a command begins, and nothing else's.
const COST_DIRECTORY: &str = "/cost";

/// Bytes of the file: a number needs 25.
const MAX_COST_BYTES: u64 = 4096;

/// Largest cost: far above any, so that sums stay numbers.
const MAX_COST: f64 = 1e12;

/// Makes room for what the next command reports.
pub fn fresh_directory() -> Upload {
    Upload::FreshDir { path: COST_DIRECTORY.to_owned() }
}

/// What the last command reported; nothing when it did not.
///
/// # Errors
/// Why what it wrote is no cost, or cannot be read.
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
                Err("it is no regular file".to_owned())
            }
            CapturedFile::TooLarge(bytes) => Err(format!("it has {bytes} bytes")),
            CapturedFile::Unknown => Err("it could not be read".to_owned()),
        }
    };
    let read = tokio::time::timeout(COPY_LIMIT, reading).await;
    read.unwrap_or_else(|_| Err(format!("reading it took longer than {COPY_LIMIT:?}")))
}

/// A finite number that is not negative.
fn parse_cost(bytes: &[u8]) -> Result<f64, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is no text".to_owned())?;
    let number: f64 = text.trim().parse().map_err(|_| "it is no number".to_owned())?;
    match (0.0..=MAX_COST).contains(&number) {
        // Of -0 there is nothing left.
        true => Ok(number + 0.0),
        false => Err("it is no number from 0 to 1e12".to_owned()),
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
