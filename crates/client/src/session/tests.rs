//! What the driver must not mix up: words on one session and words on the next.

use std::time::{Duration, Instant};

use lockkeeper_core::{LockName, TokenStatus};

use super::*;
use crate::backend::{BreakOrder, Broken};
use crate::capabilities::Capabilities;
use crate::error::{BackendError, LossCause};
use crate::info::LockInfo;
use crate::locks::Locks;

/// `memory:` that keeps every way by which a session's pushes come, to say something on it later.
struct Spy {
    memory: Arc<dyn Backend>,
    pushes: Arc<Mutex<Vec<UnboundedSender<Push>>>>,
}

impl Backend for Spy {
    fn capabilities(&self) -> &Capabilities {
        self.memory.capabilities()
    }

    fn session(&self, spec: Spec, label: &str, pushes: UnboundedSender<Push>) -> Arc<dyn Conn> {
        self.pushes.lock().unwrap().push(pushes.clone());
        self.memory.session(spec, label, pushes)
    }

    fn inspect(&self, name: LockName) -> BoxFuture<Result<LockInfo, BackendError>> {
        self.memory.inspect(name)
    }

    fn list(&self, prefix: Option<LockName>) -> BoxFuture<Result<Vec<LockInfo>, BackendError>> {
        self.memory.list(prefix)
    }

    fn check_token(&self, name: LockName, token: u64) -> BoxFuture<Result<TokenStatus, BackendError>> {
        self.memory.check_token(name, token)
    }

    fn break_hold(&self, order: BreakOrder) -> BoxFuture<Result<Broken, BackendError>> {
        self.memory.break_hold(order)
    }
}

#[tokio::test]
async fn a_late_word_on_a_session_that_is_over_does_not_end_the_next_one() {
    let pushes = Arc::new(Mutex::new(Vec::new()));
    let memory = crate::backends::connect("memory:").await.unwrap();
    let locks = Locks::over(Arc::new(Spy { memory, pushes: pushes.clone() }), "alice");
    let first = locks.mutex("a").acquire().await.unwrap();
    let old = pushes.lock().unwrap()[0].clone();
    old.send(Push::Lost(LossCause::Disconnected)).unwrap();
    first.lost().cancelled().await;
    let second = locks.mutex("b").acquire().await.unwrap();
    assert_eq!(pushes.lock().unwrap().len(), 2, "one way a session");
    let deadline = Instant::now() + Duration::from_secs(10);
    while old.send(Push::Lost(LossCause::SessionEnded)).is_ok() {
        assert!(Instant::now() < deadline, "the old session is still listened to");
        tokio::task::yield_now().await;
    }
    assert_eq!(second.loss(), None);
    second.verify().await.unwrap();
}
