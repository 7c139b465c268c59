//! Readers of the stream of completions, some of them slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rollout_base::supervise;
use rollout_tests::http::{HttpClient, HttpLines};

/// One reader of this many reads nothing after the head of the answer.
const SLOW: usize = 10;

/// Readers of one farm.
#[derive(Debug)]
pub(crate) struct StreamReaders {
    began: Instant,
    counts: Vec<Arc<AtomicU64>>,
    /// Connections of the readers that read nothing: they stay open for as long as this exists.
    unread: Vec<HttpLines>,
}

impl StreamReaders {
    /// Starts readers of a farm. They end with the server.
    pub(crate) fn start(client: &HttpClient, farm: &str, readers: usize) -> Self {
        let (mut counts, mut unread) = (Vec::new(), Vec::new());
        for number in 0..readers {
            let lines = client.follow(&format!("{farm}/completions/stream"), &[]);
            if number % SLOW == 0 {
                unread.push(lines);
                continue;
            }
            let count = Arc::new(AtomicU64::new(0));
            counts.push(Arc::clone(&count));
            let read = move || {
                let completions = lines.filter(|line| line.starts_with("event: completion"));
                completions.for_each(|_| {
                    count.fetch_add(1, Ordering::Relaxed);
                });
            };
            // It ends with its connection.
            let _detached = supervise::thread("reader", read).expect("a thread");
        }
        Self { began: Instant::now(), counts, unread }
    }

    /// The numbers of completions that they received. A completion that the trainer acknowledged
    /// before is not sent.
    pub(crate) fn summary(&self, samples: u64) -> String {
        let mut counts: Vec<u64> =
            self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        counts.sort_unstable();
        let sent: u64 = counts.iter().sum();
        let rate = sent as f64 / self.began.elapsed().as_secs_f64();
        format!(
            "{} readers have {} to {} of {samples} completions, {rate:.0}/s together; {} read nothing",
            counts.len(),
            counts.first().copied().unwrap_or_default(),
            counts.last().copied().unwrap_or_default(),
            self.unread.len(),
        )
    }
}
