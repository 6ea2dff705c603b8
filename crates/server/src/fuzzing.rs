//! The fuzz target `server`: files and headers that a node reads, and certificates that others show it.

use crate::access::{Identity, Permission, Permissions, Tokens};
use crate::tls::CertificateNames;

/// Decodes `bytes`; the first one selects the decoder.
///
/// # Panics
/// If a decoder breaks its promise.
pub fn run(bytes: &[u8]) {
    let Some((what, bytes)) = bytes.split_first() else { return };
    if what % 5 == 0 {
        if let Ok(names) = CertificateNames::of(bytes) {
            let _ = (names.node(), names.identity().map(Identity::new));
        }
        return;
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match what % 5 {
        1 => drop(Tokens::parse(text)),
        2 => {
            // A file without tokens identifies no caller.
            let tokens = Tokens::parse("").expect("an empty file");
            assert!(tokens.caller(text).is_none());
        }
        3 => {
            let Ok(permissions) = Permissions::parse(text) else { return };
            let rights = permissions.of(&Identity::new("billing").expect("a name"));
            for action in Permission::ALL {
                let all = rights.decide(action, None).is_allowed();
                let one = lockkeeper_core::LockName::parse("orders/42").expect("a name");
                assert!(
                    !all || rights.decide(action, Some(&one)).is_allowed(),
                    "all names are allowed, so one is"
                );
            }
        }
        _ => crate::front::fuzz_deadline(text),
    }
}

/// Valid inputs, without certificates.
///
/// # Panics
/// If the system has no random numbers.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let with = |what: u8, text: &str| [&[what], text.as_bytes()].concat();
    let token = crate::access::NewToken::make("billing").expect("random numbers");
    let permissions = r#"revoked = ["old"]
[groups]
shop = ["billing", "orders-*"]
[[allow]]
who = ["group:shop", "*"]
actions = ["acquire", "read"]
names = ["orders", "*"]
"#;
    vec![
        with(1, &format!("# comment\n{}\n", token.line)),
        with(2, &token.token),
        with(3, permissions),
        with(4, "99999999n"),
    ]
}

#[cfg(test)]
#[test]
fn inputs_of_the_fuzzer_keep_every_promise() {
    lockkeeper_corpus::replay("server", seeds(), run);
}
