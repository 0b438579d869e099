//! Explains TLS errors to the operator who set up the certificates.
//!
//! `rustls` reports the finding of a verifier or a peer. This module tells which certificate is
//! meant, and on which side. Pure.

use rustls::{AlertDescription, CertificateError, Error, InvalidMessage};

/// Returns an explanation of `error`, or the text of `rustls` without an explanation.
pub(super) fn why(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(found) => theirs(found),
        Error::NoCertificatesPresented => "the other side shows no certificate".to_owned(),
        Error::AlertReceived(alert) => ours(*alert),
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => {
            "the other side does not speak TLS".to_owned()
        }
        _ => error.to_string(),
    }
}

/// Explains the finding of the local side about the peer's certificate.
fn theirs(found: &CertificateError) -> String {
    use CertificateError as Found;
    let what = match found {
        // An authority with the same name but a different key is a different authority.
        Found::UnknownIssuer | Found::BadSignature => "was signed by another authority",
        Found::Expired | Found::ExpiredContext { .. } => "has run out",
        Found::NotValidYet | Found::NotValidYetContext { .. } => "is not valid yet",
        Found::NotValidForName
        | Found::NotValidForNameContext { .. }
        | Found::ApplicationVerificationFailure => "bears another name than is let in here",
        _ => return format!("the other side's certificate is refused: {found}"),
    };
    format!("the other side's certificate {what}")
}

/// Explains the peer's alert about the local certificate.
fn ours(alert: AlertDescription) -> String {
    use AlertDescription as Said;
    match alert {
        Said::UnknownCA | Said::DecryptError => {
            "the other side says that another authority has signed this side's certificate"
        }
        Said::CertificateExpired => "the other side says that this side's certificate has run out",
        Said::AccessDenied => "this side's certificate bears another name than is let in there",
        Said::CertificateRequired => "the other side wants a certificate",
        _ => return format!("the other side ends the handshake: {alert:?}"),
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_obstacle_has_a_sentence() {
        let certificate = Error::InvalidCertificate;
        let alert = Error::AlertReceived;
        let cases = [
            (certificate(CertificateError::UnknownIssuer), "was signed by another authority"),
            (certificate(CertificateError::BadSignature), "was signed by another authority"),
            (certificate(CertificateError::Expired), "the other side's certificate has run out"),
            (certificate(CertificateError::NotValidYet), "is not valid yet"),
            (certificate(CertificateError::NotValidForName), "bears another name"),
            (certificate(CertificateError::BadEncoding), "certificate is refused: "),
            (alert(AlertDescription::UnknownCA), "another authority has signed this side's"),
            (alert(AlertDescription::DecryptError), "another authority has signed this side's"),
            (alert(AlertDescription::CertificateExpired), "this side's certificate has run out"),
            (alert(AlertDescription::AccessDenied), "than is let in there"),
            (alert(AlertDescription::CertificateRequired), "wants a certificate"),
            (alert(AlertDescription::InternalError), "InternalError"),
            (Error::NoCertificatesPresented, "shows no certificate"),
            (Error::InvalidMessage(InvalidMessage::InvalidContentType), "does not speak TLS"),
            (Error::DecryptError, "decrypt"),
        ];
        for (error, sentence) in cases {
            assert!(why(&error).contains(sentence), "{error:?}: {}", why(&error));
        }
    }
}
