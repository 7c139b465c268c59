//! Classes of variables: declared secrets, values that look like secrets, and plain values.

use std::collections::{BTreeMap, BTreeSet};

use super::TrialVariables;
use super::encodings::MIN_SECRET_BYTES;

/// Words that mark a variable as a secret as one word of its name.
const WORDS: &[&str] = &[
    "KEY", "KEYS", "PASS", "PASSCODE", "SSHPASS", "AUTH", "PAT", "DSN", "COOKIE", "COOKIES",
    "CREDS",
];

/// The end of words that mark it: `GITHUBTOKEN`, and not `TOKENS` or `TOKENIZER`.
const LAST_PART: &str = "TOKEN";

/// The word that marks it beside others. Alone it is the current directory.
const PASSWORD: &str = "PWD";

/// A company, whose name in settings says nothing.
const COMPANY: &str = "AUTH0";

/// Words that mark it also inside of a word: `PGPASSWORD`.
const PARTS: &[&str] = &["SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "APIKEY"];

/// Last words of names whose value is the place of a secret.
const PLACES: &[&str] = &["FILE", "PATH", "DIR"];

/// Beginnings of keys of well-known services.
const PREFIXES: &[&str] = &[
    "sk-",
    "sk_live_",
    "sk_test_",
    "rk_live_",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "xoxb-",
    "xoxp-",
    "xoxa-",
    "AKIA",
    "ASIA",
    "AIza",
    "ya29.",
    "hf_",
    "gsk_",
    "xai-",
    "npm_",
    "pypi-",
    "dop_v1_",
    "eyJ",
    "-----BEGIN",
];

/// Fewest bytes after such a beginning.
const AFTER_PREFIX_BYTES: usize = 8;

/// Fewest bytes of a value that looks random.
const RANDOM_BYTES: usize = 20;

/// Fewest digits of a number that may be a secret.
const NUMBER_DIGITS: usize = 6;

/// The variables whose values are masked, by class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MaskedVariables {
    /// Declared secrets: masked everywhere, and no artifact holds one.
    pub declared: BTreeSet<String>,
    /// Values that look like secrets: masked in text.
    pub guessed: BTreeSet<String>,
}

impl MaskedVariables {
    /// The classes of variables whose values are unknown, by their names.
    pub fn by_name(names: impl IntoIterator<Item = String>, declared: BTreeSet<String>) -> Self {
        let others = names.into_iter().filter(|name| !declared.contains(name));
        let guessed = others.filter(|name| is_secret_name(name)).collect();
        Self { declared, guessed }
    }

    /// One line that names them; `None` without any.
    pub fn line(&self) -> Option<String> {
        let list = |names: &BTreeSet<String>| {
            names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
        };
        let declared = (!self.declared.is_empty())
            .then(|| format!("{} in all output (declared secrets)", list(&self.declared)));
        let guessed = (!self.guessed.is_empty()).then(|| {
            format!("{} in logs and errors (they look like secrets)", list(&self.guessed))
        });
        let parts: Vec<String> = declared.into_iter().chain(guessed).collect();
        (!parts.is_empty()).then(|| format!("masked: {}", parts.join("; ")))
    }
}

impl TrialVariables {
    /// The classes of the variables with these names, of which `declared` are declared secrets. A
    /// declared secret needs no use: it may reach a trial in another way.
    pub fn masked(
        &self,
        used: impl IntoIterator<Item = String>,
        declared: &BTreeSet<String>,
    ) -> MaskedVariables {
        let is_long = |name: &String| self.0.get(name).is_some_and(|v| v.len() >= MIN_SECRET_BYTES);
        let looks_secret =
            |name: &String| self.0.get(name).is_some_and(|value| looks_secret(name, value));
        let guessed = used.into_iter().filter(|name| !declared.contains(name));
        MaskedVariables {
            declared: declared.iter().filter(|name| is_long(name)).cloned().collect(),
            guessed: guessed.filter(looks_secret).collect(),
        }
    }
}

/// Whether a variable looks like a secret, by its name or its value.
pub fn looks_secret(name: &str, value: &str) -> bool {
    let named = is_secret_name(name) && value.len() >= MIN_SECRET_BYTES && !is_setting(value);
    named || is_secret_value(value)
}

