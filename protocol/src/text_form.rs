//! Serde for types with a text form: the macro and its error.

/// Text that does not parse as the expected id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a valid {what}: expected {expected}")]
pub struct InvalidId {
    /// The kind of id.
    pub what: &'static str,
    /// The accepted form.
    pub expected: &'static str,
    /// The text, shortened to 80 characters.
    pub text: String,
}

impl InvalidId {
    pub(crate) fn new(what: &'static str, expected: &'static str, text: &str) -> Self {
        Self { what, expected, text: text.chars().take(80).collect() }
    }
}

macro_rules! serde_by_text {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(D::Error::custom)
            }
        }
    };
}
pub(crate) use serde_by_text;
