use rollout_protocol::record::{CallAttempt, CallLatency, CallTokens, ChoiceTokens};

use serde_json::Value;

use super::*;

fn new_call(request: &[u8]) -> NewCall<'static> {
    NewCall {
        upstream: "main",
        endpoint: ModelEndpoint::ChatCompletions,
        path: "/chat/completions",
        headers: BTreeMap::new(),
        request: Bytes::copy_from_slice(request),
        added: Vec::new(),
        wants_ids: false,
    }
}

fn ended(call: u64, end: CallEnd) -> CallEnded {
    CallEnded {
        call,
        ended_at: rollout_protocol::Timestamp::UNIX_EPOCH,
        end,
        upstream: None,
        status: Some(200),
        error: None,
        attempts: vec![CallAttempt { status: Some(200), ..CallAttempt::default() }],
        latency: CallLatency::default(),
        policy: None,
        model: None,
        finish_reasons: Vec::new(),
        usage: None,
        cost: None,
        tokens: None,
        reply: CallBody::default(),
    }
}

fn reply(prompt: &[u32], ids: &[u32]) -> ParsedReply {
    let choice = ChoiceTokens { index: 0, ids: Some(ids.to_vec()), ..ChoiceTokens::default() };
    let tokens = CallTokens {
        prompt_ids: Some(prompt.to_vec()),
        choices: vec![choice],
        ..CallTokens::default()
    };
    ParsedReply { tokens: Some(tokens), finished: true, ..ParsedReply::default() }
}

async fn record(recorder: &Recorder, request: &[u8], end: CallEnd, reply: ParsedReply) -> u64 {
    let begun = recorder.begin(new_call(request)).await.expect("begun");
    let number = begun.number;
    let body = Some(&b"{}"[..]);
    let ended = ended(number, end);
    recorder.end(begun, RequestEnd::Answered, ended, (2, body), reply).await.expect("ended");
    number
}

