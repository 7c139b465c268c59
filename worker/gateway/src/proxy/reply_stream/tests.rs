use proptest::prelude::*;
use rollout_protocol::spec::gateway::CaptureMode;

use super::*;

const CHAT: ModelEndpoint = ModelEndpoint::ChatCompletions;

const STREAM: &str = "data: {\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\
    \"token_ids\":[1],\"logprobs\":{\"content\":[{\"logprob\":-1.0}]}}]}\n\n: ping\n\n\
    data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],\"usage\":null}\n\n\
    data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1}}\n\n\
    data: [DONE]\n\n";

/// Streams of the other endpoints, and where their last events begin. Their texts have marks of last
/// events, too.
const OTHER_STREAMS: [(ModelEndpoint, &str, &str); 3] = [
    (
        ModelEndpoint::Responses,
        "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{}}\n\n\
         data: {\"type\":\"response.output_text.delta\",\"delta\":\"response.completed\"}\n\n\
         event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":\
         {\"status\":\"completed\",\"output\":[]}}\n\n",
        "event: response.completed",
    ),
    (
        ModelEndpoint::Messages,
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n\
         data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"message_stop\"}}\n\n\
         event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        "event: message_stop",
    ),
    (
        ModelEndpoint::GenerateContent,
        "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"finishReason\"}]}}]}\r\n\r\n\
         data: {\"candidates\":[{\"finishReason\":\"STOP\"}],\"x\":1}\r\n\r\n\
         data: {\"usageMetadata\":{\"promptTokenCount\":1}}\r\n\r\n",
        "data: {\"candidates\":[{\"finishReason\"",
    ),
];

fn pieces<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

fn pass(form: ReplyForm, added: Added, pieces: &[&[u8]]) -> (Vec<u8>, EndedReply) {
    let mut stream = ReplyStream::new(CHAT, form, added);
    let now = pieces.iter().flat_map(|piece| stream.push(piece)).collect();
    (now, stream.finish())
}

fn all_added() -> Added {
    let body = br#"{"stream":true}"#;
    capture::extend_request(CHAT, CaptureMode::Tokens, body).expect("extended").1
}

#[test]
fn stream_event_is_passed_on_before_next_one_comes() {
    let mut stream = ReplyStream::new(CHAT, ReplyForm::Events, Added::default());
    let first = STREAM.find("\n\n").expect("an event") + 2;
    assert_eq!(stream.push(&STREAM.as_bytes()[..first]).len(), first);
    assert_eq!(stream.push(b"data: half").len(), 10, "parts of events are not held");
    let mut reduced = ReplyStream::new(CHAT, ReplyForm::Events, all_added());
    let event = reduced.push(&STREAM.as_bytes()[..first]);
    let left = "data: {\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\
        \"logprobs\":null}]}\n\n";
    assert_eq!(String::from_utf8(event).expect("UTF-8"), left);
}

#[test]
fn stream_end_is_held_even_if_clients_would_not_wait_for_its_empty_line() {
    let mut stream = ReplyStream::new(CHAT, ReplyForm::Events, Added::default());
    assert!(stream.push(b"data: [DONE]\n").is_empty());
    assert!(!stream.is_terminal());
    assert!(stream.push(b"\n").is_empty());
    assert!(stream.is_terminal());
    assert_eq!(stream.finish().held, b"data: [DONE]\n\n");
}

#[test]
fn stream_of_each_endpoint_is_not_held_before_its_last_event() {
    for (endpoint, text, mark) in OTHER_STREAMS {
        let mut stream = ReplyStream::new(endpoint, ReplyForm::Events, Added::default());
        let last = text.find(mark).expect("a last event");
        let mut now = Vec::new();
        for (at, byte) in text.bytes().enumerate() {
            now.extend(stream.push(&[byte]));
            // Text that looks like the end is held as long as its event is not whole.
            let is_end = text[..=at].ends_with("\n\n") || text[..=at].ends_with("\n\r\n");
            let is_between = at < last && is_end;
            assert!(!is_between || now.len() == at + 1, "{endpoint:?} holds at {at}");
        }
        assert!((last..last + mark.len()).contains(&now.len()), "{endpoint:?} {}", now.len());
        assert!(stream.is_terminal());
        let ended = stream.finish();
        assert_eq!([now, ended.held].concat(), text.as_bytes());
        assert!(ended.parsed.finished);
    }
}

#[test]
fn stream_without_last_event_is_not_finished() {
    for (endpoint, text, last) in OTHER_STREAMS {
        let text = &text[..text.find(last).expect("a last event")];
        let mut stream = ReplyStream::new(endpoint, ReplyForm::Events, Added::default());
        assert_eq!(stream.push(text.as_bytes()), text.as_bytes());
        assert!(!stream.finish().parsed.finished, "{endpoint:?}");
    }
}

#[test]
fn error_reply_loses_secrets() {
    let redactor = Redactor::new([("KEY", "sk-very-secret")]);
    let body = b"{\"error\":\"no key sk-very-secret\"}";
    let (now, ended) = pass(ReplyForm::Error(redactor), Added::default(), &[body]);
    assert!(now.is_empty());
    assert_eq!(ended.held, b"{\"error\":\"no key [redacted:KEY]\"}");
}

proptest! {
    #[test]
    fn stream_bytes_and_record_do_not_depend_on_pieces(
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        events in any::<bool>(),
        changes in any::<bool>(),
    ) {
        let bytes = STREAM.as_bytes();
        let form = || if events { ReplyForm::Events } else { ReplyForm::Pieces };
        let added = if changes { all_added() } else { Added::default() };
        let (now, ended) = pass(form(), added, &pieces(bytes, &cuts));
        let (whole_now, whole) = pass(form(), added, &[bytes]);
        prop_assert_eq!(&ended.parsed, &whole.parsed);
        prop_assert_eq!(ended.body.as_deref(), Some(bytes));
        let all: Vec<u8> = [now.clone(), ended.held].concat();
        prop_assert_eq!(&all, &[whole_now, whole.held].concat());
        if !changes {
            prop_assert_eq!(&all, bytes, "forwarded byte for byte");
        }
        let seen = String::from_utf8_lossy(&now);
        prop_assert!(!events || !seen.contains("[DONE]"), "the last event is held");
        prop_assert!(now.len() < bytes.len());
    }
    #[test]
    fn stream_of_each_endpoint_does_not_depend_on_pieces(
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        which in 0..OTHER_STREAMS.len(),
    ) {
        let (endpoint, text, mark) = OTHER_STREAMS[which];
        let last = text.find(mark).expect("a last event");
        let mut stream = ReplyStream::new(endpoint, ReplyForm::Events, Added::default());
        let pieces = pieces(text.as_bytes(), &cuts);
        let now: Vec<u8> = pieces.iter().flat_map(|piece| stream.push(piece)).collect();
        prop_assert!((last..last + mark.len()).contains(&now.len()), "{}", now.len());
        let ended = stream.finish();
        prop_assert_eq!([now, ended.held].concat(), text.as_bytes());
        let mut whole = ReplyStream::new(endpoint, ReplyForm::Events, Added::default());
        whole.push(text.as_bytes());
        prop_assert_eq!(ended.parsed, whole.finish().parsed);
    }
}
