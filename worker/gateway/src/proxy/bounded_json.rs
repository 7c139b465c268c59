//! JSON with a bound on its values: a short text may hold many, each of which takes far more memory
//! than its text.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Reads a value; each value in it is taken from `left`. `None` if the text is not JSON or has more
/// values.
pub(crate) fn read(text: &str, left: &mut usize) -> Option<Value> {
    read_seed(text, BoundedValue { left })
}

/// Reads a list, item by item, like [`read`].
pub(crate) fn read_list(text: &str, left: &mut usize, each: impl FnMut(Value)) -> Option<()> {
    read_seed(text, BoundedList { left, each })
}

fn read_seed<'de, S: DeserializeSeed<'de>>(text: &'de str, seed: S) -> Option<S::Value> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = seed.deserialize(&mut deserializer).ok()?;
    deserializer.end().ok()?;
    Some(value)
}

struct BoundedValue<'a> {
    left: &'a mut usize,
}

impl<'de> DeserializeSeed<'de> for BoundedValue<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        *self.left = self.left.checked_sub(1).ok_or_else(|| D::Error::custom("too many values"))?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BoundedValue<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(BoundedValue { left: self.left })? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = members.next_key()? {
            let value = members.next_value_seed(BoundedValue { left: self.left })?;
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}

struct BoundedList<'a, F> {
    left: &'a mut usize,
    each: F,
}

impl<'de, F: FnMut(Value)> DeserializeSeed<'de> for BoundedList<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, F: FnMut(Value)> Visitor<'de> for BoundedList<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        while let Some(item) = items.next_element_seed(BoundedValue { left: self.left })? {
            (self.each)(item);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_that_of_serde_json_within_bound() {
        let text = r#"{"a":[1,-2,2.5,null,true,"x\n"],"b":{"c":[]}}"#;
        let whole: Value = serde_json::from_str(text).expect("JSON");
        let mut left = 10;
        assert_eq!(read(text, &mut left), Some(whole));
        assert_eq!(left, 0);
        assert_eq!(read(text, &mut 9), None);
        assert_eq!(read("[1] 2", &mut 9), None, "text after the value");
    }

    #[test]
    fn list_with_too_many_values_is_not_read_to_its_end() {
        let mut seen = 0;
        assert_eq!(read_list("[1,[2],3]", &mut 3, |_| seen += 1), None);
        assert_eq!(seen, 2);
        assert_eq!(read_list("{}", &mut 3, |_| ()), None);
    }
}
