//! A client of HTTP/1.1 that sends what a test wants, valid or not.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longest time for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);

/// A client of a server on a port of this host.
#[derive(Debug, Clone)]
pub struct HttpClient {
    port: u16,
    token: Option<String>,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct HttpAnswer {
    /// Status.
    pub status: u16,
    /// Header lines, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Vec<u8>,
}

/// The lines of an answer that does not end.
#[derive(Debug)]
pub struct HttpLines {
    reader: BufReader<TcpStream>,
    /// Status of the answer.
    pub status: u16,
}

impl HttpClient {
    /// A client without a token.
    pub fn new(port: u16) -> Self {
        Self { port, token: None }
    }

    /// The same client with a token.
    #[must_use]
    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    /// Opens a connection.
    ///
    /// # Panics
    /// When the server does not accept one.
    pub fn connect(&self) -> TcpStream {
        self.try_connect().expect("a connection")
    }

    fn try_connect(&self) -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(stream)
    }

    /// Sends a request with header lines and a body. `None` when the server does not accept a
    /// connection, or closed it before it answered.
    pub fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Option<HttpAnswer> {
        let mut stream = self.try_connect().ok()?;
        let mut head = self.head(method, path, headers);
        head.push_str(&format!("content-length: {}\r\nconnection: close\r\n\r\n", body.len()));
        stream.write_all(head.as_bytes()).ok()?;
        // The server may answer before it has read everything.
        let _cut = stream.write_all(body);
        let mut bytes = Vec::new();
        let _reset = stream.read_to_end(&mut bytes);
        HttpAnswer::parse(&bytes)
    }

    fn head(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> String {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
        if let Some(token) = &self.token {
            head.push_str(&format!("authorization: Bearer {token}\r\n"));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head
    }

    /// Gets a path.
    ///
    /// # Panics
    /// Without an answer.
    #[track_caller]
    pub fn get(&self, path: &str) -> HttpAnswer {
        self.send("GET", path, &[], b"").expect("an answer")
    }

    /// Posts a document of JSON, with header lines.
    ///
    /// # Panics
    /// Without an answer.
    #[track_caller]
    pub fn post(&self, path: &str, headers: &[(&str, &str)], document: &Value) -> HttpAnswer {
        let headers: Vec<_> =
            [("content-type", "application/json")].into_iter().chain(headers.to_vec()).collect();
        let body = serde_json::to_vec(document).expect("JSON");
        self.send("POST", path, &headers, &body).expect("an answer")
    }

    /// Sends the head of a request, whose body the caller sends.
    ///
    /// # Panics
    /// When the server does not accept a connection.
    pub fn begin(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> TcpStream {
        self.try_begin(method, path, headers).expect("a connection")
    }

    fn try_begin(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> std::io::Result<TcpStream> {
        let mut stream = self.try_connect()?;
        let head = self.head(method, path, headers) + "\r\n";
        stream.write_all(head.as_bytes())?;
        Ok(stream)
    }

    /// Gets a path whose answer does not end, and reads its head.
    ///
    /// # Panics
    /// Without an answer of status 200.
    pub fn follow(&self, path: &str, headers: &[(&str, &str)]) -> HttpLines {
        let lines = self.open(path, headers);
        assert_eq!(lines.status, 200);
        lines
    }

    /// Gets a path whose answer may not end, and reads its head, of any status.
    ///
    /// # Panics
    /// Without an answer.
    pub fn open(&self, path: &str, headers: &[(&str, &str)]) -> HttpLines {
        self.try_open(path, headers).expect("an answer")
    }

    /// The same; `None` when the server does not accept a connection, or closed it before it answered.
    pub fn try_open(&self, path: &str, headers: &[(&str, &str)]) -> Option<HttpLines> {
        // Without it the server would wait for another request at the end.
        let headers = [headers, &[("connection", "close")]].concat();
        let reader = BufReader::new(self.try_begin("GET", path, &headers).ok()?);
        let mut lines = HttpLines { reader, status: 0 };
        lines.status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        while lines.next().is_some_and(|line| !line.is_empty()) {}
        Some(lines)
    }
}

/// Lines without their ends, until the server or the connection ends. Sizes of chunks are among them.
impl Iterator for HttpLines {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(line.trim_end_matches(['\r', '\n']).to_owned()),
        }
    }
}

impl HttpAnswer {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let mut lines = head.lines();
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers: Vec<_> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let is_chunked =
            headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        let rest = &bytes[end + 4..];
        let body = if is_chunked { joined_chunks(rest) } else { rest.to_owned() };
        Some(Self { status, headers, body })
    }

    /// A header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// When it is something else.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// Asserts the status.
    ///
    /// # Panics
    /// With the answer.
    #[track_caller]
    #[must_use]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }
}

fn joined_chunks(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = String::from_utf8_lossy(&rest[..end]).into_owned();
        let Ok(size) = usize::from_str_radix(size.trim(), 16) else { break };
        let begin = end + 2;
        if size == 0 || rest.len() < begin + size {
            break;
        }
        body.extend_from_slice(&rest[begin..begin + size]);
        rest = &rest[(begin + size + 2).min(rest.len())..];
    }
    body
}
