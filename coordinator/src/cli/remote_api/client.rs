//! A client of the API. Its calls block.

use std::io::Read;
use std::time::Duration;

use rollout_base::supervise;
use rollout_protocol::exit::ExitCode;
use rollout_protocol::limits::shorten;
use serde_json::Value;
use ureq::http::header::CONTENT_TYPE;
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body};

use crate::cli::client_file;
use crate::cli::error::CliError;
use crate::config::env_vars;
use crate::https;

/// Time limit for answers that do not last.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit for connections.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Largest document of an answer, bytes.
const MAX_DOCUMENT: u64 = 64 * 1024 * 1024;

/// Longest text of a server in a message, bytes.
const MAX_LINE_BYTES: usize = 200;

/// A server, with the token of its user.
#[derive(Debug, Clone)]
pub(in crate::cli) struct ApiServerClient {
    base: String,
    token: Option<String>,
    /// The variable of the token, if it is not that of all commands.
    token_variable: Option<String>,
    /// For answers that end soon.
    short: Agent,
    /// For uploads and streams.
    long: Agent,
}

/// A run on a server.
#[derive(Debug, Clone)]
pub(in crate::cli) struct RunUrl {
    /// Its server.
    pub(in crate::cli) server: ApiServerClient,
    /// Its id.
    pub(in crate::cli) id: String,
}

/// Whether a text is the address of a server of `rollout serve`, or of a run on one.
pub(in crate::cli) fn is_api_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