fn lines(files: &[PathBuf]) -> Vec<Value> {
    let text = fs::read_to_string(&files[0]).expect("calls");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[tokio::test]
async fn repeated_request_names_the_incomplete_call_only() {
    let directory = tempfile::tempdir().expect("a directory");
    let recorder = Recorder::create(directory.path(), Redactor::default()).await.expect("made");
    for end in [CallEnd::Cut, CallEnd::Complete, CallEnd::Complete] {
        record(&recorder, b"{}", end, ParsedReply::default()).await;
    }
    let (summary, files) = recorder.finish().await;
    let lines = lines(&files);
    let repeats: Vec<_> = lines.iter().filter(|line| line["type"] == "begun").collect();
    let repeats: Vec<_> = repeats.iter().map(|line| line["repeats"].as_u64()).collect();
    assert_eq!(repeats, [None, Some(1), None]);
    assert_eq!((summary.calls, summary.cut_calls), (3, 1));
}

#[tokio::test]
async fn secrets_are_masked_and_digests_are_of_true_bytes() {
    let directory = tempfile::tempdir().expect("a directory");
    let redactor = Redactor::new([("KEY", "sk-very-secret")]);
    let recorder = Recorder::create(directory.path(), redactor).await.expect("made");
    let request = br#"{"messages":[{"role":"user","content":"sk-very-secret"}]}"#;
    record(&recorder, request, CallEnd::Complete, ParsedReply::default()).await;
    let lines = lines(&recorder.finish().await.1);
    let body = &lines[0]["request"];
    assert!(body["text"].as_str().is_some_and(|text| text.contains("[redacted:KEY]")));
    assert_eq!(body["digest"], Digest::sha256(request).to_string());
    assert_eq!(body["bytes"], request.len());
}

#[tokio::test]
async fn trajectories_are_in_order_of_begin_although_calls_end_in_another() {
    let directory = tempfile::tempdir().expect("a directory");
    let recorder = Recorder::create(directory.path(), Redactor::default()).await.expect("made");
    let first = recorder.begin(new_call(b"{}")).await.expect("begun");
    let second = recorder.begin(new_call(b"[]")).await.expect("begun");
    for (begun, reply) in [(second, reply(&[1, 2, 3], &[4])), (first, reply(&[1], &[2]))] {
        let ended = ended(begun.number, CallEnd::Complete);
        recorder.end(begun, RequestEnd::Answered, ended, (0, None), reply).await.expect("ended");
    }
    let (summary, files) = recorder.finish().await;
    let text = fs::read_to_string(&files[1]).expect("trajectories");
    let trajectory: Value = serde_json::from_str(text.trim()).expect("one");
    assert_eq!(trajectory["calls"], serde_json::json!([1, 2]));
    assert_eq!(trajectory["mask"], serde_json::json!([0, 1, 0, 1]));
    assert_eq!(summary.trajectories, 1);
}

#[tokio::test]
async fn request_that_is_too_long_is_recorded_but_not_merged() {
    let directory = tempfile::tempdir().expect("a directory");
    let recorder = Recorder::create(directory.path(), Redactor::default()).await.expect("made");
    let message = |text: &str| serde_json::json!({"role": "user", "content": text});
    for length in [1, MERGED_REQUEST_BYTES] {
        let request = serde_json::json!({"messages": [message(&"x".repeat(length))]}).to_string();
        let reply =
            ParsedReply { messages: vec![message("y")], finished: true, ..ParsedReply::default() };
        record(&recorder, request.as_bytes(), CallEnd::Complete, reply).await;
    }
    assert_eq!(recorder.state().items, 2, "the message and the reply of the first call");
    let (summary, _) = recorder.finish().await;
    assert_eq!((summary.calls, summary.trajectories), (2, 1));
}

#[tokio::test]
async fn items_of_calls_that_end_incomplete_are_released() {
    let directory = tempfile::tempdir().expect("a directory");
    let recorder = Recorder::create(directory.path(), Redactor::default()).await.expect("made");
    let begun = recorder.begin(new_call(br#"{"messages":[1,2,3]}"#)).await.expect("begun");
    assert_eq!(recorder.state().items, 3);
    let ended = ended(begun.number, CallEnd::Cut);
    let reply = ParsedReply::default();
    recorder.end(begun, RequestEnd::Answered, ended, (0, None), reply).await.expect("ended");
    assert_eq!(recorder.state().items, 0);
}

#[test]
fn prompt_ids_are_read_in_both_forms() {
    let ids = |request: &str| prompt_ids(ModelEndpoint::Completions, request.as_bytes());
    assert_eq!(ids(r#"{"prompt":[1,2],"n":1}"#), Some(vec![1, 2]));
    assert_eq!(ids(r#"{"prompt":[[1,2]]}"#), Some(vec![1, 2]));
    for other in [r#"{"prompt":"text"}"#, r#"{"prompt":[[1],[2]]}"#, r#"{"prompt":[-1]}"#, "{}"] {
        assert_eq!(ids(other), None, "{other}");
    }
}

#[tokio::test]
async fn long_lists_of_tokens_are_in_the_binary_file_and_short_ones_in_the_lines() {
    let directory = tempfile::tempdir().expect("a directory");
    let recorder = Recorder::create(directory.path(), Redactor::default()).await.expect("made");
    let prompt: Vec<u32> = (0..5000).collect();
    record(&recorder, b"{\"a\":1}", CallEnd::Complete, reply(&prompt, &[7, 8])).await;
    let longer = [prompt.clone(), vec![7, 8, 9]].concat();
    record(&recorder, b"{\"a\":2}", CallEnd::Complete, reply(&longer, &[10])).await;
    record(&recorder, b"{\"a\":3}", CallEnd::Complete, reply(&[1], &[2])).await;
    let (_, files) = recorder.finish().await;
    let names: Vec<_> = files.iter().filter_map(|file| file.file_name()?.to_str()).collect();
    assert_eq!(names, ["calls.jsonl", "trajectories.jsonl", "tokens.bin"]);
    let file = fs::read(&files[2]).expect("tokens");
    let tokens = |call: usize| -> CallTokens {
        let ended = lines(&files).into_iter().filter(|line| line["type"] == "ended").nth(call);
        serde_json::from_value(ended.expect("a line")["tokens"].clone()).expect("tokens")
    };
    let mut first = tokens(0);
    assert_eq!((&first.prompt_ids, &first.choices[0].ids), (&None, &None));
    first.unpack(&file).expect("whole");
    assert_eq!(first.prompt_ids, Some(prompt));
    assert_eq!(first.choices[0].ids, Some(vec![7, 8]));
    assert_eq!(tokens(2).prompt_ids, Some(vec![1]));
    let text = fs::read_to_string(&files[1]).expect("trajectories");
    let mut found: Vec<TrajectoryRecord> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!(text.len() < 2000 && file.len() > 4 * 4 * 5000, "{} {}", text.len(), file.len());
    found[0].unpack(&file).expect("whole");
    assert_eq!(found[0].calls, [1, 2]);
    assert_eq!(found[0].ids, [longer, vec![10]].concat());
    assert_eq!(found[0].mask.iter().map(|bit| u32::from(*bit)).sum::<u32>(), 3);
    assert_eq!((found[1].ids.clone(), found[1].mask.clone()), (vec![1, 2], vec![0, 1]));
}

#[tokio::test]
async fn answered_call_without_known_cost_counts_as_unpriced_and_refused_one_does_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let recorder = Recorder::create(directory.path(), Redactor::default()).await.expect("made");
    for (status, cost) in [(200, None), (200, Some(0.25)), (429, None)] {
        let begun = recorder.begin(new_call(b"{}")).await.expect("begun");
        let ended = ended(begun.number, CallEnd::Complete);
        let ended = CallEnded { status: Some(status), cost, ..ended };
        let (request, reply) = (RequestEnd::of_status(status), ParsedReply::default());
        recorder.end(begun, request, ended, (0, None), reply).await.expect("ended");
    }
    let (summary, _) = recorder.finish().await;
    assert_eq!((summary.unpriced_calls, summary.failed_calls), (1, 1));
    assert!((summary.cost - 0.25).abs() < 1e-12);
}

#[tokio::test]
async fn answered_call_without_the_wanted_token_ids_is_counted() {
    let directory = tempfile::tempdir().expect("a directory");
    let recorder = Recorder::create(directory.path(), Redactor::default()).await.expect("made");
    let without_prompt = || {
        let tokens =
            reply(&[1], &[2]).tokens.map(|tokens| CallTokens { prompt_ids: None, ..tokens });
        ParsedReply { tokens, ..reply(&[1], &[2]) }
    };
    let none = ParsedReply::default;
    let any = &b"{}"[..];
    let by_ids = &br#"{"prompt":[1,2]}"#[..];
    let (chat, completions) = (ModelEndpoint::ChatCompletions, ModelEndpoint::Completions);
    let complete = CallEnd::Complete;
    for (wants_ids, endpoint, request, end, status, reply) in [
        (true, chat, any, complete, 200, none()),
        (true, chat, any, complete, 200, without_prompt()),
        (true, completions, by_ids, complete, 200, without_prompt()),
        (true, chat, any, complete, 200, reply(&[1], &[2])),
        (true, chat, any, complete, 500, none()),
        (true, chat, any, CallEnd::Cut, 200, none()),
        (true, ModelEndpoint::CountTokens, any, complete, 200, none()),
        (false, chat, any, complete, 200, none()),
    ] {
        let call = NewCall { wants_ids, endpoint, ..new_call(request) };
        let begun = recorder.begin(call).await.expect("begun");
        let ended = CallEnded { status: Some(status), ..ended(begun.number, end) };
        let of_request = RequestEnd::of_status(status);
        recorder.end(begun, of_request, ended, (0, None), reply).await.expect("ended");
    }
    let (summary, _) = recorder.finish().await;
    assert_eq!((summary.calls, summary.calls_without_ids), (8, 2));
    assert_eq!(summary.model_use().calls_without_ids, 2);
}
