//! The common suite, over HTTP: the responses agree with the rule.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lockkeeper_fence::http::Rules;
use lockkeeper_fence::{DurableMarks, Marks, ModeKind, Refused, Section};

use crate::http::rig::{Answer, Service, resource};
use crate::suite::{Subject, contract, token};

contract!(durable => Client);

/// A client of one path.
struct Client {
    shop: Arc<Shop>,
    path: String,
}

struct Shop {
    service: Service<DurableMarks>,
    paths: AtomicU64,
    /// The directory of the marks, which must outlive them.
    _dir: tempfile::TempDir,
}

impl Client {
    async fn ask(&self, method: &str, path: &str, action: &str, section: Section, body: u64) -> Answer {
        let mode = match (section.mode(), section.slot()) {
            (ModeKind::Permit, Some(slot)) => format!("permit;slot={slot}"),
            (mode, _) => mode.to_string(),
        };
        let request = format!(
            "{method} {path}|Fencing-Resource: {}|Fencing-Token: {}|Fencing-Mode: {mode}|Fencing-Action: {action}||{body}",
            self.path,
            section.token()
        );
        self.shop.service.ask(&request).await
    }
}

/// Parses a response as a client does.
fn understood(answer: &Answer, action: lockkeeper_fence::Action) -> Result<(), Refused> {
    let number = |member: &str| {
        let rest = answer.body.split(&format!("\"{member}\":")).nth(1).expect("a member");
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        token(digits.parse().expect("a number"))
    };
    match answer.status {
        200 | 204 => Ok(()),
        412 => Err(Refused::Stale { offered: number("offered"), highest: number("highest") }),
        409 => Err(Refused::Repeated { token: number("offered") }),
        400 if answer.problem() == "shared-write" => Err(Refused::SharedWrite { action }),
        other => panic!("{other}: {answer:?}"),
    }
}

impl Subject for Client {
    type World = Arc<Shop>;
    const ROUNDS: u64 = 20;
    const WAITS: bool = true;

    async fn world() -> Arc<Shop> {
        let dir = tempfile::tempdir().expect("a directory");
        let marks = DurableMarks::open(dir.path().join("marks.redb")).expect("new");
        let service = Service::with(marks, Rules::default()).await;
        Arc::new(Shop { service, paths: AtomicU64::new(0), _dir: dir })
    }

    async fn fresh(shop: &Arc<Shop>) -> Self {
        let number = shop.paths.fetch_add(1, Ordering::Relaxed);
        Self { shop: Arc::clone(shop), path: format!("/n{number}") }
    }

    async fn another(&self) -> Self {
        Self { shop: Arc::clone(&self.shop), path: self.path.clone() }
    }

    async fn enter(&self, section: Section) -> Result<(), Refused> {
        // Alternates between the two ways to enter.
        let method = if section.token().get().is_multiple_of(2) { "POST" } else { "GET" };
        let answer = self.ask(method, &self.path, "enter", section, 0).await;
        understood(&answer, lockkeeper_fence::Action::Enter)
    }

    async fn read(&self) -> u64 {
        let answer = self.shop.service.ask(&format!("GET {}", self.path)).await;
        answer.body.parse().expect("a number")
    }

    async fn write(&self, section: Section, number: u64) -> Result<(), Refused> {
        let answer = self.ask("PUT", &self.path, "write", section, number).await;
        understood(&answer, lockkeeper_fence::Action::Write)
    }

    async fn check_once(&self, section: Section) -> Result<(), Refused> {
        let answer = self.ask("PUT", "/who", "check_once", section, 0).await;
        understood(&answer, lockkeeper_fence::Action::CheckOnce)
    }

    async fn marks(&self) -> Marks {
        self.shop.service.fence.marks(&resource(&self.path)).await.expect("kept")
    }
}
