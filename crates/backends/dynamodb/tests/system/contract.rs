//! `dynamodb:`, on an emulator, through a proxy for each client.
//!
//! DynamoDB itself can't be restarted, and the emulator loses its items when it ends: what is durable is not
//! measured here.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use lockkeeper::BackendErrorKind::{self, Denied, Operator, Refused, Unreachable};
use lockkeeper::backends::dynamodb::init;
use lockkeeper::{Locks, Wait};
use lockkeeper_contract::{Fault, Subject, until};
use lockkeeper_rig::{DynamoDb, Faults, Protocol, ServiceRefusal};

const TTL: Duration = Duration::from_secs(2);

struct Server {
    dynamodb: DynamoDb,
    faults: Faults,
}

impl Server {
    async fn new() -> Self {
        let dynamodb = DynamoDb::start(&Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("foreign"));
        let server = Self { dynamodb, faults: Faults::of(Protocol::DynamoDb) };
        assert!(init(&server.url(server.address())).await.unwrap());
        server
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.dynamodb.port()))
    }

    fn url(&self, address: SocketAddr) -> String {
        format!("dynamodb://locks?region=eu-central-1&credentials=none&poll_ms=20&endpoint=http://{address}")
    }
}

impl Subject for Server {
    fn scheme(&self) -> &'static str {
        "dynamodb"
    }

    fn ttl(&self) -> Option<Duration> {
        Some(TTL)
    }

    fn shows_waiters(&self) -> bool {
        false
    }

    async fn client(&self, label: &str) -> Locks {
        let proxy = self.faults.proxy(label, self.address());
        Locks::connect_as(&self.url(proxy), label).await.unwrap()
    }

    fn refusals(&self) -> &'static [(BackendErrorKind, ServiceRefusal)] {
        &[
            (
                Unreachable,
                ServiceRefusal {
                    code: "ThrottlingException",
                    text: "Rate of requests exceeds the allowed throughput.",
                },
            ),
            (
                Unreachable,
                ServiceRefusal {
                    code: "ProvisionedThroughputExceededException",
                    text: "The level of configured throughput was exceeded.",
                },
            ),
            (
                Unreachable,
                ServiceRefusal {
                    code: "RequestLimitExceeded",
                    text: "Throughput exceeds the current limit of your account.",
                },
            ),
            (
                Unreachable,
                ServiceRefusal {
                    code: "ExpiredTokenException",
                    text: "The security token included in the request is expired",
                },
            ),
            (Unreachable, ServiceRefusal { code: "InternalServerError", text: "Internal server error" }),
            (Unreachable, ServiceRefusal { code: "ServiceUnavailable", text: "Service is not available" }),
            (
                Denied,
                ServiceRefusal {
                    code: "AccessDeniedException",
                    text: "User is not authorized to perform this",
                },
            ),
            (
                Denied,
                ServiceRefusal {
                    code: "UnrecognizedClientException",
                    text: "The security token is invalid.",
                },
            ),
            (
                Operator,
                ServiceRefusal { code: "ResourceNotFoundException", text: "Requested resource not found" },
            ),
            (
                Refused,
                ServiceRefusal { code: "ValidationException", text: "Item size has exceeded the maximum" },
            ),
        ]
    }

    async fn crash_closing(&self, name: &str, keep_closed: Duration, lock_delay: Duration) {
        let label = format!("crashes with {name}");
        let client = self.client(&label).await;
        let lock = client.mutex(name).ttl(TTL).keep_closed(keep_closed).lock_delay(lock_delay);
        let held = lock.acquire().await.unwrap();
        self.faults.cut_off(&label);
        // A hold expires only for those who wait for it.
        let operator = Locks::connect_as(&self.url(self.address()), "operator").await.unwrap();
        let waiting = operator.mutex(name).wait(Wait::For(3 * TTL)).acquire().await;
        assert_eq!(waiting.is_err(), !lock_delay.is_zero());
        if let Ok(taken) = waiting {
            taken.release().await.unwrap();
        }
        drop(held);
    }

    /// The hold of a client that does not respond ends when somebody who waits has observed it for its ttl.
    async fn take_away(&self, label: &str, name: &str) {
        self.faults.cut_off(label);
        let operator = Locks::connect_as(&self.url(self.address()), "operator").await.unwrap();
        let token = operator.inspect(name).await.unwrap().holds[0].token;
        let taken = operator.mutex(name).acquire().await.unwrap();
        assert!(taken.token_hint() > token);
        taken.release().await.unwrap();
        until("the lock is free", async || {
            operator.inspect(name).await.unwrap().holds.is_empty().then_some(())
        })
        .await;
    }

    fn faults(&self) -> Option<&Faults> {
        Some(&self.faults)
    }

    fn stall(&self, duration: Duration) -> bool {
        self.dynamodb.stop();
        std::thread::sleep(duration);
        self.dynamodb.cont();
        true
    }

    async fn restart(&self) {}

    async fn wipe(&self) {
        self.dynamodb.wipe();
        assert!(init(&self.url(self.address())).await.unwrap());
    }
}

lockkeeper_contract::contract! {
    // The emulator closes each connection itself.
    dynamodb => Server::new().await, page "../../../docs/backends/dynamodb.md" column 1, faults [Fault::RefusedUntilLost];
}
