//! When this client's certificate is valid.
//!
//! In TLS 1.3, a server refuses a client's certificate only after the client's handshake is over, and its
//! reason may be lost with the connection. So the file is looked at before a connection is opened.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::url::Url;

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";
const SEQUENCE: u8 = 0x30;
/// The tag of the version, which precedes the serial number in all but the oldest certificates.
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// A client's certificate, and the times between which it is valid.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientCertificate {
    file: String,
    begins: SystemTime,
    ends: SystemTime,
}

impl ClientCertificate {
    /// The first certificate of a text in PEM; `None` if it can't be read, which is for the TLS library to
    /// report. `file`: its path, for messages.
    #[must_use]
    pub fn of_pem(file: &str, pem: &str) -> Option<Self> {
        let (_, body) = pem.split_once(BEGIN)?;
        let text: String = body.split_once(END)?.0.split_whitespace().collect();
        let [begins, ends] = validity(&STANDARD.decode(text).ok()?)?;
        Some(Self { file: file.to_owned(), begins, ends })
    }

    /// The path of its file.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// When it ends.
    #[must_use]
    pub fn ends(&self) -> SystemTime {
        self.ends
    }

    /// Why no server accepts it at this time, and the remedy; `None` if it is valid.
    #[must_use]
    pub fn fault(&self, now: SystemTime) -> Option<String> {
        let file = &self.file;
        if now > self.ends {
            Some(format!(
                "this client's certificate `{file}` ended at {}: renew it (`lockkeeper tls renew`), or name another one",
                rfc3339(self.ends)
            ))
        } else if now < self.begins {
            Some(format!(
                "this client's certificate `{file}` is valid only from {} on: set this host's clock, or name another one",
                rfc3339(self.begins)
            ))
        } else {
            None
        }
    }
}

impl Url {
    /// This client's certificate, if the URL names one that can be read.
    #[must_use]
    pub fn client_certificate(&self) -> Option<ClientCertificate> {
        let named = |key: &str| self.parameter::<String>(key, "the path of a file").ok().flatten();
        let file = named("tls-cert").or_else(|| named("sslcert"))?;
        ClientCertificate::of_pem(&file, &std::fs::read_to_string(&file).ok()?)
    }
}

/// The beginning and end of a certificate in DER (RFC 5280, 4.1).
fn validity(der: &[u8]) -> Option<[SystemTime; 2]> {
    let (certificate, _) = element(der, SEQUENCE)?;
    let (signed, _) = element(certificate, SEQUENCE)?;
    let serial = element(signed, VERSION).map_or(signed, |(_, rest)| rest);
    // The serial number, the algorithm of the signature, and the issuer.
    let rest = (0..3).try_fold(serial, |rest, _| element(rest, *rest.first()?).map(|(_, rest)| rest))?;
    let (validity, _) = element(rest, SEQUENCE)?;
    let (begins, rest) = time(validity)?;
    Some([begins, time(rest)?.0])
}

/// The content of the first element, which has this tag, and what follows it.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&[found, first], mut rest) = der.split_first_chunk()?;
    let mut length = usize::from(first);
    if first >= 0x80 {
        let (bytes, after) = rest.split_at_checked(usize::from(first & 0x7f)).filter(|it| it.0.len() <= 4)?;
        length = bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        rest = after;
    }
    rest.split_at_checked(length).filter(|_| found == tag)
}

