//! Requests of the protocols of lock services, and how each is refused in the service's own words.

use super::contains;

/// A protocol whose requests can be refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// HTTP/1.1 of DynamoDB: every request is refused.
    DynamoDb,
    /// Logins are refused: the database itself refuses statements better.
    Postgres,
    /// RESP: scripts are refused.
    Redis,
    /// HTTP/1.1 of object stores, with errors in XML: every request is refused.
    S3,
    /// Reads and writes are refused; pings, logins and watches are not.
    ZooKeeper,
}

/// An error of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServiceRefusal {
    /// The code, as the service sends it: `READONLY`, `ThrottlingException`, `57P01`, the number of
    /// ZooKeeper's error or of gRPC's status.
    pub code: &'static str,
    /// The text, or its part that appears in the client's error.
    pub text: &'static str,
}

/// The requests of a client on one connection.
pub(super) struct RequestFilter {
    protocol: Protocol,
    /// The beginning of a request that has not arrived completely.
    buffer: Vec<u8>,
    /// Whether no request has arrived yet: the first one of ZooKeeper's opens the session, and has no type.
    is_new: bool,
}

/// What becomes of the requests in a piece.
#[derive(Default)]
pub(super) struct Treated {
    pub(super) forward: Vec<u8>,
    pub(super) answers: Vec<u8>,
    pub(super) refused: usize,
}

impl RequestFilter {
    pub(super) fn of(protocol: Protocol) -> Self {
        Self { protocol, buffer: Vec::new(), is_new: true }
    }

    /// `refusal` returns the error for a request, if it is to be refused.
    pub(super) fn treat(
        &mut self,
        piece: &[u8],
        refusal: impl Fn(&[u8]) -> Option<ServiceRefusal>,
    ) -> Treated {
        self.buffer.extend_from_slice(piece);
        let mut treated = Treated::default();
        while let Some(length) = self.length().filter(|length| *length <= self.buffer.len()) {
            let request: Vec<u8> = self.buffer.drain(..length).collect();
            let refusal = refusal(&request).filter(|_| self.is_refusable(&request));
            self.is_new &= !opens(&request);
            treated.refused += usize::from(refusal.is_some());
            match refusal {
                None => treated.forward.extend(request),
                // The server itself answers with the error, so that the order of answers stays.
                Some(ServiceRefusal { code, text }) if self.protocol == Protocol::Redis => {
                    let script = format!("return redis.error_reply('{code} {text}')");
                    let command = ["EVAL", &script, "0"].map(|word| format!("${}\r\n{word}\r\n", word.len()));
                    treated.forward.extend(format!("*3\r\n{}", command.concat()).bytes());
                }
                Some(refusal) => treated.answers.extend(self.answer(&request, &refusal)),
            }
        }
        treated
    }

    /// The length of the first request in the buffer, if it can be found out already.
    fn length(&self) -> Option<usize> {
        let line_end = |from: usize| Some(from + find(&self.buffer[from..], b"\r\n")? + 2);
        match self.protocol {
            Protocol::ZooKeeper => Some(4 + usize::try_from(number_at(&self.buffer, 0)?).ok()?),
            Protocol::Postgres => Some(self.buffer.len()).filter(|length| *length > 0),
            Protocol::DynamoDb | Protocol::S3 => {
                let head = find(&self.buffer, b"\r\n\r\n")? + 4;
                let text = String::from_utf8_lossy(&self.buffer[..head]).to_ascii_lowercase();
                let length =
                    text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
                Some(head + length.unwrap_or(0))
            }
            Protocol::Redis => {
                let count = |at: usize, end: usize| -> Option<usize> {
                    std::str::from_utf8(&self.buffer[at + 1..end - 2]).ok()?.parse().ok()
                };
                let mut end = line_end(0)?;
                for _ in 0..count(0, end)? {
                    let word = line_end(end)?;
                    end = word + count(end, word)? + 2;
                    self.buffer.get(..end)?;
                }
                Some(end)
            }
        }
    }

    fn is_refusable(&self, request: &[u8]) -> bool {
        match self.protocol {
            Protocol::DynamoDb | Protocol::S3 => true,
            Protocol::Postgres => self.is_new && opens(request),
            Protocol::Redis => ["EVAL", "eval"]
                .iter()
                .any(|eval| contains(&request[..request.len().min(16)], eval.as_bytes())),
            // A ping has type 11; logins, sessions and watches have those from 100 on, or below 0.
            Protocol::ZooKeeper => {
                !self.is_new
                    && number_at(request, 8).is_some_and(|kind| (1..100).contains(&kind) && kind != 11)
            }
        }
    }

