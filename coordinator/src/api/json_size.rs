//! The size of a document in JSON, counted before the document is kept in memory.

use std::cell::Cell;
use std::fmt;

use rollout_protocol::limits::{DOCUMENT_DEPTH, DOCUMENT_VALUES};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Checks that a text is a document of JSON within the limits on its values and its depth.
///
/// # Errors
/// The first error of the text, or the limit.
pub(super) fn check(bytes: &[u8]) -> Result<(), serde_json::Error> {
    let values = Cell::new(0);
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    CountedValue { values: &values, depth: 0 }.deserialize(&mut reader)?;
    reader.end()
}

/// One value, and its place in the document.
#[derive(Clone, Copy)]
struct CountedValue<'a> {
    /// Values of the document so far.
    values: &'a Cell<usize>,
    /// Lists and objects around it.
    depth: usize,
}

impl CountedValue<'_> {
    /// The values in this list or object.
    fn inside<E: Error>(self) -> Result<Self, E> {
        if self.depth == DOCUMENT_DEPTH {
            let message = format!("more than {DOCUMENT_DEPTH} lists and objects inside each other");
            return Err(E::custom(message));
        }
        Ok(Self { depth: self.depth + 1, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for CountedValue<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.values.set(self.values.get() + 1);
        if self.values.get() > DOCUMENT_VALUES {
            return Err(D::Error::custom(format!("it has more than {DOCUMENT_VALUES} values")));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for CountedValue<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let item = self.inside()?;
        while let Some(()) = items.next_element_seed(item)? {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let value = self.inside()?;
        while entries.next_key::<IgnoredAny>()?.is_some() {
            entries.next_value_seed(value)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> Option<String> {
        check(text.as_bytes()).err().map(|error| error.to_string())
    }

    #[test]
    fn document_within_limits_is_accepted() {
        let zeros = vec!["0"; DOCUMENT_VALUES - 1].join(",");
        let deep = ["[".repeat(DOCUMENT_DEPTH), "]".repeat(DOCUMENT_DEPTH)].concat();
        let kinds = r#"{"a": [null, true, -1, 1, 1.5, "x\n"], "b": {}}"#;
        for text in [&format!("[{zeros}]"), &deep, kinds] {
            assert_eq!(fault(text), None);
        }
    }

    #[test]
    fn document_beyond_a_limit_is_refused_at_the_limit() {
        // The rest is not read: it is no JSON.
        let many = format!("[{}]", vec!["0"; DOCUMENT_VALUES].join(",") + ",?");
        let deep = "[".repeat(DOCUMENT_DEPTH + 1);
        for (text, word) in [(many, "values"), (deep, "inside each other"), ("{".into(), "EOF")] {
            let fault = fault(&text).expect("refused");
            assert!(fault.contains(word), "{fault}");
        }
        assert!(fault("{} {}").is_some());
    }
}