/// A time, `YYMMDDHHMMSSZ` or with four digits of the year; and what follows it.
fn time(der: &[u8]) -> Option<(SystemTime, &[u8])> {
    let (digits, rest, year_digits) = match element(der, UTC_TIME) {
        Some((digits, rest)) => (digits, rest, 2),
        None => element(der, GENERALIZED_TIME).map(|(digits, rest)| (digits, rest, 4))?,
    };
    let digits = std::str::from_utf8(digits).ok()?.strip_suffix('Z')?;
    let (year, fields) = digits.split_at_checked(year_digits).filter(|(_, fields)| fields.len() == 10)?;
    let year: u64 = year.parse().ok()?;
    let year = if year_digits == 4 { year } else { year + if year < 50 { 2000 } else { 1900 } };
    let field = |at: usize| fields.get(at..at + 2)?.parse::<u64>().ok();
    let [month, day, hour, minute, second] = [field(0)?, field(2)?, field(4)?, field(6)?, field(8)?];
    let is_time = (1970..10_000).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    let days = is_time.then(|| days_before(year, month) + day - 1)?;
    let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
    Some((SystemTime::UNIX_EPOCH + Duration::from_secs(seconds), rest))
}

/// The days from the beginning of 1970 to that of a month.
fn days_before(year: u64, month: u64) -> u64 {
    // Years are counted from March, so that the day of a leap year is the last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 - 719_468
}

/// A time as `2026-11-29T14:43:38Z`.
fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let year = (1970..).take_while(|year| days_before(*year, 1) <= days).last().unwrap_or(1970);
    let month = (1..=12).take_while(|month| days_before(year, *month) <= days).last().unwrap_or(1);
    let day = days - days_before(year, month) + 1;
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tag` with this content.
    fn der(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = u16::try_from(content.len()).unwrap().to_be_bytes();
        [&[tag, 0x82], &length[..], content].concat()
    }

    fn pem(begins: (u8, &str), ends: (u8, &str)) -> String {
        let [begins, ends] = [begins, ends].map(|(tag, text)| der(tag, text.as_bytes()));
        let version_and_serial = [der(VERSION, &[2, 1, 2]), der(2, &[7])].concat();
        let algorithm_and_issuer = [der(SEQUENCE, &[]), der(SEQUENCE, b"of no interest")].concat();
        let validity = der(SEQUENCE, &[begins, ends].concat());
        let signed = der(SEQUENCE, &[version_and_serial, algorithm_and_issuer, validity].concat());
        format!("a comment\n{BEGIN}\n{}\n{END}\n", STANDARD.encode(der(SEQUENCE, &signed)))
    }

    #[test]
    fn certificate_that_has_ended_or_has_not_begun_is_told_with_the_time() {
        let text = pem((UTC_TIME, "240229120000Z"), (GENERALIZED_TIME, "20501231235959Z"));
        let certificate = ClientCertificate::of_pem("a.pem", &text).unwrap();
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        // As `date -d TIME +%s` counts them.
        let (begins, ends) = (at(1_709_208_000), at(2_556_143_999));
        assert_eq!((certificate.begins, certificate.ends()), (begins, ends));
        assert_eq!([begins, ends].map(|time| certificate.fault(time)), [None, None]);
        let early = certificate.fault(begins - Duration::from_secs(1)).unwrap();
        assert!(early.contains("`a.pem` is valid only from 2024-02-29T12:00:00Z on"), "{early}");
        let late = certificate.fault(ends + Duration::from_secs(1)).unwrap();
        assert!(late.contains("`a.pem` ended at 2050-12-31T23:59:59Z"), "{late}");
    }

    #[test]
    fn text_that_is_no_certificate_has_no_times() {
        let good = pem((UTC_TIME, "240229120000Z"), (UTC_TIME, "490229120000Z"));
        let body = STANDARD.decode(good.lines().nth(2).unwrap()).unwrap();
        for end in 0..body.len() {
            let cut = format!("{BEGIN}\n{}\n{END}", STANDARD.encode(&body[..end]));
            assert_eq!(ClientCertificate::of_pem("", &cut), None, "{end}");
        }
        for bad in ["", "240229", "2402291200000Z", "241329120000Z", "24022912000éZ", "99999999999999Z"] {
            let text = pem((UTC_TIME, bad), (UTC_TIME, "490229120000Z"));
            assert_eq!(ClientCertificate::of_pem("", &text), None, "{bad}");
        }
        assert_eq!(ClientCertificate::of_pem("", &good.replace("BEGIN", "END")), None);
    }
}
