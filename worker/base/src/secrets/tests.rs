use std::collections::{BTreeMap, BTreeSet};

use data_encoding::{BASE64, BASE64URL, HEXLOWER};
use proptest::prelude::*;
use rollout_protocol::template::Template;

use super::{RedactingStream, RedactionStyle, Redactor, TrialVariables, encodings};

const SECRET: &str = "s3cr3t+/\"key\" ü";

fn redactor() -> Redactor {
    Redactor::new([("KEY", SECRET)])
}

fn stream(mut stream: RedactingStream, pieces: &[&[u8]]) -> String {
    let mut clean = Vec::new();
    for piece in pieces {
        stream.push(piece, &mut clean);
    }
    stream.finish(&mut clean);
    String::from_utf8(clean).expect("text")
}

#[test]
fn secret_in_json_hex_or_url_encoding_is_redacted() {
    let json = serde_json::to_string(&serde_json::json!({ "k": SECRET })).expect("JSON");
    let nested = serde_json::to_string(&json).expect("JSON");
    for text in [
        SECRET.to_owned(),
        json,
        nested,
        "s3cr3t+/\\\"key\\\" \\u00fc".to_owned(),
        HEXLOWER.encode(SECRET.as_bytes()),
        HEXLOWER.encode(SECRET.as_bytes()).to_uppercase(),
        "s3cr3t%2B%2F%22key%22%20%C3%BC".to_owned(),
        "s3cr3t%2b%2f%22key%22%20%c3%bc".to_owned(),
        "s3cr3t%2B%2F%22key%22+%C3%BC".to_owned(),
    ] {
        let clean = redactor().text(&format!("<{text}>"));
        assert!(clean.contains("[redacted:KEY]"), "{text}: {clean}");
        assert!(!clean.contains("key") && !clean.contains("6b6579"), "{text}: {clean}");
    }
}

#[test]
fn secret_shell_quoted_or_dumped_is_redacted() {
    const SECRET: &str = "it's $a \"pass\" `w` \\ #1 \u{fc}";
    let programs = [
        "printf '%q' \"$KEY\"",
        "LC_ALL=C printf '%q' \"$KEY\"",
        "printf 'x%q' \"$KEY\"",
        "echo \"${KEY@Q}\"",
        "set | grep ^KEY=",
        "declare -p KEY",
        "od -An -tx1 -v <<<\"$KEY\"",
        "od -tx1 <<<\"12345$KEY\"",
        "od -x <<<\"$KEY\"",
        "od -x <<<\"1$KEY\"",
        "for ((i = 0; i < ${#KEY}; i++)); do LC_ALL=C printf '%%%02X' \"'${KEY:i:1}\"; done",
        "printf '%s' \"$KEY\" | od -An -tx1 -v | tr -d '\\n' | sed 's/ /\\\\x/g'",
        "printf '%s' \"$KEY\" | od -An -tx1 -v | tr -s ' \\n' ':'",
    ];
    let redactor = Redactor::new([("KEY", SECRET)]);
    for program in programs {
        let mut bash = std::process::Command::new("bash");
        bash.args(["-c", program]).env("KEY", SECRET).env("LC_ALL", "C.UTF-8");
        let printed = bash.output().expect("bash runs").stdout;
        let mut clean = Vec::new();
        redactor.bytes(&printed, 0, &mut clean);
        let (printed, clean) = (String::from_utf8_lossy(&printed), String::from_utf8_lossy(&clean));
        assert!(clean.contains("[redacted:KEY]"), "{program}: {printed} -> {clean}");
        // `pass`, as it is and as numbers in either byte order.
        for part in ["pass", "70 61 73 73", "7061 7373", "6170 7373", "%70%61"] {
            let shown = clean.to_lowercase().contains(part);
            assert!(!shown, "{program}: {printed} -> {clean}");
        }
    }
}

#[test]
fn secret_in_base64_at_any_offset_is_redacted() {
    for before in ["", "a", "ab", "abc", "user:"] {
        for after in ["", "z", "zz"] {
            for encoding in [BASE64, BASE64URL] {
                let text = encoding.encode(format!("{before}{SECRET}{after}").as_bytes());
                let clean = redactor().text(&text);
                assert!(clean.contains("[redacted:KEY]"), "{before}|{after}: {clean}");
                assert!(clean.len() <= before.len() * 2 + after.len() * 2 + 22, "{clean}");
            }
        }
    }
}

#[test]
fn secret_split_between_chunks_is_redacted() {
    let text = format!("a {SECRET}{SECRET} b {SECRET} c");
    for cut in 0..=text.len() {
        let (one, two) = text.as_bytes().split_at(cut);
        let clean = stream(redactor().stream(RedactionStyle::Marker), &[one, two]);
        assert_eq!(clean, "a [redacted:KEY] b [redacted:KEY] c", "cut at {cut}");
        let clean = stream(redactor().stream(RedactionStyle::Mask), &[one, two]);
        assert_eq!(clean.len(), text.len());
        assert!(clean.starts_with("a ***") && clean.ends_with("*** c"), "{clean}");
    }
}

#[test]
fn secret_across_start_offset_is_redacted() {
    let redactor = redactor();
    let text = format!("{SECRET} rest").into_bytes();
    for cut in 0..SECRET.len() {
        let mut clean = Vec::new();
        redactor.bytes(&text, cut, &mut clean);
        assert_eq!(clean, b"[redacted:KEY] rest", "{cut}");
    }
}

