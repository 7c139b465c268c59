//! Token counts of replies.

use rollout_protocol::record::TokenUsage;
use serde_json::Value;

/// The largest number up to which a float has every whole one: 2^53.
const MAX_WHOLE: f64 = 9_007_199_254_740_992.0;

/// Counts that the parts of a reply gave so far. A later part replaces the counts that it has.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct UsageCounts {
    input: Option<u64>,
    cached: Option<u64>,
    created: Option<u64>,
    output: Option<u64>,
    reasoning: Option<u64>,
    tool_results: Option<u64>,
    /// Whether the input excludes what the cache holds.
    excludes_cache: bool,
    /// Whether the output excludes reasoning.
    excludes_reasoning: bool,
    /// Whether the server leaves out counts that are zero.
    omits_zeros: bool,
    /// Whether the newest part with the count of the input, and that of the output, has `null` there: an
    /// earlier count, such as that of the start of a stream, is not that of the reply.
    is_null: [bool; 2],
    /// Whether a count that belongs to the input or the output is none, so that both are unknown.
    is_unreadable: bool,
}

impl UsageCounts {
    /// Takes the `usage` of an OpenAI completion, or of a part of it.
    pub(super) fn take_openai(&mut self, usage: &Value) {
        let readable =
            [self.set_input(usage, "/prompt_tokens"), self.set_output(usage, "/completion_tokens")];
        self.is_unreadable |= readable.contains(&false);
        set(&mut self.cached, usage, "/prompt_tokens_details/cached_tokens");
        set(&mut self.reasoning, usage, "/completion_tokens_details/reasoning_tokens");
    }

    /// Takes the `usage` of an OpenAI response.
    pub(super) fn take_responses(&mut self, usage: &Value) {
        let readable =
            [self.set_input(usage, "/input_tokens"), self.set_output(usage, "/output_tokens")];
        self.is_unreadable |= readable.contains(&false);
        set(&mut self.cached, usage, "/input_tokens_details/cached_tokens");
        set(&mut self.reasoning, usage, "/output_tokens_details/reasoning_tokens");
    }

    /// Takes the `usage` of an Anthropic message, or of a part of it. Its input excludes what the
    /// cache holds.
    pub(super) fn take_anthropic(&mut self, usage: &Value) {
        let readable = [
            // The end of a stream may have `null` for an input that its start has.
            set(&mut self.input, usage, "/input_tokens"),
            self.set_output(usage, "/output_tokens"),
            set(&mut self.cached, usage, "/cache_read_input_tokens"),
            set(&mut self.created, usage, "/cache_creation_input_tokens"),
        ];
        self.is_unreadable |= readable.contains(&false);
        self.excludes_cache = true;
    }

    /// Takes the `usageMetadata` of Gemini. Its output excludes reasoning, and its prompt excludes
    /// the results of tools that the server ran.
    pub(super) fn take_gemini(&mut self, usage: &Value) {
        let readable = [
            self.set_input(usage, "/promptTokenCount"),
            self.set_output(usage, "/candidatesTokenCount"),
            set(&mut self.reasoning, usage, "/thoughtsTokenCount"),
            set(&mut self.tool_results, usage, "/toolUsePromptTokenCount"),
        ];
        self.is_unreadable |= readable.contains(&false);
        set(&mut self.cached, usage, "/cachedContentTokenCount");
        self.excludes_reasoning = true;
        self.omits_zeros = true;
    }

    fn set_input(&mut self, usage: &Value, path: &str) -> bool {
        note_null(&mut self.is_null[0], usage, path);
        set(&mut self.input, usage, path)
    }

    fn set_output(&mut self, usage: &Value, path: &str) -> bool {
        note_null(&mut self.is_null[1], usage, path);
        set(&mut self.output, usage, path)
    }

