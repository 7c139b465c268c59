//! A bare client of model servers: one connection for each call.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::LatencyError;

/// Times of a call since its begin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallTimes {
    /// Until the first event.
    pub(crate) first: Duration,
    /// Until the last event.
    pub(crate) total: Duration,
}

/// The target of a client.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BenchEndpoint {
    /// OpenAI chat completions.
    Chat,
    /// OpenAI responses.
    Responses,
    /// Gemini content.
    Gemini,
}

impl BenchEndpoint {
    /// Name of the endpoint.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat completions",
            Self::Responses => "responses",
            Self::Gemini => "gemini",
        }
    }

    const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/chat/completions",
            Self::Responses => "/responses",
            Self::Gemini => "/v1beta/models/m:streamGenerateContent?alt=sse",
        }
    }

    /// A part of the last event of a stream.
    const fn last(self) -> &'static [u8] {
        match self {
            Self::Chat => b"data: [DONE]",
            Self::Responses => b"\"type\":\"response.completed\"",
            Self::Gemini => b"\"finishReason\"",
        }
    }

    fn body(self, text: &str, events: u32) -> serde_json::Value {
        match self {
            Self::Chat => serde_json::json!({"model": "m", "stream": true, "max_tokens": events,
                "messages": [{"role": "user", "content": text}]}),
            Self::Responses => serde_json::json!({"model": "m", "stream": true,
                "max_output_tokens": events, "input": text}),
            Self::Gemini => serde_json::json!({"contents": [{"parts": [{"text": text}]}],
                "generationConfig": {"maxOutputTokens": events}}),
        }
    }
}

/// A client of one server.
#[derive(Debug)]
pub(crate) struct ModelClient {
    host: String,
    path: String,
    key: String,
    endpoint: BenchEndpoint,
}

impl ModelClient {
    /// A client of the server at an address such as `http://127.0.0.1:8000/v1`.
    pub(crate) fn new(endpoint: BenchEndpoint, base: &str, key: &str) -> Self {
        let rest = base.trim_start_matches("http://");
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let slash = if path.is_empty() { "" } else { "/" };
        let path = format!("{slash}{path}{}", endpoint.path());
        Self { host: host.to_owned(), path, key: key.to_owned(), endpoint }
    }

    /// Reads a stream to its end.
    pub(crate) async fn stream(
        &self,
        number: usize,
        events: u32,
    ) -> Result<CallTimes, LatencyError> {
        let began = Instant::now();
        let mut connection = TcpStream::connect(&self.host).await?;
        connection.set_nodelay(true)?;
        let text = format!("{number}{}", "x".repeat(20_000));
        let body = self.endpoint.body(&text, events).to_string();
        let request = format!(
            "POST {} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.path,
            self.host,
            self.key,
            body.len()
        );
        connection.write_all(request.as_bytes()).await?;
        let (mut seen, mut part, mut first) = (Vec::new(), vec![0; 65_536], None);
        loop {
            let length = connection.read(&mut part).await?;
            if length == 0 {
                return Err("the stream broke off".into());
            }
            let from = seen.len().saturating_sub(64);
            seen.extend_from_slice(&part[..length]);
            let has = |mark: &[u8]| seen[from..].windows(mark.len()).any(|at| at == mark);
            if first.is_none() && has(b"data: ") {
                first = Some(began.elapsed());
            }
            if has(self.endpoint.last()) {
                let total = began.elapsed();
                return Ok(CallTimes { first: first.unwrap_or(total), total });
            }
        }
    }
}