/// Whether the name of a variable says that it is a secret.
pub fn is_secret_name(name: &str) -> bool {
    let words = words(name);
    let is_place = words.last().is_some_and(|last| PLACES.contains(&last.as_str()));
    let is_word = words.iter().any(|word| {
        let is_password = word == PASSWORD && words.len() > 1;
        is_password || WORDS.contains(&word.as_str()) || word.ends_with(LAST_PART)
    });
    let name = name.to_ascii_uppercase();
    !is_place && (is_word || PARTS.iter().any(|part| name.contains(part)))
}

/// The words of a name in upper case, without digits at their ends: those of `accessToken2` are `ACCESS`
/// and `TOKEN`.
fn words(name: &str) -> Vec<String> {
    let chars: Vec<char> = name.chars().collect();
    let mut words = vec![String::new()];
    for (at, c) in chars.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| chars[before]);
        let ends_acronym = chars.get(at + 1).is_some_and(char::is_ascii_lowercase);
        let is_first = c.is_ascii_uppercase()
            && before.is_some_and(|before| ends_acronym || !before.is_ascii_uppercase());
        if is_first || !c.is_ascii_alphanumeric() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_ascii_alphanumeric()) {
            word.push(c.to_ascii_uppercase());
        }
    }
    let without_digits = |word: String| match word == COMPANY {
        true => word,
        false => word.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned(),
    };
    words.into_iter().map(without_digits).filter(|word| !word.is_empty()).collect()
}

/// Whether a value is a switch or a small number, which no secret is: masks would spoil text.
fn is_setting(value: &str) -> bool {
    let word = value.to_ascii_lowercase();
    let is_switch = matches!(&*word, "true" | "false" | "none" | "null" | "auto" | "required");
    let digits = value.bytes().filter(u8::is_ascii_digit).count();
    is_switch || (value.parse::<f64>().is_ok() && digits < NUMBER_DIGITS)
}

/// Whether a value alone looks like a secret.
fn is_secret_value(value: &str) -> bool {
    let known = PREFIXES.iter().any(|prefix| {
        value.strip_prefix(prefix).is_some_and(|rest| rest.len() >= AFTER_PREFIX_BYTES)
    });
    known || has_login(value) || is_random(value)
}

/// Whether it is an address with a secret: `scheme://user:password@host`, or with a user alone that is a
/// token, as that of HTTP may be. Elsewhere a user alone is one if it looks like a secret.
fn has_login(value: &str) -> bool {
    let Some((scheme, rest)) = value.split_once("://") else { return false };
    let is_scheme = !scheme.is_empty()
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let Some((login, _)) = authority.rsplit_once('@') else { return false };
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let is_http = ["http", "https"].iter().any(|http| scheme.eq_ignore_ascii_case(http));
    let is_token = is_secret_value(user) || (is_http && !user.is_empty());
    is_scheme && (!password.is_empty() || is_token)
}

/// Whether it looks random: one word of letters and digits, which often follow one another, with
/// many different characters. Names of models, images, dates and paths change less often.
fn is_random(value: &str) -> bool {
    let bytes = value.as_bytes();
    let is_word = bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"+/=_-.~".contains(b));
    if bytes.len() < RANDOM_BYTES || !is_word || value.starts_with(['/', '.']) {
        return false;
    }
    let has = |is_kind: fn(&u8) -> bool| bytes.iter().any(is_kind);
    let pairs = bytes.windows(2).filter(|p| p.iter().all(u8::is_ascii_alphanumeric));
    let (mut count, mut changes) = (0_u32, 0_u32);
    for pair in pairs {
        let is_change = pair[0].is_ascii_digit() != pair[1].is_ascii_digit()
            || (pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase());
        count += 1;
        changes += u32::from(is_change);
    }
    has(u8::is_ascii_digit)
        && has(u8::is_ascii_alphabetic)
        && 4 * changes >= count
        && entropy(bytes) >= 3.0
}

