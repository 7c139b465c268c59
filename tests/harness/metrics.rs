//! Client of the health checks and metrics of a process.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

/// Longest time for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The samples of one answer, by name and labels as in the text.
#[derive(Debug, Clone)]
pub struct Samples {
    values: BTreeMap<String, f64>,
    /// Names of the metrics, without suffixes of samples.
    pub families: Vec<String>,
}

/// Status and body of a path on a port of this host; `None` without an answer.
///
/// # Panics
/// When the answer is not HTTP.
pub fn get(port: u16, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    Some((status.expect("a status"), body.to_owned()))
}

/// The metrics on a port of this host; `None` without an answer.
///
/// # Panics
/// When the answer is not in the text format of OpenMetrics.
pub fn scrape(port: u16) -> Option<Samples> {
    let (status, text) = get(port, "/metrics")?;
    assert_eq!(status, 200, "{text}");
    Some(Samples::parse(&text))
}

impl Samples {
    /// The samples of a text of metrics.
    ///
    /// # Panics
    /// When it is cut off or malformed.
    pub fn parse(text: &str) -> Self {
        assert!(text.ends_with("# EOF\n"), "cut off: {text}");
        let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let families =
            families.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
        let values = text.lines().filter(|line| !line.starts_with('#')).map(|line| {
            let (name, value) = line.rsplit_once(' ').expect("a value");
            (name.to_owned(), value.parse().expect("a number"))
        });
        Self { values: values.collect(), families }
    }

    /// The sum of the samples of a name whose labels contain `labels`; 0 if there is none.
    pub fn sum(&self, name: &str, labels: &str) -> f64 {
        let matches = |sample: &str| match sample.split_once('{') {
            Some((of, rest)) => of == name && rest.contains(labels),
            None => sample == name && labels.is_empty(),
        };
        self.values.iter().filter(|(sample, _)| matches(sample)).map(|(_, value)| value).sum()
    }
}
