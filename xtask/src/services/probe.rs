//! Readiness checks of services.
//!
//! Responsible for one request and one answer over TCP on loopback. Knows no service: the catalogue defines
//! the request and the expected answer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A service on loopback answers within a millisecond; a busy machine may need longer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// Sends `question` to 127.0.0.1:`port` and reads until `wanted` has arrived. If `wanted` is empty, it is
/// enough that the port accepts connections.
///
/// # Errors
/// Connection refused, an unexpected answer, or no answer.
pub(crate) fn ask(port: u16, question: &str, wanted: &str) -> Result<(), String> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut stream = TcpStream::connect_timeout(&address, ANSWERS_WITHIN)
        .map_err(|error| format!("port {port} does not answer: {error}"))?;
    let limited = stream.set_read_timeout(Some(ANSWERS_WITHIN));
    let asked = limited.and_then(|()| stream.write_all(question.as_bytes()));
    asked.map_err(|error| format!("port {port} does not take a question: {error}"))?;
    if wanted.is_empty() {
        return Ok(());
    }
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        match stream.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => answer.extend_from_slice(&chunk[..read]),
            Err(error) => return Err(format!("port {port} gives no answer: {error}")),
        }
        if String::from_utf8_lossy(&answer).contains(wanted) {
            return Ok(());
        }
    }
    let answer = String::from_utf8_lossy(&answer);
    Err(format!("port {port} answered {:?}, without {wanted:?}", answer.trim()))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Serves one connection: reads a request of `length` bytes, then sends `answer` in two pieces.
    fn answering(length: usize, answer: [&'static str; 2]) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut vec![0; length]).unwrap();
            answer.iter().for_each(|piece| stream.write_all(piece.as_bytes()).unwrap());
        });
        port
    }

    #[test]
    fn the_expected_answer_means_ready_and_others_are_quoted() {
        assert_eq!(ask(answering(4, ["im", "ok"]), "ruok", "imok"), Ok(()));
        let why = ask(answering(4, ["not ", "serving"]), "ruok", "imok").unwrap_err();
        assert!(why.contains("not serving") && why.contains("imok"), "{why}");
    }

    #[test]
    fn a_closed_port_is_named_in_the_error() {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let why = ask(free, "ruok", "imok").unwrap_err();
        assert!(why.contains(&free.to_string()), "{why}");
    }
}
