//! Whole numbers of documents and queries. JSON Schema does not tell `50.0` from `50`, and a number
//! above the range of its type is that type's largest one.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, de};

/// A type of whole numbers.
pub(super) trait Whole: TryFrom<i128> {
    /// Its largest number.
    const LARGEST: Self;
}

macro_rules! whole {
    ($($number:ty),*) => { $(impl Whole for $number { const LARGEST: Self = Self::MAX; })* };
}

whole!(i32, u32, u64, usize);

/// Reads a number of a document.
///
/// # Errors
/// For a fraction, and for a number below the range of the type.
pub(super) fn json<'de, D: Deserializer<'de>, T: Whole>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_any(WholeVisitor(PhantomData))
}

/// Reads a number of a document that may be null.
///
/// # Errors
/// As [`json`].
pub(super) fn json_option<'de, D: Deserializer<'de>, T: Whole>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let number = Option::<WholeNumber<T>>::deserialize(deserializer)?;
    Ok(number.map(|WholeNumber(number)| number))
}

/// Reads a list of numbers of a document.
///
/// # Errors
/// As [`json`].
pub(super) fn json_list<'de, D: Deserializer<'de>, T: Whole>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let numbers = Vec::<WholeNumber<T>>::deserialize(deserializer)?;
    Ok(numbers.into_iter().map(|WholeNumber(number)| number).collect())
}

/// A number that [`json`] reads.
struct WholeNumber<T>(T);

impl<'de, T: Whole> Deserialize<'de> for WholeNumber<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        json(deserializer).map(Self)
    }
}

/// Reads a number of a query.
///
/// # Errors
/// As [`json`].
pub(super) fn query<'de, D: Deserializer<'de>, T: Whole>(deserializer: D) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse(&text)
        .ok_or_else(|| D::Error::invalid_value(de::Unexpected::Str(&text), &"a whole number"))
}

/// The number that a text is; `None` for another text.
pub(super) fn parse<T: Whole>(text: &str) -> Option<T> {
    let digits = match text.split_once('.') {
        Some((digits, zeros)) if !zeros.is_empty() && zeros.bytes().all(|byte| byte == b'0') => {
            digits
        }
        _ => text,
    };
    let unsigned = digits.strip_prefix('-').unwrap_or(digits);
    if unsigned.is_empty() || !unsigned.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // It has too many digits otherwise.
    let largest = || (!digits.starts_with('-')).then_some(i128::MAX);
    digits.parse::<i128>().ok().or_else(largest).and_then(in_range)
}

/// Reads a number of a query that may be absent.
///
/// # Errors
/// As [`json`].
pub(super) fn query_option<'de, D: Deserializer<'de>, T: Whole>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    query(deserializer).map(Some)
}

fn in_range<T: Whole>(number: i128) -> Option<T> {
    let is_negative = number < 0;
    T::try_from(number).ok().or_else(|| (!is_negative).then_some(T::LARGEST))
}

struct WholeVisitor<T>(PhantomData<T>);

impl<T: Whole> Visitor<'_> for WholeVisitor<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a whole number")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        let invalid = || E::invalid_value(de::Unexpected::Signed(number), &self);
        in_range(number.into()).ok_or_else(invalid)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        let invalid = || E::invalid_value(de::Unexpected::Unsigned(number), &self);
        in_range(number.into()).ok_or_else(invalid)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
        // Larger numbers become the largest one.
        let whole = (number.fract() == 0.0).then_some(number as i128);
        let invalid = || E::invalid_value(de::Unexpected::Float(number), &self);
        whole.and_then(in_range).ok_or_else(invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Document {
        #[serde(deserialize_with = "json")]
        number: i32,
    }

    #[derive(Debug, Deserialize)]
    struct Numbers {
        #[serde(deserialize_with = "json_list")]
        list: Vec<u64>,
        #[serde(default, deserialize_with = "json_option")]
        one: Option<u64>,
    }

    #[derive(Debug, Deserialize)]
    struct Query {
        #[serde(default, deserialize_with = "query_option")]
        number: Option<u32>,
    }

    #[test]
    fn number_with_a_fraction_of_zero_is_whole() {
        let read = |text: &str| {
            let document = serde_json::from_str::<Document>(&format!("{{\"number\":{text}}}"));
            document.ok().map(|document| document.number)
        };
        for (text, number) in
            [("50", 50), ("50.0", 50), ("-5.0", -5), ("5e1", 50), ("1e300", i32::MAX)]
        {
            assert_eq!(read(text), Some(number), "{text}");
        }
        for text in ["0.5", "\"5\"", "null", "true", "-1e300", "[]"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn lists_and_optional_numbers_are_read_as_single_ones() {
        let read = |text: &str| serde_json::from_str::<Numbers>(text).ok();
        let found = read("{\"list\": [1, 2.0, 3e1], \"one\": 4.0}").expect("numbers");
        assert_eq!((found.list, found.one), (vec![1, 2, 30], Some(4)));
        assert_eq!(read("{\"list\": [], \"one\": null}").expect("no number").one, None);
        assert!(read("{\"list\": [0.5]}").is_none() && read("{\"list\": [-1]}").is_none());
    }

    #[test]
    fn number_of_a_query_is_read_from_its_digits() {
        let read = |text: &str| {
            let query = serde_urlencoded::from_str::<Query>(&format!("number={text}"));
            query.ok().map(|query| query.number)
        };
        let many = "9".repeat(60);
        for (text, number) in [("7", 7), ("7.0", 7), ("007", 7), (&many, u32::MAX)] {
            assert_eq!(read(text), Some(Some(number)), "{text}");
        }
        for text in ["", "-1", "7.5", "7.", ".0", "x", "1e3", &format!("-{many}")] {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(serde_urlencoded::from_str::<Query>("").expect("empty").number, None);
    }
}
