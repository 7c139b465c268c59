//! Errors of the API as `Status` objects.

use serde_json::{Value, json};

/// An error of the API server.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The HTTP status.
    pub code: u16,
    /// `reason` of the `Status`.
    pub reason: &'static str,
    /// `message` of the `Status`.
    pub message: String,
    /// `details` of the `Status`.
    pub details: Option<Value>,
    /// The header `Retry-After`, in seconds.
    pub retry_after: Option<u32>,
}

impl ApiError {
    /// An error without details.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None, retry_after: None }
    }

    pub(super) fn not_found(plural: &str, group: &str, name: &str) -> Self {
        let resource = qualified(plural, group);
        let mut error = Self::new(404, "NotFound", format!("{resource} \"{name}\" not found"));
        error.details = Some(details(plural, group, name));
        error
    }

    pub(super) fn path_not_found() -> Self {
        let message = "the server could not find the requested resource";
        Self { details: Some(json!({})), ..Self::new(404, "NotFound", message) }
    }

    pub(super) fn already_exists(plural: &str, group: &str, name: &str) -> Self {
        let resource = qualified(plural, group);
        let message = format!("{resource} \"{name}\" already exists");
        let details = Some(details(plural, group, name));
        Self { details, ..Self::new(409, "AlreadyExists", message) }
    }

    pub(super) fn conflict(plural: &str, group: &str, name: &str, cause: &str) -> Self {
        let resource = qualified(plural, group);
        let message = format!("Operation cannot be fulfilled on {resource} \"{name}\": {cause}");
        let details = Some(details(plural, group, name));
        Self { details, ..Self::new(409, "Conflict", message) }
    }

    pub(super) fn forbidden(plural: &str, name: &str, cause: &str) -> Self {
        let subject =
            if name.is_empty() { plural.to_owned() } else { format!("{plural} \"{name}\"") };
        let details = Some(json!({"name": name, "kind": plural}));
        Self { details, ..Self::new(403, "Forbidden", format!("{subject} is forbidden: {cause}")) }
    }

    /// Refused fields of an object: pairs of a path and an explanation.
    pub(super) fn invalid(kind: &str, name: &str, causes: &[(String, String)]) -> Self {
        let texts: Vec<String> =
            causes.iter().map(|(field, message)| format!("{field}: {message}")).collect();
        let all = match texts.as_slice() {
            [one] => one.clone(),
            several => format!("[{}]", several.join(", ")),
        };
        let message = format!("{kind} \"{name}\" is invalid: {all}");
        let causes: Vec<Value> = causes
            .iter()
            .map(|(field, message)| {
                let reason = if message.starts_with("Required") {
                    "FieldValueRequired"
                } else {
                    "FieldValueInvalid"
                };
                json!({"reason": reason, "message": message, "field": field})
            })
            .collect();
        let details = Some(json!({"name": name, "kind": kind, "causes": causes}));
        Self { details, ..Self::new(422, "Invalid", message) }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(super) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    pub(super) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, "MethodNotAllowed", message)
    }

    /// A resource version that the server no longer has.
    pub(super) fn expired(asked: u64, oldest: u64) -> Self {
        Self::new(410, "Expired", format!("too old resource version: {asked} ({oldest})"))
    }

    pub(super) fn internal(message: impl AsRef<str>) -> Self {
        let message = message.as_ref();
        let details = Some(json!({"causes": [{"message": message}]}));
        let text = format!("Internal error occurred: {message}");
        Self { details, ..Self::new(500, "InternalError", text) }
    }

    pub(super) fn too_many_requests(seconds: u32) -> Self {
        let message = "too many requests, please try again later";
        Self {
            details: Some(json!({"retryAfterSeconds": seconds})),
            retry_after: Some(seconds),
            ..Self::new(429, "TooManyRequests", message)
        }
    }

    /// The `Status` object.
    pub fn to_value(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        });
        if let Some(details) = &self.details {
            status["details"] = details.clone();
        }
        status
    }
}

fn qualified(plural: &str, group: &str) -> String {
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}

fn details(plural: &str, group: &str, name: &str) -> Value {
    let mut details = json!({"name": name, "kind": plural});
    if !group.is_empty() {
        details["group"] = group.into();
    }
    details
}