    /// The counts, if the reply has both that of the input and that of the output, and if each of them is a
    /// count.
    pub(super) fn finish(self) -> Option<TokenUsage> {
        let known = [self.input, self.output].into_iter().flatten().count();
        let needed = if self.omits_zeros { 1 } else { 2 };
        if self.is_unreadable || self.is_null.contains(&true) || known < needed {
            return None;
        }
        let cached_input = self.cached.unwrap_or_default();
        let reasoning = self.reasoning.unwrap_or_default();
        let mut input = self.input.unwrap_or_default();
        input = input.saturating_add(self.tool_results.unwrap_or_default());
        let written_input = self.created.unwrap_or_default();
        if self.excludes_cache {
            let cache = cached_input.saturating_add(written_input);
            input = input.saturating_add(cache);
        }
        let mut output = self.output.unwrap_or_default();
        if self.excludes_reasoning {
            output = output.saturating_add(reasoning);
        }
        Some(TokenUsage { input, cached_input, written_input, output, reasoning })
    }
}

/// Notes whether a part that has a count has `null` there.
fn note_null(is_null: &mut bool, usage: &Value, path: &str) {
    if let Some(value) = usage.pointer(path) {
        *is_null = value.is_null();
    }
}

/// Replaces a count by a newer one, if there is one. False if something else is in its place.
fn set(present: &mut Option<u64>, usage: &Value, path: &str) -> bool {
    let Some(value) = usage.pointer(path).filter(|value| !value.is_null()) else { return true };
    let newer = count(value);
    *present = newer.or(*present);
    newer.is_some()
}

