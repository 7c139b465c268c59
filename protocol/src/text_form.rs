//! Reading types with a text form: the macro and its error.

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

macro_rules! deserialize_by_text {
    ($name:ident) => {
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(D::Error::custom)
            }
        }
    };
}
pub(crate) use deserialize_by_text;
