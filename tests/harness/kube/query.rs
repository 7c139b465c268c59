//! Query parameters of a request.

/// The parameters in their order.
#[derive(Debug, Clone, Default)]
pub(super) struct QueryParameters(Vec<(String, String)>);

impl QueryParameters {
    /// Parses a query; one that is malformed has no parameters.
    pub(super) fn parse(query: &str) -> Self {
        Self(serde_urlencoded::from_str(query).unwrap_or_default())
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The value of a parameter; empty without one.
    pub(super) fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.get(name)?.parse().ok()
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some("true" | "1"))
    }

    pub(super) fn all(&self, name: &str) -> Vec<String> {
        self.0.iter().filter(|(key, _)| key == name).map(|(_, value)| value.clone()).collect()
    }
}
