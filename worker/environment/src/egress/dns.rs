//! Queries of the domain name system with one question, and answers to them.

use std::net::Ipv4Addr;

/// The type of questions for IPv4 addresses.
pub(super) const TYPE_A: u16 = 1;

const HEADER: usize = 12;
const CLASS_IN: u16 = 1;

/// Seconds for which an answer holds: it ends with the phase.
const TTL: u32 = 1;

/// Result of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    /// This address.
    Address(Ipv4Addr),
    /// The name exists, but has no record of this type.
    NoRecord,
    /// There is no such name.
    NoName,
    /// It cannot be found out.
    Failed,
}

/// A question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Question {
    /// The name.
    pub(super) name: String,
    /// The type of its records.
    pub(super) kind: u16,
    /// The end of the question in the query.
    end: usize,
}

impl Question {
    /// The question of a query; `None` for anything but one plain question.
    pub(super) fn parse(query: &[u8]) -> Option<Self> {
        let header = query.get(..HEADER)?;
        let is_query = header[2] & 0xf8 == 0;
        if !is_query || header[4..6] != [0, 1] {
            return None;
        }
        let (mut labels, mut at) = (Vec::new(), HEADER);
        loop {
            let length = usize::from(*query.get(at)?);
            at += 1;
            match length {
                0 => break,
                1..=63 => {
                    let label = query.get(at..at + length)?;
                    labels.push(std::str::from_utf8(label).ok()?);
                    at += length;
                }
                _ => return None,
            }
        }
        let tail = query.get(at..at + 4)?;
        let number = |bytes: &[u8]| u16::from_be_bytes([bytes[0], bytes[1]]);
        if number(&tail[2..]) != CLASS_IN {
            return None;
        }
        Some(Self { name: labels.join("."), kind: number(tail), end: at + 4 })
    }

    /// The answer to its query.
    pub(super) fn answer(&self, query: &[u8], reply: Reply) -> Vec<u8> {
        let code = match reply {
            Reply::Address(_) | Reply::NoRecord => 0,
            Reply::Failed => 2,
            Reply::NoName => 3,
        };
        let count = u8::from(matches!(reply, Reply::Address(_)));
        let mut answer = query[..2].to_vec();
        // An answer; recursion as it is desired, and available.
        answer.extend([0x80 | query[2] & 1, 0x80 | code, 0, 1, 0, count, 0, 0, 0, 0]);
        answer.extend_from_slice(&query[HEADER..self.end]);
        if let Reply::Address(address) = reply {
            // The name is that of the question.
            answer.extend([0xc0, 0x0c]);
            answer.extend(TYPE_A.to_be_bytes());
            answer.extend(CLASS_IN.to_be_bytes());
            answer.extend(TTL.to_be_bytes());
            answer.extend([0, 4]);
            answer.extend(address.octets());
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(name: &str, kind: u16) -> Vec<u8> {
        let mut query = vec![7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            query.push(u8::try_from(label.len()).expect("short"));
            query.extend_from_slice(label.as_bytes());
        }
        query.push(0);
        query.extend(kind.to_be_bytes());
        query.extend([0, 1]);
        query
    }

    #[test]
    fn dns_question_is_read_and_answered() {
        let asked = query("api.example.org", TYPE_A);
        let question = Question::parse(&asked).expect("a question");
        assert_eq!((question.name.as_str(), question.kind), ("api.example.org", TYPE_A));
        let answer = question.answer(&asked, Reply::Address(Ipv4Addr::new(198, 18, 0, 1)));
        assert_eq!(answer[..8], [7, 9, 0x81, 0x80, 0, 1, 0, 1]);
        assert_eq!(answer[12..asked.len()], asked[12..]);
        assert_eq!(answer[answer.len() - 6..], [0, 4, 198, 18, 0, 1]);
        for (reply, code) in [(Reply::NoRecord, 0), (Reply::Failed, 2), (Reply::NoName, 3)] {
            let answer = question.answer(&asked, reply);
            assert_eq!((answer[3] & 15, answer[7], answer.len()), (code, 0, asked.len()));
        }
    }

    #[test]
    fn dns_messages_of_other_kinds_are_no_questions() {
        let whole = query("a.example", 28);
        assert_eq!(Question::parse(&whole).map(|question| question.kind), Some(28));
        for cut in 0..whole.len() {
            assert_eq!(Question::parse(&whole[..cut]), None, "{cut}");
        }
        let changed = |at: usize, byte: u8| {
            let mut message = whole.clone();
            message[at] = byte;
            Question::parse(&message)
        };
        // An answer, another operation, two questions, a pointer in place of a label, another class.
        for (at, byte) in [(2, 0x80), (2, 0x28), (5, 2), (12, 0xc0), (whole.len() - 1, 3)] {
            assert_eq!(changed(at, byte), None, "{at}");
        }
    }
}