    fn answer(&self, request: &[u8], refusal: &ServiceRefusal) -> Vec<u8> {
        let ServiceRefusal { code, text } = refusal;
        if self.protocol == Protocol::ZooKeeper {
            // Length, number of the request, transaction (none), error.
            let error: i32 = code.parse().expect("errors of ZooKeeper are numbers");
            return [&16_i32.to_be_bytes()[..], &request[4..8], &[0; 8], &error.to_be_bytes()].concat();
        }
        if self.protocol == Protocol::Postgres {
            let fields = format!("SFATAL\0VFATAL\0C{code}\0M{text}\0\0");
            let length = i32::try_from(4 + fields.len()).expect("it is short");
            return [b"E", &length.to_be_bytes()[..], fields.as_bytes()].concat();
        }
        let status = match *code {
            "InternalServerError" | "InternalError" => 500,
            "ServiceUnavailable" | "SlowDown" => 503,
            "TooManyRequests" => 429,
            "ConditionalRequestConflict" => 409,
            "NotImplemented" => 501,
            "AccessDenied" | "RequestTimeTooSkewed" | "SignatureDoesNotMatch" => 403,
            _ => 400,
        };
        if self.protocol == Protocol::S3 {
            let body = format!("<Error><Code>{code}</Code><Message>{text}</Message></Error>");
            let kind = "content-type: application/xml";
            return format!("HTTP/1.1 {status} x\r\n{kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
                .into_bytes();
        }
        let body = format!(r#"{{"__type":"com.amazonaws.dynamodb.v20120810#{code}","message":"{text}"}}"#);
        let kind = "content-type: application/x-amz-json-1.0";
        format!("HTTP/1.1 {status} x\r\n{kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
    }
}

/// Whether this first request opens a session, and does not ask whether the server of PostgreSQL speaks TLS.
fn opens(request: &[u8]) -> bool {
    const TLS: i32 = 80_877_103;
    number_at(request, 4) != Some(TLS)
}

/// The big-endian number at this offset.
fn number_at(bytes: &[u8], offset: usize) -> Option<i32> {
    Some(i32::from_be_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    bytes.windows(text.len()).position(|window| window == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSAL: ServiceRefusal = ServiceRefusal { code: "-127", text: "too much" };

    /// The forwarded bytes, the answers, and the number of refused requests; each byte of the input is a
    /// piece.
    fn treat(protocol: Protocol, requests: &[u8]) -> (String, Vec<u8>, usize) {
        let mut state = RequestFilter::of(protocol);
        let mut all = Treated::default();
        for byte in requests {
            let treated = state.treat(&[*byte], |_| Some(REFUSAL));
            all.forward.extend(treated.forward);
            all.answers.extend(treated.answers);
            all.refused += treated.refused;
        }
        (String::from_utf8_lossy(&all.forward).into_owned(), all.answers, all.refused)
    }

    #[test]
    fn whole_requests_are_refused_however_they_arrive() {
        let ping = "*1\r\n$4\r\nPING\r\n";
        let refused =
            treat(Protocol::Redis, format!("{ping}*2\r\n$4\r\nEVAL\r\n$4\r\na\r\nb\r\n{ping}").as_bytes());
        let script = "return redis.error_reply('-127 too much')";
        let raises = format!("*3\r\n$4\r\nEVAL\r\n${}\r\n{script}\r\n$1\r\n0\r\n", script.len());
        assert_eq!(refused, (format!("{ping}{raises}{ping}"), Vec::new(), 1));

        let request = |kind: i32| [&8_i32.to_be_bytes()[..], &[0, 0, 0, 7], &kind.to_be_bytes()].concat();
        let (opens, pings, creates) = (request(1), request(11), request(1));
        let (forward, answers, refused) =
            treat(Protocol::ZooKeeper, &[&opens[..], &pings, &creates].concat());
        assert_eq!((forward.len(), refused), (24, 1), "the first frame opens the session");
        assert_eq!(
            answers,
            [&[0, 0, 0, 16, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0][..], &(-127_i32).to_be_bytes()].concat()
        );

        let (forward, answers, refused) = treat(
            Protocol::DynamoDb,
            b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}POST / HTTP/1.1\r\n\r\n",
        );
        assert_eq!((forward.as_str(), refused), ("", 2));
        assert!(answers.starts_with(b"HTTP/1.1 400 x\r\n"));
    }
}
