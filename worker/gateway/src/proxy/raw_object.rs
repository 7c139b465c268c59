//! JSON objects whose members keep their order and their exact text, so that a member can be added
//! or taken out without a change to the others.

use std::fmt;

use serde::de::{Error as _, MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

/// Members of an object: far more than any request has. An object with more is not read, as a member
/// takes more memory than its text.
const MAX_MEMBERS: usize = 4096;

/// An object.
#[derive(Debug, Default)]
pub(crate) struct RawObject(Vec<(String, Box<RawValue>)>);

impl RawObject {
    /// Reads an object.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// The text of a member; of the last one, if several have this name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.get())
    }

    /// Sets a member, in its place if there is one with this name.
    pub(crate) fn set(&mut self, name: &str, text: String) -> Option<()> {
        let value = RawValue::from_string(text).ok()?;
        match self.0.iter_mut().rev().find(|(key, _)| key == name) {
            Some((_, present)) => *present = value,
            None => self.0.push((name.to_owned(), value)),
        }
        Some(())
    }

    /// Removes all members with this name; returns whether there was one.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        let before = self.0.len();
        self.0.retain(|(key, _)| key != name);
        self.0.len() != before
    }

    /// Its JSON text.
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).expect("members are JSON already")
    }
}

impl Serialize for RawObject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for RawObject {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = RawObject;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawObject, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    if members.len() == MAX_MEMBERS {
                        return Err(A::Error::custom("too many members"));
                    }
                    members.push(member);
                }
                Ok(RawObject(members))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_object_keeps_order_and_text_of_other_members() {
        let text = r#"{"z":1.50,"a":{"k" : [1, 2]},"m":"\u00e9"}"#;
        let mut object = RawObject::parse(text).expect("an object");
        assert_eq!(object.text(), text);
        assert_eq!(object.get("a"), Some(r#"{"k" : [1, 2]}"#));
        object.set("new", "true".to_owned()).expect("JSON");
        assert!(object.remove("a") && !object.remove("a"));
        assert_eq!(object.text(), r#"{"z":1.50,"m":"\u00e9","new":true}"#);
        assert!(object.set("bad", "{".to_owned()).is_none());
        assert!(RawObject::parse("[1]").is_none());
    }

    #[test]
    fn object_with_too_many_members_is_not_read() {
        let text = |count: usize| format!("{{{}\"a\":1}}", "\"a\":1,".repeat(count - 1));
        assert!(RawObject::parse(&text(MAX_MEMBERS)).is_some());
        assert!(RawObject::parse(&text(MAX_MEMBERS + 1)).is_none());
    }
}
