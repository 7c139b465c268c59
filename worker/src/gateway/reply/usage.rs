//! Token counts of replies.

use rollout_protocol::record::TokenUsage;
use serde_json::Value;

/// Counts that the parts of a reply gave so far. A later part replaces the counts that it has.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct UsageCounts {
    input: Option<u64>,
    cached: Option<u64>,
    created: Option<u64>,
    output: Option<u64>,
    reasoning: Option<u64>,
    /// Whether the input excludes what the cache holds.
    excludes_cache: bool,
}

impl UsageCounts {
    /// Takes the `usage` of a reply, or of a part of it, in either dialect.
    pub(super) fn take(&mut self, usage: &Value) {
        let count = |path: &str| usage.pointer(path).and_then(Value::as_u64);
        let set = |present: &mut Option<u64>, new: Option<u64>| *present = new.or(*present);
        set(&mut self.input, count("/prompt_tokens"));
        set(&mut self.output, count("/completion_tokens"));
        set(&mut self.cached, count("/prompt_tokens_details/cached_tokens"));
        set(&mut self.reasoning, count("/completion_tokens_details/reasoning_tokens"));
        if count("/input_tokens").is_some() || count("/output_tokens").is_some() {
            self.excludes_cache = true;
            set(&mut self.input, count("/input_tokens"));
            set(&mut self.output, count("/output_tokens"));
            set(&mut self.cached, count("/cache_read_input_tokens"));
            set(&mut self.created, count("/cache_creation_input_tokens"));
        }
    }

    /// The counts, if there are any.
    pub(super) fn finish(self) -> Option<TokenUsage> {
        if self.input.is_none() && self.output.is_none() {
            return None;
        }
        let cached_input = self.cached.unwrap_or_default();
        let mut input = self.input.unwrap_or_default();
        if self.excludes_cache {
            let cache = cached_input.saturating_add(self.created.unwrap_or_default());
            input = input.saturating_add(cache);
        }
        Some(TokenUsage {
            input,
            cached_input,
            output: self.output.unwrap_or_default(),
            reasoning: self.reasoning.unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn usage_input_includes_cache_in_both_dialects() {
        let mut openai = UsageCounts::default();
        openai.take(&Value::Null);
        assert!(openai.finish().is_none());
        openai.take(&json!({
            "prompt_tokens": 100, "completion_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 60},
            "completion_tokens_details": {"reasoning_tokens": 3},
        }));
        let usage = TokenUsage { input: 100, cached_input: 60, output: 7, reasoning: 3 };
        assert_eq!(openai.finish(), Some(usage));

        let mut anthropic = UsageCounts::default();
        anthropic.take(&json!({
            "input_tokens": 10, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 30,
            "output_tokens": 1,
        }));
        anthropic.take(&json!({"output_tokens": 7}));
        let usage = TokenUsage { input: 100, cached_input: 60, output: 7, reasoning: 0 };
        assert_eq!(anthropic.finish(), Some(usage));
    }
}
