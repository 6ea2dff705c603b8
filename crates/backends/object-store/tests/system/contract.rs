//! The contract suite on SeaweedFS, in both layouts, through a proxy for each client.

use std::net::SocketAddr;
use std::time::Duration;

use lockkeeper::BackendErrorKind::{self, Denied, Operator, Refused, Unreachable};
use lockkeeper::{Locks, Wait};
use lockkeeper_contract::{Fault, Subject, until};
use lockkeeper_rig::{Faults, Protocol, SeaweedFs, ServiceRefusal};

use crate::{TTL, address, foreign, request, url};

struct Server {
    seaweedfs: SeaweedFs,
    faults: Faults,
    /// In the address.
    layout: &'static str,
}

impl Server {
    fn new() -> Self {
        Self { seaweedfs: SeaweedFs::start(&foreign()), faults: Faults::of(Protocol::S3), layout: "" }
    }

    fn terraform() -> Self {
        Self { layout: "&layout=terraform", ..Self::new() }
    }

    fn address(&self) -> SocketAddr {
        address(self.seaweedfs.port())
    }

    async fn direct(&self, label: &str) -> Locks {
        Locks::connect_as(&url(self.address(), self.layout), label).await.unwrap()
    }
}

const fn refusal(code: &'static str, text: &'static str) -> ServiceRefusal {
    ServiceRefusal { code, text }
}

const REFUSALS: &[(BackendErrorKind, ServiceRefusal)] = &[
    (Unreachable, refusal("SlowDown", "Please reduce your request rate.")),
    (Unreachable, refusal("TooManyRequests", "The object exceeded the rate limit")),
    (Unreachable, refusal("InternalError", "We encountered an internal error")),
    (Unreachable, refusal("ServiceUnavailable", "Service is not available")),
    (Unreachable, refusal("ExpiredToken", "The provided token has expired.")),
    (Denied, refusal("AccessDenied", "User is not authorized to perform this")),
    (Denied, refusal("SignatureDoesNotMatch", "The request signature does not match")),
    (Operator, refusal("RequestTimeTooSkewed", "The difference between the times is too large")),
    (Refused, refusal("NotImplemented", "A header is not implemented")),
];

impl Subject for Server {
    fn scheme(&self) -> &'static str {
        "s3"
    }

    fn ttl(&self) -> Option<Duration> {
        Some(TTL)
    }

    fn shows_waiters(&self) -> bool {
        false
    }

    async fn client(&self, label: &str) -> Locks {
        let proxy = self.faults.proxy(label, self.address());
        Locks::connect_as(&url(proxy, self.layout), label).await.unwrap()
    }

    fn refusals(&self) -> &'static [(BackendErrorKind, ServiceRefusal)] {
        REFUSALS
    }

    async fn crash_closing(&self, name: &str, _: Duration, lock_delay: Duration) {
        let label = format!("crashes with {name}");
        let client = self.client(&label).await;
        let held = client.mutex(name).ttl(TTL).lock_delay(lock_delay).acquire().await.unwrap();
        self.faults.cut_off(&label);
        // A hold expires only for those who wait for it.
        let operator = self.direct("operator").await;
        let waiting = operator.mutex(name).wait(Wait::For(3 * TTL)).acquire().await;
        assert_eq!(waiting.is_err(), !lock_delay.is_zero());
        if let Ok(taken) = waiting {
            taken.release().await.unwrap();
        }
        drop(held);
    }

    /// The hold of a client that does not respond ends when somebody who waits has observed it for its ttl.
    /// In Terraform's layout, only a forced unlock ends it.
    async fn take_away(&self, label: &str, name: &str) {
        if !self.layout.is_empty() {
            let object = format!("/lockkeeper/some/locks/{name}.tflock");
            assert_eq!(request(self.seaweedfs.port(), "DELETE", &object, "", ""), "204");
            return;
        }
        self.faults.cut_off(label);
        let operator = self.direct("operator").await;
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
        self.seaweedfs.stop();
        std::thread::sleep(duration);
        self.seaweedfs.cont();
        true
    }

    async fn restart(&self) {
        self.seaweedfs.kill();
        self.seaweedfs.start_again();
    }

    async fn wipe(&self) {
        self.seaweedfs.wipe();
    }
}

lockkeeper_contract::contract! {
    s3 => Server::new(), page "../../../docs/backends/object-store.md" column 1,
        faults [Fault::RefusedUntilLost, Fault::IdleCut];
    terraform => Server::terraform();
}