/// The count of a value, which may be a whole number with a fraction of zero, such as `12.0`.
fn count(value: &Value) -> Option<u64> {
    let is_whole = |number: &f64| number.fract() == 0.0 && (0.0..=MAX_WHOLE).contains(number);
    value.as_u64().or_else(|| value.as_f64().filter(is_whole).map(|number| number as u64))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn usage_with_something_else_than_a_count_is_unknown() {
        for output in [json!(-5), json!(0.5), json!(-1.0), json!(1e17), json!("7"), json!([7])] {
            let mut openai = UsageCounts::default();
            openai.take_openai(&json!({"prompt_tokens": 9, "completion_tokens": output}));
            assert!(openai.finish().is_none(), "{output}");
            let mut gemini = UsageCounts::default();
            gemini.take_gemini(&json!({"promptTokenCount": 9, "thoughtsTokenCount": output}));
            assert!(gemini.finish().is_none(), "{output}");
        }
        let mut openai = UsageCounts::default();
        let details = json!({"cached_tokens": "some"});
        openai.take_openai(&json!({
            "prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": details,
        }));
        assert_eq!(openai.finish().map(|usage| (usage.input, usage.output)), Some((9, 4)));
    }

    #[test]
    fn usage_without_one_of_its_two_counts_is_unknown_unless_zeros_are_left_out() {
        for usage in [
            json!({"prompt_tokens": 9, "completion_tokens": null}),
            json!({"prompt_tokens": 9}),
            json!({"completion_tokens": 4}),
        ] {
            let mut openai = UsageCounts::default();
            openai.take_openai(&usage);
            assert!(openai.finish().is_none(), "{usage}");
        }
        let mut responses = UsageCounts::default();
        responses.take_responses(&json!({"input_tokens": 9, "output_tokens": null}));
        assert!(responses.finish().is_none());
        let mut anthropic = UsageCounts::default();
        anthropic.take_anthropic(&json!({"input_tokens": 9}));
        assert!(anthropic.finish().is_none());
        anthropic.take_anthropic(&json!({"output_tokens": 4}));
        assert_eq!(anthropic.finish().map(|usage| (usage.input, usage.output)), Some((9, 4)));
        let mut gemini = UsageCounts::default();
        gemini.take_gemini(&json!({"promptTokenCount": 9}));
        assert_eq!(gemini.finish().map(|usage| (usage.input, usage.output)), Some((9, 0)));
        // A count of zero is left out, and never null.
        gemini.take_gemini(&json!({"promptTokenCount": 9, "candidatesTokenCount": null}));
        assert!(gemini.finish().is_none());
    }

    #[test]
    fn usage_whose_last_part_has_null_is_unknown_until_a_later_part_has_the_count() {
        let known = |counts: UsageCounts| counts.finish().map(|usage| (usage.input, usage.output));
        let mut openai = UsageCounts::default();
        openai.take_openai(&json!({"prompt_tokens": 9, "completion_tokens": 1}));
        openai.take_openai(&Value::Null);
        assert_eq!(known(openai), Some((9, 1)), "a part without usage");
        openai.take_openai(&json!({"prompt_tokens": 9, "completion_tokens": null}));
        assert_eq!(known(openai), None);
        openai.take_openai(&json!({"completion_tokens": 4}));
        assert_eq!(known(openai), Some((9, 4)));

        let mut responses = UsageCounts::default();
        responses.take_responses(&json!({"input_tokens": 9, "output_tokens": 4}));
        responses.take_responses(&json!({"input_tokens": null, "output_tokens": 4}));
        assert_eq!(known(responses), None);

        let mut anthropic = UsageCounts::default();
        anthropic.take_anthropic(&json!({"input_tokens": 9, "output_tokens": 1}));
        anthropic.take_anthropic(&json!({"input_tokens": null, "output_tokens": null}));
        assert_eq!(known(anthropic), None);
        anthropic.take_anthropic(&json!({"input_tokens": null, "output_tokens": 4}));
        assert_eq!(known(anthropic), Some((9, 4)), "the input is that of the start");
    }

    #[test]
    fn usage_as_whole_floats_is_counted() {
        let mut openai = UsageCounts::default();
        openai.take_openai(&json!({"prompt_tokens": 12.0, "completion_tokens": 0.0}));
        assert_eq!(openai.finish().map(|usage| (usage.input, usage.output)), Some((12, 0)));
        assert_eq!(count(&json!(MAX_WHOLE)), Some(1 << 53));
        assert_eq!(count(&json!(u64::MAX)), Some(u64::MAX));
    }

    #[test]
    fn usage_input_includes_cache_and_output_includes_reasoning_in_all_dialects() {
        let all =
            TokenUsage { input: 100, cached_input: 60, written_input: 0, output: 7, reasoning: 3 };
        let mut openai = UsageCounts::default();
        openai.take_openai(&Value::Null);
        assert!(openai.finish().is_none());
        openai.take_openai(&json!({
            "prompt_tokens": 100, "completion_tokens": 7,
            "prompt_tokens_details": {"cached_tokens": 60},
            "completion_tokens_details": {"reasoning_tokens": 3},
        }));
        assert_eq!(openai.finish(), Some(all));

        let mut responses = UsageCounts::default();
        responses.take_responses(&json!({
            "input_tokens": 100, "output_tokens": 7, "total_tokens": 107,
            "input_tokens_details": {"cached_tokens": 60},
            "output_tokens_details": {"reasoning_tokens": 3},
        }));
        assert_eq!(responses.finish(), Some(all));

        let mut gemini = UsageCounts::default();
        gemini.take_gemini(&json!({"promptTokenCount": 90, "totalTokenCount": 90}));
        gemini.take_gemini(&json!({
            "promptTokenCount": 90, "toolUsePromptTokenCount": 10, "cachedContentTokenCount": 60,
            "candidatesTokenCount": 4, "thoughtsTokenCount": 3, "totalTokenCount": 107,
        }));
        assert_eq!(gemini.finish(), Some(all));

        let mut anthropic = UsageCounts::default();
        anthropic.take_anthropic(&json!({
            "input_tokens": 10, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 30,
            "output_tokens": 1,
        }));
        anthropic.take_anthropic(&json!({"output_tokens": 7}));
        let usage = TokenUsage { written_input: 30, reasoning: 0, ..all };
        assert_eq!(anthropic.finish(), Some(usage));
    }
}
