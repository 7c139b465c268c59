//! Limits of a file that its size on disk does not imply: tasks are not trusted, and a small file can
//! describe much.

use std::cell::Cell;

use rollout_protocol::limits;
use serde_json::Value;

/// Most values of a file, at all depths: many more than its services need, few enough for work that
/// grows with their square.
const MAX_VALUES: usize = 10_000;

/// Longest key in bytes. Paths of keys are copied for every message.
const MAX_KEY_BYTES: usize = 1000;

/// Checks a document whose aliases and merges are resolved.
///
/// # Errors
/// The limit that it exceeds.
pub(super) fn check(document: &Value) -> Result<(), String> {
    let mut waiting = vec![document];
    let mut seen = 0;
    while let Some(value) = waiting.pop() {
        seen += 1;
        match value {
            Value::Array(items) => waiting.extend(items),
            Value::Object(map) => {
                if map.keys().any(|key| key.len() > MAX_KEY_BYTES) {
                    return Err(format!("a key is longer than {MAX_KEY_BYTES} bytes"));
                }
                waiting.extend(map.values());
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        if seen + waiting.len() > MAX_VALUES {
            return Err(format!("it has more than {MAX_VALUES} values"));
        }
    }
    Ok(())
}

/// Bytes that variables and files of variables may still add to a file.
#[derive(Debug)]
pub(super) struct VariableBytes(Cell<u64>);

impl Default for VariableBytes {
    fn default() -> Self {
        Self(Cell::new(limits::CONFIG_FILE_BYTES))
    }
}

impl VariableBytes {
    /// Takes bytes.
    ///
    /// # Errors
    /// The limit, if too few are left. Then none are left afterwards.
    pub(super) fn spend(&self, bytes: u64) -> Result<(), String> {
        let left = self.0.get().checked_sub(bytes);
        self.0.set(left.unwrap_or(0));
        let most = limits::CONFIG_FILE_BYTES;
        left.map(drop).ok_or_else(|| format!("the variables have more than {most} bytes in total"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn document_size_is_limited() {
        let items = |count: usize| json!({"a": vec![0; count]});
        assert_eq!(check(&items(MAX_VALUES - 2)), Ok(()));
        assert!(check(&items(MAX_VALUES - 1)).expect_err("too many").contains("10000 values"));
        let key = |bytes: usize| json!([{"k".repeat(bytes): 1}]);
        assert_eq!(check(&key(MAX_KEY_BYTES)), Ok(()));
        assert!(check(&key(MAX_KEY_BYTES + 1)).expect_err("too long").contains("1000 bytes"));
    }

    #[test]
    fn variable_bytes_are_spent_once() {
        let bytes = VariableBytes::default();
        assert_eq!(bytes.spend(limits::CONFIG_FILE_BYTES), Ok(()));
        assert!(bytes.spend(1).expect_err("none are left").contains("in total"));
    }
}
