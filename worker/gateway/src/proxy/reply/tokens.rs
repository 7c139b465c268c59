//! Token ids and log probabilities, in every form that vLLM, SGLang and servers of completions give
//! them.

use serde_json::Value;

/// Prefix of a token's text that is its id, as vLLM writes it on request.
const ID_PREFIX: &str = "token_id:";

/// Ids of a prompt: beside the choices, in a choice, or in SGLang's details of a choice.
pub(super) fn prompt_ids(reply: &Value, choice: &Value) -> Option<Vec<u32>> {
    ids(&reply["prompt_token_ids"])
        .or_else(|| ids(&choice["prompt_token_ids"]))
        .or_else(|| column(&choice["meta_info"]["input_token_logprobs"], 1, id))
}

/// Ids of the sampled tokens of a choice; in a stream, of those in this part of it.
pub(super) fn sampled_ids(choice: &Value) -> Option<Vec<u32>> {
    ids(&choice["token_ids"])
        .or_else(|| ids(&choice["response_token_ids"]))
        .or_else(|| ids_in_text(&choice["logprobs"]))
}

/// Log probabilities of the sampled tokens of a choice; in a stream, of those in this part of it.
pub(super) fn sampled_logprobs(choice: &Value) -> Option<Vec<Option<f64>>> {
    let logprobs = &choice["logprobs"];
    if let Some(content) = logprobs["content"].as_array() {
        return Some(content.iter().map(|token| token["logprob"].as_f64()).collect());
    }
    Some(logprobs["token_logprobs"].as_array()?.iter().map(Value::as_f64).collect())
}

/// Ids and log probabilities in SGLang's details of a choice, which cover the whole reply so far.
pub(super) fn detailed(choice: &Value) -> Option<(Vec<u32>, Vec<Option<f64>>)> {
    let rows = &choice["meta_info"]["output_token_logprobs"];
    let logprobs = column(rows, 0, |value| Some(value.as_f64()))?;
    Some((column(rows, 1, id)?, logprobs))
}

/// Ids in the text of tokens.
fn ids_in_text(logprobs: &Value) -> Option<Vec<u32>> {
    let id = |text: &Value| text.as_str()?.strip_prefix(ID_PREFIX)?.parse().ok();
    if let Some(content) = logprobs["content"].as_array().filter(|content| !content.is_empty()) {
        return content.iter().map(|token| id(&token["token"])).collect();
    }
    let tokens = logprobs["tokens"].as_array().filter(|tokens| !tokens.is_empty())?;
    tokens.iter().map(id).collect()
}

/// A list of ids; `None` if it is anything else.
pub(super) fn ids(value: &Value) -> Option<Vec<u32>> {
    value.as_array()?.iter().map(id).collect()
}

fn id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

fn column<T>(rows: &Value, index: usize, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    rows.as_array()?.iter().map(|row| read(&row[index])).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn token_ids_are_read_in_every_form() {
        let vllm_chat = json!({"prompt_token_ids": [1, 2], "choices": [{"token_ids": [3, 4]}]});
        let choice = &vllm_chat["choices"][0];
        assert_eq!(prompt_ids(&vllm_chat, choice), Some(vec![1, 2]));
        assert_eq!(sampled_ids(choice), Some(vec![3, 4]));
        let sglang = json!({"prompt_token_ids": [5], "response_token_ids": [6]});
        assert_eq!(prompt_ids(&Value::Null, &sglang), Some(vec![5]));
        assert_eq!(sampled_ids(&sglang), Some(vec![6]));
        let text = json!({"logprobs": {"tokens": ["token_id:7", "token_id:8"]}});
        assert_eq!(sampled_ids(&text), Some(vec![7, 8]));
        let text = json!({"logprobs": {"content": [{"token": "token_id:9", "logprob": -1}]}});
        assert_eq!(sampled_ids(&text), Some(vec![9]));
        for none in [json!({}), json!({"token_ids": null}), json!({"token_ids": [1, -2]})] {
            assert_eq!(sampled_ids(&none), None, "{none}");
        }
        let words = json!({"logprobs": {"tokens": ["a", "token_id:8"]}});
        assert_eq!(sampled_ids(&words), None);
    }

    #[test]
    fn token_logprobs_are_read_in_every_form() {
        let chat = json!({"logprobs": {"content": [{"token": "a", "logprob": -0.5}]}});
        assert_eq!(sampled_logprobs(&chat), Some(vec![Some(-0.5)]));
        let completion = json!({"logprobs": {"token_logprobs": [null, -0.25]}});
        assert_eq!(sampled_logprobs(&completion), Some(vec![None, Some(-0.25)]));
        assert_eq!(sampled_logprobs(&json!({"logprobs": null})), None);
        let details = json!({"meta_info": {
            "input_token_logprobs": [[null, 1, null], [-1.0, 2, null]],
            "output_token_logprobs": [[-0.5, 3, null], [-0.75, 4, "x"]],
        }});
        let sampled = Some((vec![3, 4], vec![Some(-0.5), Some(-0.75)]));
        assert_eq!(detailed(&details), sampled);
        assert_eq!(prompt_ids(&Value::Null, &details), Some(vec![1, 2]));
    }
}
