//! Metadata of a delivery, which the server puts into the subject of its acknowledgement.

/// The server's metadata of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeliveryMetadata<'a> {
    /// Consumer.
    pub(super) consumer: &'a str,
    /// Delivery count of the message.
    pub(super) delivered: u32,
    /// Sequence of the message in its stream.
    pub(super) sequence: u64,
    /// Messages that the consumer has not delivered yet.
    pub(super) pending: u64,
}

impl<'a> DeliveryMetadata<'a> {
    /// Reads both forms: `$JS.ACK.<stream>.<consumer>.<delivered>.<sequence>.<consumer sequence>.
    /// <time>.<pending>`, and the same after a domain and an account, with any suffix.
    pub(super) fn parse(subject: &'a str) -> Option<Self> {
        let rest = subject.strip_prefix("$JS.ACK.")?;
        let tokens = rest.split('.').count();
        let mut parts = rest.split('.');
        if tokens != 7 {
            // The long form has at least nine.
            (tokens >= 9).then(|| parts.nth(1))?;
        }
        let _stream = parts.next()?;
        let consumer = parts.next()?;
        let delivered: u64 = parts.next()?.parse().ok()?;
        let sequence = parts.next()?.parse().ok()?;
        let pending = parts.nth(2)?.parse().ok()?;
        let delivered = u32::try_from(delivered).unwrap_or(u32::MAX);
        Some(Self { consumer, delivered, sequence, pending })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_subject_short_and_long_form_is_parsed() {
        let meta = DeliveryMetadata { consumer: "pool-c0", delivered: 2, sequence: 17, pending: 5 };
        let short = "$JS.ACK.ROLLOUT_WORK.pool-c0.2.17.23.1700000000000000000.5";
        let long = "$JS.ACK._.Xy7.ROLLOUT_WORK.pool-c0.2.17.23.1700000000000000000.5";
        for subject in [short, long, &format!("{long}.random")] {
            assert_eq!(DeliveryMetadata::parse(subject), Some(meta), "{subject}");
        }
        for bad in ["", "_INBOX.x", "$JS.ACK.a.b.1.2.3.4", "$JS.ACK.a.b.x.2.3.4.5"] {
            assert_eq!(DeliveryMetadata::parse(bad), None, "{bad}");
        }
    }
}
