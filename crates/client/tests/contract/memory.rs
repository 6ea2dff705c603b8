//! `memory:`, with virtual time.

use std::sync::Mutex;
use std::time::Duration;

use lockkeeper::Locks;
use lockkeeper::backends::memory::Server;
use lockkeeper_contract::Subject;

struct Memory(Mutex<Server>);

impl Memory {
    fn new() -> Self {
        Self(Mutex::new(Server::with_virtual_time()))
    }

    fn server(&self) -> Server {
        self.0.lock().unwrap().clone()
    }
}

impl Subject for Memory {
    fn scheme(&self) -> &'static str {
        "memory"
    }

    async fn client(&self, label: &str) -> Locks {
        self.server().client(label)
    }

    async fn crash_closing(&self, name: &str, keep_closed: Duration, lock_delay: Duration) {
        let server = self.server();
        let label = format!("crashes with {name}");
        let ttl = Duration::from_secs(2);
        let lock = server.client(&label).mutex(name).ttl(ttl).keep_closed(keep_closed).lock_delay(lock_delay);
        let held = lock.acquire().await.unwrap();
        server.cut_off(&label);
        server.advance(2 * ttl);
        drop(held);
    }

    async fn take_away(&self, label: &str, _name: &str) {
        let server = self.server();
        server.cut_off(label);
        server.advance(Duration::from_secs(31));
    }

    fn cut_off(&self, label: &str) -> bool {
        self.server().cut_off(label);
        true
    }

    fn lose_answers(&self, count: u32) -> bool {
        self.server().lose_answers(count);
        true
    }

    fn lose_calls(&self, count: u32) -> bool {
        self.server().lose_calls(count);
        true
    }

    fn stall(&self, duration: Duration) -> bool {
        let server = self.server();
        server.stall();
        server.advance(duration);
        server.resume();
        true
    }

    async fn pass(&self, duration: Duration) {
        self.server().advance(duration);
    }

    async fn restart(&self) {
        *self.0.lock().unwrap() = Server::with_virtual_time();
    }

    async fn wipe(&self) {
        self.restart().await;
    }
}

lockkeeper_contract::contract! {
    memory => Memory::new(), page "../../docs/backends/memory.md" column 1;
}
