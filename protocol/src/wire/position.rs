//! Positions in a run's reports, and the reports read at them.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::report::{Report, ReportKind};
use crate::id::ExecId;

/// Identifies one incarnation of a broker: the state of other incarnations is lost. Written as 32
/// hexadecimal digits: readers of tagged JSON do not support 128-bit integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Incarnation(pub u128);

impl Serialize for Incarnation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = [0; 32];
        let bytes = self.0.to_be_bytes();
        let text: &str = data_encoding::HEXLOWER.encode_mut_str(&bytes, &mut text);
        serializer.serialize_str(text)
    }
}

impl<'de> Deserialize<'de> for Incarnation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        u128::from_str_radix(&text, 16).map(Self).map_err(D::Error::custom)
    }
}

/// A position in a run's reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReportPosition {
    /// Broker incarnation.
    pub incarnation: Incarnation,
    /// Sequence.
    pub sequence: u64,
    /// The execution whose report has that sequence …
    pub anchor: ExecId,
    /// … and which of its reports it is: together they reveal a broker that lost its latest
    /// messages and reused the sequence. (The end of an execution can replace its lost start.)
    #[serde(default)]
    pub said: ReportKind,
    /// Its number among the reports of its kind: 0, except for announcements of events.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub number: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl ReportPosition {
    /// The position of a report.
    pub fn for_report(incarnation: Incarnation, sequence: u64, report: &Report) -> Self {
        let (said, number) = (report.body.kind(), report.body.number());
        Self { incarnation, sequence, anchor: report.exec, said, number }
    }

    /// How far the stream was read when this report was the last one.
    pub fn cursor(&self) -> ReportCursor {
        ReportCursor { incarnation: self.incarnation, sequence: self.sequence }
    }

    /// Whether the report now found at this sequence is the original one.
    pub fn matches(&self, report: &Report) -> bool {
        let body = &report.body;
        (self.anchor, self.said, self.number) == (report.exec, body.kind(), body.number())
    }
}

/// A report with its position.
#[derive(Debug, Clone, PartialEq)]
pub struct PositionedReport {
    /// Its position.
    pub position: ReportPosition,
    /// The report.
    pub report: Report,
}

/// Reports from one read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReportBatch {
    /// The reports, in stream order.
    pub reports: Vec<PositionedReport>,
    /// How far the stream was read for them; absent when there was nothing. Messages that are not
    /// reports of the run, or that do not count, are skipped: only this field accounts for them.
    pub read_to: Option<ReportCursor>,
}

/// How far a stream was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportCursor {
    /// The stream.
    pub incarnation: Incarnation,
    /// Sequence of the last message that was read.
    pub sequence: u64,
}

impl From<Vec<PositionedReport>> for ReportBatch {
    /// A batch for which no message was skipped.
    fn from(reports: Vec<PositionedReport>) -> Self {
        let read_to = reports.last().map(|last| last.position.cursor());
        Self { reports, read_to }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(tag = "kind")]
    enum Tagged {
        At { position: ReportPosition },
    }

    #[test]
    fn position_in_tagged_record_round_trips() {
        let position = ReportPosition {
            incarnation: Incarnation(u128::MAX - 1),
            sequence: 7,
            anchor: ExecId::from_bytes([3; 16]),
            said: ReportKind::Result,
            number: 0,
        };
        let text = serde_json::to_string(&Tagged::At { position }).expect("serializable");
        let back: Tagged = serde_json::from_str(&text).expect("readable");
        assert_eq!(back, Tagged::At { position });
    }
}
