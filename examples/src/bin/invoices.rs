//! A month's invoice, which several workers may be told to send: a queue delivers a message twice, a person
//! clicks again.
//!
//! The problem: the customer is to get one invoice, also if the second worker begins hours after the first
//! has ended. A lock alone keeps them from sending it at the same time only.
//!
//! Why a record: whoever has sent the invoice records it under the invoice's number. The next one takes the
//! lock, finds the record, and returns what the first one did.
//!
//! What is left: a worker that dies between the mail and the record leaves no record, and the next one sends
//! it again. The mail has the invoice's number as its message id, so that the customer's mail program can
//! tell.
//!
//! `invoices lockkeeper://locks.example /srv/records /srv/outbox 4711` sends one.

use std::error::Error;
use std::fs::OpenOptions;
use std::io::Write;

use lockkeeper::Locks;
use lockkeeper::once::FileRecords;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let [locks, records, outbox, number] =
        arguments().ok_or("usage: invoices LOCKS_URL RECORDS_DIR OUTBOX NUMBER")?;
    let locks = Locks::connect(&locks).await?;
    let records = FileRecords::new(records);
    let lock = locks.mutex(format!("invoices/{number}"));
    let sent =
        lock.once(&format!("invoice {number}"), &records, async |_attempt| send(&outbox, &number)).await?;
    let message = String::from_utf8_lossy(&sent.outcome);
    println!("{} {message}", if sent.is_new { "sent" } else { "was sent before:" });
    Ok(())
}

/// Sends the invoice; returns the message id.
fn send(outbox: &str, number: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let message = format!("<invoice-{number}@shop.example>");
    let mut outbox = OpenOptions::new().append(true).create(true).open(outbox)?;
    writeln!(outbox, "{message}")?;
    Ok(message.into_bytes())
}

fn arguments<const N: usize>() -> Option<[String; N]> {
    std::env::args().skip(1).collect::<Vec<_>>().try_into().ok()
}
