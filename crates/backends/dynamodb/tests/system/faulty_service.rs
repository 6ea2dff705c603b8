//! An HTTP proxy in front of the emulator that answers some requests as DynamoDB does under load.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use lockkeeper_rig::DynamoDb;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What happens to a request in place of its execution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    /// DynamoDB refuses it with this code.
    Refused(&'static str),
    /// DynamoDB cancels the transaction with these reasons, one for each item.
    Cancelled([&'static str; 2]),
    /// DynamoDB executes it, and its answer is an internal error.
    AnswerLost,
    /// What answers has more to send than anybody wants.
    AnswerWithoutEnd,
}

/// The proxy, and the faults of the next requests: each of the next one with this operation.
#[derive(Clone, Default)]
pub(crate) struct FaultyService {
    faults: Arc<Mutex<VecDeque<(&'static str, Fault)>>>,
}

impl FaultyService {
    /// Starts a proxy; returns the URL of its endpoint.
    pub(crate) async fn start(&self, server: &DynamoDb) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (faults, port) = (self.faults.clone(), server.port());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let faults = faults.clone();
                tokio::spawn(async move {
                    // A connection that breaks is the client's to replace.
                    let _ = serve(client, port, &faults).await;
                });
            }
        });
        url
    }

    pub(crate) fn fail(&self, operation: &'static str, faults: impl IntoIterator<Item = Fault>) {
        self.faults.lock().unwrap().extend(faults.into_iter().map(|fault| (operation, fault)));
    }

    /// Checks that every fault has happened.
    pub(crate) fn assert_all_happened(&self) {
        assert_eq!(*self.faults.lock().unwrap(), []);
    }
}

/// Serves one request, and closes the connection.
async fn serve(
    mut client: TcpStream,
    port: u16,
    faults: &Mutex<VecDeque<(&'static str, Fault)>>,
) -> std::io::Result<()> {
    let Some((head, body)) = read_request(&mut client).await? else { return Ok(()) };
    let fault = {
        let mut faults = faults.lock().unwrap();
        let is_for = |operation: &str| head.contains(&format!("DynamoDB_20120810.{operation}\r\n"));
        let at = faults.iter().position(|(operation, _)| is_for(operation));
        at.and_then(|at| faults.remove(at)).map(|(_, fault)| fault)
    };
    let answer = match fault {
        Some(Fault::Refused(code)) => answer(400, code, ""),
        Some(Fault::Cancelled(reasons)) => {
            let reasons = reasons.map(|code| format!(r#"{{"Code":"{code}"}}"#)).join(",");
            let more = format!(r#","CancellationReasons":[{reasons}]"#);
            answer(400, "TransactionCanceledException", &more)
        }
        Some(Fault::AnswerWithoutEnd) => {
            client.write_all(b"HTTP/1.1 200 x\r\ncontent-type: application/x-amz-json-1.0\r\n\r\n").await?;
            loop {
                client.write_all(&[b' '; 1 << 16]).await?;
            }
        }
        None | Some(Fault::AnswerLost) => {
            let executed = execute(&head, &body, port).await?;
            match fault {
                Some(_) => answer(500, "InternalServerError", ""),
                None => executed,
            }
        }
    };
    client.write_all(&answer).await?;
    client.shutdown().await
}

async fn read_request(client: &mut TcpStream) -> std::io::Result<Option<(String, Vec<u8>)>> {
    let mut bytes = Vec::new();
    loop {
        if client.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&bytes[..end + 2]).into_owned();
        let length = |line: &str| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
        };
        let mut body = bytes.split_off(end + 4);
        let length = head.lines().find_map(length).unwrap_or_default();
        while body.len() < length {
            if client.read_buf(&mut body).await? == 0 {
                return Ok(None);
            }
        }
        return Ok(Some((head, body)));
    }
}

async fn execute(head: &str, body: &[u8], port: u16) -> std::io::Result<Vec<u8>> {
    let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
    server.write_all(format!("{head}connection: close\r\n\r\n").as_bytes()).await?;
    server.write_all(body).await?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).await?;
    Ok(answer)
}

fn answer(status: u16, code: &str, more: &str) -> Vec<u8> {
    let body =
        format!(r#"{{"__type":"com.amazonaws.dynamodb.v20120810#{code}","message":"by the test"{more}}}"#);
    let head = format!(
        "HTTP/1.1 {status} x\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body.as_bytes()].concat()
}