#[test]
fn redactor_with_short_or_no_values_changes_nothing() {
    assert!(Redactor::new([("A", "abc"), ("B", "")]).is_empty());
    let long = Redactor::new([("A", "abcdefg")]);
    let clean = long.text(&BASE64.encode(b"abcdefg"));
    assert_eq!(clean, BASE64.encode(b"abcdefg"), "seven bytes are too few for Base64");
    let clean = stream(Redactor::default().stream(RedactionStyle::Marker), &[b"abc", b"def"]);
    assert_eq!(clean, "abcdef");
}

#[test]
fn variable_not_exported_is_not_expanded() {
    let all = [("API_KEY", "k-123456"), ("API_URL", "http://x"), ("HOME", "/root")];
    let all = all.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let variables = TrialVariables::select(["API_*", "PATH"], all);
    assert_eq!(variables.names().collect::<Vec<_>>(), ["API_KEY", "API_URL"]);
    assert!(!format!("{variables:?}").contains("123456"));

    let layer = |pairs: &[(&str, &str)]| -> BTreeMap<String, Template> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), Template::new(*value))).collect()
    };
    let task = layer(&[("A", "task"), ("B", "Bearer ${API_KEY}")]);
    let agent = layer(&[("A", "agent"), ("C", "${HOME:-none}")]);
    let mut env = BTreeMap::new();
    for layer in [&task, &agent] {
        variables.add(layer, &mut env).expect("everything is set");
    }
    let pairs: Vec<String> = env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(pairs, ["A=agent", "B=Bearer k-123456", "C=none"]);
    let none = BTreeSet::new();
    let templates = || task.values().chain(agent.values());
    let redactor = variables.redactor(templates(), &none, &[]).expect("it is set");
    assert_eq!(redactor.text("k-123456 http://x none"), "[redacted:API_KEY] http://x none");

    let unset = layer(&[("X", "${HOME}")]);
    assert_eq!(variables.add(&unset, &mut env).expect_err("not exported").name, "HOME");
    let unset = variables.redactor(unset.values(), &none, &[]).expect_err("not exported");
    assert_eq!(unset.name, "HOME");
}

#[test]
fn redactor_of_variables_knows_declared_and_likely_secrets_only() {
    let all = [("SEED", "1234"), ("HF_TOKEN", "hunter2"), ("REGION", "us-east-1"), ("B", "x-ray")];
    let variables =
        TrialVariables::new(all.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let env = ["${SEED}", "${HF_TOKEN}", "${REGION}"].map(Template::new);
    let declared = ["REGION".to_owned(), "B".to_owned()].into();
    let logins = [("HTTP_PROXY".to_owned(), "me:pw".to_owned())];
    let redactor = variables.redactor(env.iter(), &declared, &logins).expect("it is set");
    let text = "0.1234 hunter2 us-east-1 x-ray http://me:pw@p";
    let shown =
        "0.1234 [redacted:HF_TOKEN] [redacted:REGION] [redacted:B] http://[redacted:HTTP_PROXY]@p";
    assert_eq!(redactor.text(text), shown, "a declared secret needs no use");
    let shown = "0.1234 hunter2 [redacted:REGION] [redacted:B] http://[redacted:HTTP_PROXY]@p";
    assert_eq!(redactor.declared().text(text), shown);
}

/// Which bytes belong to a form of a secret, found by brute force.
fn covered(text: &[u8], secrets: &[String]) -> Vec<bool> {
    let mut covered = vec![false; text.len()];
    for form in secrets.iter().flat_map(|secret| encodings::encoded_forms(secret)) {
        for at in 0..text.len() {
            if text[at..].starts_with(&form) {
                covered[at..at + form.len()].fill(true);
            }
        }
    }
    covered
}

fn pieces<'a>(text: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (text.len() + 1)).collect();
    cuts.extend([0, text.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect()
}

proptest! {
    /// Few letters, so that secrets overlap themselves and each other.
    #[test]
    fn secret_in_random_text_is_redacted_and_rest_unchanged(
        secrets in proptest::collection::vec("[ab]{4,9}", 1..4),
        text in "[ab\\-]{0,200}",
        cuts in proptest::collection::vec(0usize..1000, 0..60),
    ) {
        let redactor = Redactor::new(secrets.iter().map(|secret| ("N", secret.as_str())));
        let pieces = pieces(text.as_bytes(), &cuts);
        let covered = covered(text.as_bytes(), &secrets);

        let expected: Vec<u8> = text.bytes().zip(&covered)
            .map(|(byte, covered)| if *covered { b'*' } else { byte }).collect();
        let masked = stream(redactor.stream(RedactionStyle::Mask), &pieces);
        prop_assert_eq!(masked.as_bytes(), &expected[..]);

        let mut expected = String::new();
        for (at, byte) in text.bytes().enumerate() {
            if !covered[at] {
                expected.push(char::from(byte));
            } else if at == 0 || !covered[at - 1] {
                expected.push_str("[redacted:N]");
            }
        }
        let marked = stream(redactor.stream(RedactionStyle::Marker), &pieces);
        prop_assert_eq!(&marked, &expected);
        prop_assert_eq!(&redactor.text(&text), &expected);
    }
}
