//! Output of commands, bounded.

use std::collections::VecDeque;

/// The beginning and the end of an output.
#[derive(Debug)]
pub struct BoundedOutput {
    /// Most bytes of each of the two.
    half: usize,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: usize,
}

impl BoundedOutput {
    /// An output of which at most `most` bytes are kept.
    pub fn new(most: usize) -> Self {
        Self { half: most / 2, head: Vec::new(), tail: VecDeque::new(), total: 0 }
    }

    /// Adds bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len();
        let room = self.half.saturating_sub(self.head.len()).min(bytes.len());
        let (head, rest) = bytes.split_at(room);
        self.head.extend_from_slice(head);
        let rest = &rest[rest.len().saturating_sub(self.half)..];
        let excess = (self.tail.len() + rest.len()).saturating_sub(self.half);
        self.tail.drain(..excess);
        self.tail.extend(rest);
    }

    /// The text, which says how many bytes are left out.
    pub fn text(&self) -> String {
        let tail: Vec<u8> = self.tail.iter().copied().collect();
        let left_out = self.total - self.head.len() - tail.len();
        if left_out == 0 {
            return String::from_utf8_lossy(&[self.head.as_slice(), &tail].concat()).into_owned();
        }
        let (head, tail) = (String::from_utf8_lossy(&self.head), String::from_utf8_lossy(&tail));
        format!("{head}\n[{left_out} bytes left out]\n{tail}")
    }
}
