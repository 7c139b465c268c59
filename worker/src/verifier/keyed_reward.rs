//! The reward file with several numbers: one flat JSON object of finite numbers.
//!
//! Refused are other values (strings, booleans, `null`, nested ones, `NaN`), duplicate names, an
//! empty object, and names or numbers beyond the bounds of [`limits`]. A parser that lets the last
//! of two equal names win would hide a number from the reader of the file.

use std::fmt;

use rollout_base::secrets::Redactor;
use rollout_protocol::limits;
use rollout_protocol::record::{REWARD_KEY, Rewards};
use serde::de::{self, Deserializer, MapAccess, Visitor};

/// Parses numbers from a whole file. Names are returned without secrets.
///
/// # Errors
/// Why the file is invalid, without secrets.
pub fn parse(bytes: &[u8], redactor: &Redactor) -> Result<Rewards, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".to_owned())?;
    if text.trim().is_empty() {
        return Err("it is empty".to_owned());
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    let numbers = Deserializer::deserialize_map(&mut reader, RewardsVisitor { redactor });
    let numbers = numbers.and_then(|numbers| reader.end().map(|()| numbers));
    numbers.map_err(|error| redactor.text(&error.to_string()))
}

/// Selects the reward among a verifier's numbers: the one named `key`, if a name is given, else
/// [`REWARD_KEY`], else the only one.
pub fn select_reward(numbers: &Rewards, key: Option<&str>) -> Option<f64> {
    let only = || numbers.values().next().filter(|_| numbers.len() == 1);
    let found = match key {
        Some(key) => numbers.get(key),
        None => numbers.get(REWARD_KEY).or_else(only),
    };
    found.copied()
}

struct RewardsVisitor<'a> {
    redactor: &'a Redactor,
}

impl<'de> Visitor<'de> for RewardsVisitor<'_> {
    type Value = Rewards;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with numbers")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Rewards, A::Error> {
        let mut numbers = Rewards::new();
        while let Some(name) = map.next_key::<String>()? {
            let most = limits::REWARD_KEY_BYTES;
            if name.is_empty() || name.len() > most || name.contains(char::is_control) {
                let what = "bytes without control characters";
                return Err(de::Error::custom(format!("a name must have 1 to {most} {what}")));
            }
            let name = self.redactor.text(&name);
            let FiniteNumber(number) = map.next_value()?;
            if numbers.insert(name.clone(), number).is_some() {
                return Err(de::Error::custom(format!("duplicate name `{name}`")));
            }
            if numbers.len() > limits::REWARD_KEYS {
                let most = limits::REWARD_KEYS;
                return Err(de::Error::custom(format!("it has more than {most} numbers")));
            }
        }
        if numbers.is_empty() {
            return Err(de::Error::custom("it has no number"));
        }
        Ok(numbers)
    }
}

struct FiniteNumber(f64);

impl<'de> serde::Deserialize<'de> for FiniteNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = serde_json::Number::deserialize(deserializer)
            .map_err(|error| de::Error::custom(format!("every value must be a number: {error}")))?;
        match number.as_f64().filter(|number| number.is_finite()) {
            // `-0` becomes 0: its sign would only confuse comparisons.
            Some(number) => Ok(Self(number + 0.0)),
            None => Err(de::Error::custom("every number must be finite")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Rewards, String> {
        parse(text.as_bytes(), &Redactor::default())
    }

    fn numbers(pairs: &[(&str, f64)]) -> Rewards {
        pairs.iter().map(|(name, number)| ((*name).to_owned(), *number)).collect()
    }

    #[test]
    fn reward_json_flat_object_of_numbers_is_read() {
        let several = read(" {\"reward\": 1, \"speed\": -0.5e1, \"ü\": 18446744073709551615}\n");
        let expected = [("reward", 1.0), ("speed", -5.0), ("ü", 18_446_744_073_709_551_615.0)];
        assert_eq!(several, Ok(numbers(&expected)));
        assert_eq!(read("{\"a\": -0.0}").map(|n| n["a"].to_bits()), Ok(0));
    }

    #[test]
    fn reward_json_malformed_is_refused() {
        let many: Vec<String> = (0..=limits::REWARD_KEYS).map(|n| format!("\"{n}\": 1")).collect();
        for (text, why) in [
            ("", "empty"),
            (" \n", "empty"),
            ("{}", "no number"),
            ("1", "object"),
            ("[1]", "object"),
            ("null", "object"),
            ("{\"a\": true}", "number"),
            ("{\"a\": \"1\"}", "number"),
            ("{\"a\": null}", "number"),
            ("{\"a\": {\"b\": 1}}", "number"),
            ("{\"a\": [1]}", "number"),
            ("{\"a\": NaN}", ""),
            ("{\"a\": 1e309}", ""),
            ("{\"a\": -Infinity}", ""),
            ("{\"a\": 1, \"a\": 1}", "duplicate"),
            ("{\"a\": 1, \"\\u0061\": 2}", "duplicate"),
            ("{\"\": 1}", "1 to 100"),
            ("{\"a\\nb\": 1}", "control"),
            ("{\"a\": 1} {\"b\": 2}", "trailing"),
            ("{\"a\": 1", "EOF"),
            (&format!("{{\"{}\": 1}}", "x".repeat(101)), "1 to 100"),
            (&format!("{{{}}}", many.join(",")), "more than 50"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(parse(b"{\"\xff\": 1}", &Redactor::default()).is_err());
        let redactor = Redactor::new([("KEY", "hunter2hunter2")]);
        let hidden = parse(b"{\"hunter2hunter2\": 1}", &redactor).expect("numbers");
        assert_eq!(hidden, numbers(&[("[redacted:KEY]", 1.0)]));
    }

    #[test]
    fn reward_key_named_default_or_single_is_chosen() {
        let several = numbers(&[("reward", 0.5), ("a", 1.0)]);
        let without = numbers(&[("a", 1.0), ("b", 2.0)]);
        for (numbers, key, expected) in [
            (&several, None, Some(0.5)),
            (&several, Some("a"), Some(1.0)),
            (&several, Some("x"), None),
            (&without, None, None),
            (&without, Some("b"), Some(2.0)),
            (&numbers(&[("a", 3.0)]), None, Some(3.0)),
        ] {
            assert_eq!(select_reward(numbers, key), expected, "{numbers:?} {key:?}");
        }
    }

    proptest! {
        #[test]
        fn reward_json_random_text_stays_finite(text in "[\\{\\}\":,a0-9.eE+\\-\\[\\] tn]{0,40}") {
            if let Ok(numbers) = read(&text) {
                prop_assert!(numbers.values().all(|number| number.is_finite()));
            }
        }
    }
}
