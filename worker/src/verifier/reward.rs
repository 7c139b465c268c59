//! The reward file: plain text with exactly one finite decimal number.
//!
//! White space around the number is ignored. Numbers are parsed like Rust floats: an optional sign,
//! decimal digits with an optional point, an optional exponent (`1`, `-0.5`, `.5`, `1.`, `1e-3`).
//! Refused are `inf` and `nan` in every spelling, numbers too large for 64 bits, digits of other
//! scripts, more than one number, and any other text.

use rollout_base::secrets::Redactor;

/// Why a reward file has no valid reward. The texts quote at most 40 characters of it, without
/// secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReward {
    /// The file is empty or blank.
    #[error("it is empty")]
    Empty,
    /// The bytes are not text.
    #[error("it is not UTF-8 text")]
    NotText,
    /// The content is not a single number.
    #[error("`{0}` is not one number")]
    NotANumber(String),
    /// The number is not finite.
    #[error("`{0}` is not a finite number")]
    NotFinite(String),
}

/// Parses a reward from a whole file.
///
/// # Errors
/// [`InvalidReward`], quoting the redacted content.
pub fn parse(bytes: &[u8], redactor: &Redactor) -> Result<f64, InvalidReward> {
    let whole = std::str::from_utf8(bytes).map_err(|_| InvalidReward::NotText)?;
    let text = whole.trim();
    if text.is_empty() {
        return Err(InvalidReward::Empty);
    }
    // A secret is only matched whole and unescaped: redact before cutting or escaping.
    let quoted =
        || redactor.text(whole).trim().chars().take(40).flat_map(char::escape_debug).collect();
    match text.parse::<f64>() {
        // `-0` becomes 0: its sign would only confuse comparisons.
        Ok(reward) if reward.is_finite() => Ok(reward + 0.0),
        Ok(_) => Err(InvalidReward::NotFinite(quoted())),
        Err(_) => Err(InvalidReward::NotANumber(quoted())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(bytes: &[u8]) -> Result<f64, InvalidReward> {
        super::parse(bytes, &Redactor::default())
    }

    #[test]
    fn reward_text_number_is_read() {
        for (text, expected) in [
            ("1", 1.0),
            ("0", 0.0),
            ("0.5\n", 0.5),
            (" \t\r\n1.0\r\n\n", 1.0),
            ("-1", -1.0),
            ("+2.5", 2.5),
            (".5", 0.5),
            ("1.", 1.0),
            ("1e-3", 0.001),
            ("1E3", 1000.0),
            ("00.50", 0.5),
            ("-0", 0.0),
            ("1e-400", 0.0),
            ("1.7976931348623157e308", f64::MAX),
        ] {
            let reward = parse(text.as_bytes()).expect(text);
            assert_eq!(reward.to_bits(), expected.to_bits(), "{text}: {reward}");
        }
    }

    #[test]
    fn reward_text_not_a_finite_number_is_refused() {
        for text in [
            "1 0",
            "1\n0",
            "1,0",
            "0x1",
            "1f",
            "1_000",
            "one",
            "true",
            "1/2",
            "50%",
            "--1",
            "e5",
            ".",
            "+",
            "1e",
            "NaN0",
            "\u{0661}",
            "\u{feff}1",
            "1\0",
            "reward: 1",
            "\u{1b}[1m1",
        ] {
            let error = parse(text.as_bytes()).expect_err(text);
            assert!(matches!(error, InvalidReward::NotANumber(_)), "{text}: {error}");
            assert!(!error.to_string().contains(char::is_control), "{error:?}");
        }
        for text in ["inf", "-inf", "Infinity", "nan", "NaN", "-nan", "1e309", "-1e400"] {
            let error = parse(text.as_bytes()).expect_err(text);
            assert!(matches!(error, InvalidReward::NotFinite(_)), "{text}: {error}");
        }
        assert_eq!(parse(b""), Err(InvalidReward::Empty));
        assert_eq!(parse(b" \n\t"), Err(InvalidReward::Empty));
        assert_eq!(parse(b"\xff\xfe1"), Err(InvalidReward::NotText));
    }

    #[test]
    fn reward_error_with_secret_is_redacted() {
        let long = "0123456789-".repeat(5);
        for secret in [long.as_str(), "it's \"quoted\"\tand\\cut", " surrounded by blanks "] {
            let redactor = Redactor::new([("KEY", secret)]);
            for (before, after) in [("", ""), ("key: ", "\n"), (&*"x".repeat(30), "x")] {
                let text = format!("{before}{secret}{after}");
                let error = super::parse(text.as_bytes(), &redactor).expect_err("no number");
                let shown = format!("{before}[redacted:KEY]{after}");
                let shown: String = shown.trim().chars().take(40).collect();
                assert_eq!(error, InvalidReward::NotANumber(shown));
            }
        }
        // A number that equals a secret is still a number.
        let redactor = Redactor::new([("KEY", "12345"), ("HUGE", "1e999")]);
        assert_eq!(super::parse(b"12345\n", &redactor), Ok(12345.0));
        let expected = InvalidReward::NotFinite("[redacted:HUGE]".into());
        assert_eq!(super::parse(b"1e999", &redactor), Err(expected));
    }

    proptest! {
        #[test]
        fn reward_text_random_bytes_stay_finite(bytes: Vec<u8>) {
            if let Ok(reward) = parse(&bytes) {
                prop_assert!(reward.is_finite());
            }
        }

        #[test]
        fn reward_text_finite_number_round_trips(number in proptest::num::f64::NORMAL) {
            prop_assert_eq!(parse(format!(" {number}\n").as_bytes()), Ok(number));
            prop_assert_eq!(parse(format!("{number:e}").as_bytes()), Ok(number));
        }
    }
}