/// Entropy of the bytes by their frequencies, in bits for each.
fn entropy(bytes: &[u8]) -> f64 {
    let mut counts = BTreeMap::new();
    for byte in bytes {
        *counts.entry(byte).or_insert(0_u32) += 1;
    }
    let all = bytes.len() as f64;
    let share = |count: u32| f64::from(count) / all;
    counts.into_values().map(|count| -share(count) * share(count).log2()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_with_name_of_a_secret_looks_secret() {
        for name in [
            "OPENAI_API_KEY",
            "token",
            "HF_TOKEN",
            "DB_PASSWORD",
            "AWS_ACCESS_KEY_ID",
            "PGPASSWORD",
            "GH_PAT",
            "SENTRY_DSN",
            "BASIC_AUTH",
            "DB_PASS",
            "SESSION_COOKIE",
            "apiKey",
            "MYSQL_PWD",
            "DB_PWD",
            "OPENAI_API_KEY2",
            "TOKEN1",
            "accessToken",
            "access_token_2",
            "APIToken",
            "S3Key",
            "GITHUBTOKEN",
            "AUTHTOKEN",
            "SSHPASS",
            "AWS_CREDS",
        ] {
            assert!(looks_secret(name, "hunter2"), "{name}");
        }
        for name in [
            "MODEL",
            "MAX_TOKENS",
            "KEYBOARD",
            "AUTHOR",
            "TOKENIZER",
            "API_KEY_FILE",
            "PATH",
            "COMPASS",
            "PATTERN",
            "PASSED",
            "PWD",
            "OLDPWD",
            "maxTokens",
            "MAX_TOKENS_2",
            "AUTH0_DOMAIN",
            "MONKEY",
            "keyFile",
            "KeyBoard1Path",
            "tokenizerName",
        ] {
            assert!(!looks_secret(name, "hunter2"), "{name}");
        }
        for setting in ["true", "None", "1234", "0.75", "abc", ""] {
            assert!(!looks_secret("USE_AUTH", setting), "{setting}");
        }
        assert!(looks_secret("PASS", "123456"), "a number of six digits is a usual password");
    }

    #[test]
    fn value_of_a_secrets_form_looks_secret() {
        for value in [
            "sk-proj-abcdefgh",
            "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
            "postgres://app:pw@db:5432/x",
            "https://user:p%40ss@host/path",
            "https://hunter2@host/path",
            "https://hunter2:@host/path",
            "HTTP://hunter2@host",
            "nats://ghp_16C7e42F292c6912E7710c838347Ae178B4a@host:4222",
            "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY1",
            "d41d8cd9-8f00-3204-a980-0998ecf8427e",
            "eyJhbGciOiJIUzI1NiJ9.e30.x7",
        ] {
            assert!(looks_secret("X", value), "{value}");
        }
    }

    #[test]
    fn plain_value_does_not_look_secret() {
        for value in [
            "1234",
            "true",
            "us-east-1",
            "accuracy",
            "claude-sonnet-4-20250514",
            "sk-learn",
            "Meta-Llama-3.1-8B-Instruct-4bit",
            "Qwen2.5-Coder-32B-Instruct",
            "gpt-4o-mini-2024-07-18",
            "https://api.example.com:8443/v1",
            "nats://user@host:4222",
            "ssh://git@host/o/r.git",
            "https://@host/path",
            "https://host/@scope/user@1.2",
            "/data/runs/exp2024/step100",
            "2026-11-29T10:57:38.123Z",
            "production_environment_name",
            "0.123456789012345678901234",
            "registry.example.com:5000/team/image:1.2",
            "a b c d e f 1 2 3 4 5 6 7 8 9",
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa1",
        ] {
            assert!(!looks_secret("X", value), "{value}");
        }
    }

    #[test]
    fn masked_variables_are_named_by_class() {
        let all =
            [("SEED", "1234"), ("HF_TOKEN", "hunter2"), ("REGION", "us-east-1"), ("A", "abc")];
        let variables =
            TrialVariables::new(all.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let declared = ["REGION".to_owned(), "A".to_owned(), "ABSENT".to_owned()].into();
        let masked = variables.masked(variables.names().map(str::to_owned), &declared);
        let line = masked.line().expect("two are masked");
        assert_eq!(
            line,
            "masked: REGION in all output (declared secrets); HF_TOKEN in logs and errors (they \
             look like secrets)"
        );
        assert_eq!(variables.masked(["SEED".to_owned()], &BTreeSet::new()).line(), None);
    }
}