/// Whether a part of a URL can be an id.
pub(super) fn is_id(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn agent(limit: Option<Duration>) -> Agent {
    let config = Agent::config_builder()
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .timeout_global(limit)
        .http_status_as_error(false)
        .user_agent(concat!("rollout/", env!("CARGO_PKG_VERSION")))
        .tls_config(https::tls_config())
        .build();
    Agent::new_with_config(config)
}

impl ApiServerClient {
    /// A client of the server at `base`. The token is in the variable `token_variable`, or in
    /// `ROLLOUT_API_TOKEN`.
    ///
    /// # Errors
    /// The named variable is not set.
    pub(in crate::cli) fn new(base: &str, token_variable: Option<&str>) -> Result<Self, CliError> {
        let token = match token_variable {
            Some(name) => Some(std::env::var(name).map_err(|_| {
                CliError::usage(format!("cannot find the token: the variable {name} is not set"))
            })?),
            None => std::env::var(env_vars::API_TOKEN.name).ok(),
        };
        let base = base.trim_end_matches('/').to_owned();
        let other = token_variable.filter(|name| *name != env_vars::API_TOKEN.name);
        let token_variable = other.map(str::to_owned);
        Ok(Self {
            base,
            token,
            token_variable,
            short: agent(Some(REQUEST_TIMEOUT)),
            long: agent(None),
        })
    }

    /// The URL of a run.
    pub(super) fn run_url(&self, id: &str) -> String {
        format!("{}/v1/runs/{id}", self.base)
    }

    /// A command line about this server for the shell that this command was started from.
    pub(super) fn command_line(&self, command: &str) -> String {
        match &self.token_variable {
            Some(name) => format!("{}=\"${name}\" {command}", env_vars::API_TOKEN.name),
            None => command.to_owned(),
        }
    }

    /// How to get a token that the server knows.
    fn token_hint(&self) -> String {
        let hint = client_file::hint(&self.base);
        match &self.token_variable {
            Some(name) => format!("{hint}, and leave out `--remote-token-env {name}`"),
            None => hint,
        }
    }

    fn authorization(&self) -> String {
        self.token.as_ref().map_or_else(String::new, |token| format!("Bearer {token}"))
    }

    /// Gets a path. Blocks.
    pub(super) fn get(&self, path: &str) -> Result<Response<Body>, CliError> {
        self.send_get(&self.short, path)
    }

    /// Gets a path whose answer lasts. Blocks.
    pub(super) fn stream(&self, path: &str) -> Result<Response<Body>, CliError> {
        self.send_get(&self.long, path)
    }

    /// Whether a path exists. Blocks.
    pub(super) fn has(&self, path: &str) -> Result<bool, CliError> {
        match self.call_get(&self.short, path) {
            Ok(answer) if answer.status() == StatusCode::NOT_FOUND => Ok(false),
            answer => self.checked(answer).map(|_| true),
        }
    }

    fn send_get(&self, agent: &Agent, path: &str) -> Result<Response<Body>, CliError> {
        self.checked(self.call_get(agent, path))
    }

    fn call_get(&self, agent: &Agent, path: &str) -> Result<Response<Body>, ureq::Error> {
        let mut request = agent.get(format!("{}{path}", self.base));
        if self.token.is_some() {
            request = request.header("authorization", self.authorization());
        }
        request.call()
    }

    /// Posts a document. Blocks.
    pub(super) fn post(&self, path: &str, document: &Value) -> Result<Value, CliError> {
        let mut request = self.short.post(format!("{}{path}", self.base));
        request = request.header("content-type", "application/json");
        if self.token.is_some() {
            request = request.header("authorization", self.authorization());
        }
        let text = serde_json::to_vec(document).unwrap_or_default();
        document_of(self.checked(request.send(&text[..]))?)
    }

    /// Uploads a body of a known length. Blocks.
    pub(super) fn put(&self, path: &str, length: u64, body: &mut dyn Read) -> Result<(), CliError> {
        let mut request = self.long.put(format!("{}{path}", self.base));
        request = request.header("content-length", length.to_string());
        if self.token.is_some() {
            request = request.header("authorization", self.authorization());
        }
        let body = ureq::SendBody::from_reader(body);
        self.checked(request.send(body)).map(drop)
    }

    /// The document at a path.
    ///
    /// # Errors
    /// [`CliError`].
    pub(super) async fn document(&self, path: &str) -> Result<Value, CliError> {
        let (client, path) = (self.clone(), path.to_owned());
        supervise::blocking(move || document_of(client.get(&path)?)).await
    }

    fn checked(
        &self,
        answer: Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>, CliError> {
        let answer = answer.map_err(|error| {
            let what = format!("cannot reach the server at {}", self.base);
            CliError::from_cause(ExitCode::OutOfReach, what, &error)
        })?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let status = answer.status();
        let kind = answer.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let is_text = kind.is_some_and(|kind| kind.starts_with("text/plain"));
        let body = body_of(answer).unwrap_or_default();
        let problem = serde_json::from_slice(&body).unwrap_or_default();
        let mut error = problem_error(status.as_u16(), &problem);
        if is_text && let Some(line) = first_line(&body) {
            error.message = format!("{}: {line}", error.message);
        }
        if status == StatusCode::UNAUTHORIZED {
            error.hints.push(self.token_hint());
        }
        Err(error)
    }
}

/// What a failure to read an answer prevents.
const UNREADABLE: &str = "cannot read the answer of the server";

/// The document in an answer.
fn document_of(answer: Response<Body>) -> Result<Value, CliError> {
    let text = body_of(answer)?;
    serde_json::from_slice(&text).map_err(|error| CliError::failure(UNREADABLE, &error))
}

/// The bytes of an answer.
fn body_of(mut answer: Response<Body>) -> Result<Vec<u8>, CliError> {
    let body = answer.body_mut().with_config().limit(MAX_DOCUMENT).read_to_vec();
    body.map_err(|error| CliError::from_cause(ExitCode::OutOfReach, UNREADABLE, &error))
}

/// The first line of a text of a server, fit for a message; `None` if it is empty.
fn first_line(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let line = text.trim().lines().next()?;
    let line = line.chars().filter(|c| !c.is_control()).collect();
    Some(shorten(line, MAX_LINE_BYTES))
}

/// The error that a server states, with its code.
fn problem_error(status: u16, problem: &Value) -> CliError {
    let detail = problem["detail"].as_str();
    let message = detail.map_or_else(|| format!("the server answered {status}"), str::to_owned);
    let mut error = CliError::new(exit_code(&problem["code"]), message);
    error.details = texts(&problem["details"]);
    error.hints = texts(&problem["hints"]);
    error
}

/// The exit code with a number; that of failures for an unknown one.
pub(super) fn exit_code(number: &Value) -> ExitCode {
    let known = |code: &&ExitCode| Some(u64::from(code.code())) == number.as_u64();
    ExitCode::ALL.iter().find(known).copied().unwrap_or(ExitCode::Failure)
}

/// The texts of a list.
pub(super) fn texts(list: &Value) -> Vec<String> {
    let texts = list.as_array().into_iter().flatten();
    texts.filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

impl RunUrl {
    /// The run that a text means, such as `https://host:4280/v1/runs/ID`; `None` for another text.
    ///
    /// # Errors
    /// The URL is that of something else.
    pub(in crate::cli) fn parse(text: &str) -> Result<Option<Self>, CliError> {
        if !is_api_url(text) {
            return Ok(None);
        }
        let parts = text.trim_end_matches('/').split_once("/v1/runs/");
        let parts = parts.filter(|(_, id)| is_id(id));
        let Some((base, id)) = parts else {
            return Err(CliError::usage(format!(
                "cannot use `{text}`: it is not the URL of a run"
            ))
            .hint("the URL of a run is `http://host:4280/v1/runs/ID`"));
        };
        Ok(Some(Self { server: ApiServerClient::new(base, None)?, id: id.to_owned() }))
    }

    /// The path of the run, and what is below it.
    pub(super) fn path(&self, rest: &str) -> String {
        format!("/v1/runs/{}{rest}", self.id)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn url_of_a_run_is_told_from_other_texts() {
        assert!(RunUrl::parse("jobs/demo").expect("a path").is_none());
        let run = RunUrl::parse("https://host:1/base/v1/runs/r12").expect("a URL").expect("a run");
        assert_eq!(run.server.run_url(&run.id), "https://host:1/base/v1/runs/r12");
        for text in ["http://host", "http://host/v1/runs/", "http://host/v1/runs/a/b"] {
            assert!(RunUrl::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn command_line_about_server_takes_token_from_named_variable() {
        let status = "rollout status http://host/v1/runs/r1";
        // Any variable that every test has.
        let named = ApiServerClient::new("http://host", Some("PATH")).expect("it is set");
        assert_eq!(named.command_line(status), format!("ROLLOUT_API_TOKEN=\"$PATH\" {status}"));
        let usual = ApiServerClient::new("http://host", None).expect("no variable is needed");
        assert_eq!(usual.command_line(status), status);
    }

    #[test]
    fn only_a_missing_path_does_not_exist() {
        use std::io::{BufRead as _, BufReader, Write as _};
        use std::net::{Ipv4Addr, TcpListener};

        let answers =
            ["204 No Content", "404 Not Found", "401 Unauthorized", "429 Too Many Requests"];
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let serving = supervise::thread("server", move || {
            for status in answers {
                let (mut stream, _) = listener.accept().expect("a connection");
                let mut lines = BufReader::new(stream.try_clone().expect("a handle")).lines();
                while lines.next().is_some_and(|line| !line.expect("a line").is_empty()) {}
                let end = "content-length: 0\r\nconnection: close\r\n\r\n";
                write!(stream, "HTTP/1.1 {status}\r\n{end}").expect("sent");
            }
        });
        let (short, long) = (agent(Some(REQUEST_TIMEOUT)), agent(None));
        let server = ApiServerClient { base, token: None, token_variable: None, short, long };
        let serving = serving.expect("a thread");
        let found = answers.map(|_| server.has("/v1/datasets/0"));
        serving.join().expect("no panic");
        let hints = found.each_ref().map(|found| match found {
            Ok(_) => String::new(),
            Err(error) => error.hints.concat(),
        });
        let found = found.map(|found| found.map_err(|error| error.message));
        assert_eq!(found[..2], [Ok(true), Ok(false)]);
        for (found, status) in found[2..].iter().zip(["401", "429"]) {
            let error = found.as_ref().expect_err("it is not known");
            assert!(error.ends_with(status), "{error}");
        }
        assert!(hints[2].contains("client.env`") && hints[3].is_empty(), "{hints:?}");
    }

    #[test]
    fn error_of_a_server_keeps_its_code_and_details() {
        let problem = json!({"detail": "no", "code": 3, "details": ["a", "b"], "hints": ["h"]});
        let error = problem_error(422, &problem);
        assert_eq!((error.code, error.message.as_str()), (ExitCode::Config, "no"));
        assert_eq!((error.details.len(), error.hints.len()), (2, 1));
        let unknown = problem_error(502, &Value::Null);
        assert_eq!(unknown.message, "the server answered 502");
    }

    #[test]
    fn text_of_a_server_is_quoted_by_its_first_line() {
        let quoted = |text: &str| first_line(text.as_bytes());
        assert_eq!(quoted(" \n use https\u{1b}://\r\nmore\n").as_deref(), Some("use https://"));
        assert_eq!(quoted("\n "), None);
        let long = quoted(&"x".repeat(5000)).expect("a line");
        assert!(long.len() <= MAX_LINE_BYTES && long.starts_with("xxx"), "{long}");
    }
}
