//! What a command says that it cost: a decimal number in a file that is its own. A command that
//! says nothing reports nothing; one that writes something else has done no worse than that.

use super::context::COPY_LIMIT;
use crate::archive::{self, CapturedFile};
use crate::environment::{Environment, Upload};

/// Where a command may write what it cost.
pub const COST: &str = "/cost/reported";

/// The directory of the file: empty when a command begins, and nothing else's.
const DIRECTORY: &str = "/cost";

/// Bytes of the file: a number needs 25.
const BYTES: u64 = 4096;

/// Largest cost: far above any, so that sums stay numbers.
const MOST: f64 = 1e12;

/// Makes room for what the next command reports.
pub fn room() -> Upload {
    Upload::FreshDir { path: DIRECTORY.to_owned() }
}

/// What the last command reported; nothing when it did not.
///
/// # Errors
/// Why what it wrote is no cost, or cannot be read.
pub async fn reported(environment: &dyn Environment) -> Result<Option<f64>, String> {
    let reading = async {
        let stream = match environment.copy_from(COST).await {
            Ok(Some(stream)) => stream,
            Ok(None) => return Ok(None),
            Err(error) => return Err(error.chain()),
        };
        match archive::first_file(stream, BYTES).await {
            CapturedFile::Found(bytes) => number(&bytes).map(Some),
            CapturedFile::Missing => Ok(None),
            CapturedFile::NotRegular | CapturedFile::HardLink => Err("it is no regular file".to_owned()),
            CapturedFile::TooLarge(bytes) => Err(format!("it has {bytes} bytes")),
            CapturedFile::Unknown => Err("it could not be read".to_owned()),
        }
    };
    let read = tokio::time::timeout(COPY_LIMIT, reading).await;
    read.unwrap_or_else(|_| Err(format!("reading it took longer than {COPY_LIMIT:?}")))
}

/// A finite number that is not negative.
fn number(bytes: &[u8]) -> Result<f64, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is no text".to_owned())?;
    let number: f64 = text.trim().parse().map_err(|_| "it is no number".to_owned())?;
    match (0.0..=MOST).contains(&number) {
        // Of -0 there is nothing left.
        true => Ok(number + 0.0),
        false => Err("it is no number from 0 to 1e12".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for (text, cost) in [("0.25\n", 0.25), (" 3", 3.0), ("1e-3", 0.001), ("-0", 0.0)] {
            assert_eq!(number(text.as_bytes()), Ok(cost), "{text}");
        }
        assert!(number(b"-0").expect("a number").is_sign_positive());
        for text in ["", "-1", "nan", "inf", "1e13", "1 2", "1,5", "$1", "\u{ff11}"] {
            assert!(number(text.as_bytes()).is_err(), "{text}");
        }
        assert!(number(&[0xff, b'1']).is_err());
    }
}
