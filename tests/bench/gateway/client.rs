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
    /// Anthropic messages.
    Messages,
    /// Gemini content.
    Gemini,
}

/// The size of a request, and the way its reply is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BenchCall {
    /// Characters of the prompt.
    pub(crate) prompt: usize,
    /// Events of the stream.
    pub(crate) events: u32,
    /// A reader that pauses after each part of this size; `None` reads as fast as it can.
    pub(crate) slow: Option<SlowReader>,
}

/// How a slow client reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlowReader {
    /// Bytes at a time.
    pub(crate) part: usize,
    /// Pause after them.
    pub(crate) pause: Duration,
}

impl BenchEndpoint {
    /// Name of the endpoint.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Chat => "chat completions",
            Self::Responses => "responses",
            Self::Messages => "messages",
            Self::Gemini => "gemini",
        }
    }

    const fn path(self) -> &'static str {
        match self {
            Self::Chat => "/chat/completions",
            Self::Responses => "/responses",
            Self::Messages => "/v1/messages",
            Self::Gemini => "/v1beta/models/m:streamGenerateContent?alt=sse",
        }
    }

    /// A part of the last event of a stream.
    const fn last(self) -> &'static [u8] {
        match self {
            Self::Chat => b"data: [DONE]",
            Self::Responses => b"\"type\":\"response.completed\"",
            Self::Messages => b"\"type\":\"message_stop\"",
            Self::Gemini => b"\"finishReason\"",
        }
    }

    fn body(self, text: &str, events: u32) -> serde_json::Value {
        match self {
            Self::Chat | Self::Messages => {
                serde_json::json!({"model": "m", "stream": true, "max_tokens": events,
                "messages": [{"role": "user", "content": text}]})
            }
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
        call: BenchCall,
    ) -> Result<CallTimes, LatencyError> {
        let began = Instant::now();
        let mut connection = TcpStream::connect(&self.host).await?;
        connection.set_nodelay(true)?;
        connection.write_all(self.request(number, call).as_bytes()).await?;
        let size = call.slow.map_or(65_536, |reader| reader.part);
        let (mut seen, mut part, mut first) = (Vec::new(), vec![0; size], None);
        loop {
            let length = connection.read(&mut part).await?;
            if length == 0 {
                return Err("the stream broke off".into());
            }
            // The end of what was read before, in case a mark is in two parts.
            seen.drain(..seen.len().saturating_sub(64));
            seen.extend_from_slice(&part[..length]);
            let has = |mark: &[u8]| seen.windows(mark.len()).any(|at| at == mark);
            if first.is_none() && has(b"data: ") {
                first = Some(began.elapsed());
            }
            if has(self.endpoint.last()) {
                let total = began.elapsed();
                return Ok(CallTimes { first: first.unwrap_or(total), total });
            }
            if let Some(reader) = call.slow {
                tokio::time::sleep(reader.pause).await;
            }
        }
    }

    fn request(&self, number: usize, call: BenchCall) -> String {
        let text = format!("{number}{}", "x".repeat(call.prompt));
        let body = self.endpoint.body(&text, call.events).to_string();
        format!(
            "POST {} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.path,
            self.host,
            self.key,
            body.len()
        )
    }
}
