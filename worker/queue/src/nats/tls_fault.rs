//! Faults of TLS: both sides answer and do not agree. Some end every attempt the same way.

use std::error::Error;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::{AlertDescription, CertificateError, InvalidMessage};

/// Beginnings of the texts of such faults: the client passes on the texts alone when it connects
/// again.
const TEXTS: [&str; 4] = [
    "TLS error",
    "invalid peer certificate",
    "received fatal alert",
    "received corrupt message of type InvalidContentType",
];

/// Whether the settings of a side have to change, for certain, before a connection is possible. The server
/// has introduced itself in plain text before TLS begins, so it is a NATS server that is ready. Other faults
/// may pass: an alert of a proxy whose servers are not ready, and a certificate that is not valid yet on a
/// host that has just booted, whose clock may be behind.
pub(super) fn is_final(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(cause) = next {
        let inner = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let fault = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if let Some(fault) = fault.or_else(|| cause.downcast_ref::<rustls::Error>()) {
            return is_refusal(fault);
        }
        next = cause.source();
    }
    false
}

fn is_refusal(fault: &rustls::Error) -> bool {
    match fault {
        rustls::Error::InconsistentKeys(_)
        | rustls::Error::NoCertificatesPresented
        // The server goes on in plain text: it has no TLS.
        | rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => true,
        rustls::Error::InvalidCertificate(reason) => matches!(
            reason,
            CertificateError::UnknownIssuer
                // By an authority of the same name, such as one that was made again.
                | CertificateError::BadSignature
                | CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidForName
                | CertificateError::NotValidForNameContext { .. }
                | CertificateError::Revoked
        ),
        rustls::Error::AlertReceived(alert) => matches!(
            alert,
            AlertDescription::UnknownCA
                | AlertDescription::BadCertificate
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateRequired
        ),
        _ => false,
    }
}

/// Why the last attempt to connect again failed.
#[derive(Debug, Default)]
pub(super) struct ReconnectFailure {
    reason: Mutex<FailureReason>,
}

#[derive(Debug, Default)]
struct FailureReason {
    last: Option<String>,
    /// The last one that was reported.
    reported: Option<String>,
}

impl ReconnectFailure {
    pub(super) fn set(&self, reason: Option<&str>) {
        // The kind of the error says nothing that its cause does not.
        let reason = reason.map(|text| text.strip_prefix("IO error: ").unwrap_or(text).to_owned());
        self.reason().last = reason;
    }

    /// The reason, for errors.
    pub(super) fn get(&self) -> Option<String> {
        self.reason().last.clone()
    }

    /// Forgets what was before a connection.
    pub(super) fn clear(&self) {
        *self.reason() = FailureReason::default();
    }

    /// A reason that settings have to change for, once for each outage.
    pub(super) fn take_unreported(&self) -> Option<String> {
        let mut reason = self.reason();
        let last = reason.last.clone()?;
        let is_known = reason.reported.as_ref() == Some(&last);
        if is_known || !TEXTS.iter().any(|text| last.starts_with(text)) {
            return None;
        }
        reason.reported = Some(last.clone());
        Some(last)
    }

    fn reason(&self) -> MutexGuard<'_, FailureReason> {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_nats::{ConnectError, ConnectErrorKind};

    #[test]
    fn refusal_of_tls_is_final_and_what_may_pass_is_not() {
        let io = |fault: rustls::Error| {
            let cause = io::Error::new(io::ErrorKind::InvalidData, fault);
            is_final(&ConnectError::with_source(ConnectErrorKind::Io, cause))
        };
        assert!(io(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)));
        assert!(io(rustls::Error::InvalidCertificate(CertificateError::BadSignature)));
        assert!(io(rustls::Error::AlertReceived(AlertDescription::CertificateRequired)));
        assert!(io(rustls::Error::InvalidCertificate(CertificateError::Expired)));
        assert!(io(rustls::Error::AlertReceived(AlertDescription::UnknownCA)));
        assert!(!io(rustls::Error::InvalidCertificate(CertificateError::NotValidYet)));
        assert!(io(rustls::Error::InvalidCertificate(CertificateError::NotValidForName)));
        assert!(io(InvalidMessage::InvalidContentType.into()), "the server has no TLS");
        assert!(!io(InvalidMessage::MessageTooShort.into()));
        for alert in [
            AlertDescription::CloseNotify,
            AlertDescription::HandshakeFailure,
            AlertDescription::InternalError,
            AlertDescription::UnrecognisedName,
        ] {
            assert!(!io(rustls::Error::AlertReceived(alert)), "{alert:?}");
        }
        let refused = io::Error::from_raw_os_error(111);
        assert!(!is_final(&ConnectError::with_source(ConnectErrorKind::Io, refused)));
    }

    #[test]
    fn fault_of_settings_is_reported_once_for_each_outage() {
        let failure = ReconnectFailure::default();
        failure.set(Some("IO error: Connection refused (os error 111)"));
        assert_eq!(failure.take_unreported(), None);
        assert_eq!(failure.get().as_deref(), Some("Connection refused (os error 111)"));
        failure.set(Some("IO error: invalid peer certificate: UnknownIssuer"));
        let reason = Some("invalid peer certificate: UnknownIssuer".to_owned());
        assert_eq!(failure.take_unreported(), reason);
        assert_eq!(failure.take_unreported(), None);
        failure.set(Some("IO error: received corrupt message of type InvalidContentType"));
        assert!(failure.take_unreported().is_some(), "the server has lost its TLS");
        failure.clear();
        assert_eq!(failure.get(), None);
        failure.set(Some("IO error: invalid peer certificate: UnknownIssuer"));
        assert_eq!(failure.take_unreported(), reason);
    }
}
