//! Credentials that another program replaces.

use std::fs;
use std::net::SocketAddr;

use lockkeeper::Locks;
use lockkeeper::backends::dynamodb::init;
use lockkeeper_rig::{Faults, Protocol, ServiceRefusal};

use crate::{start, url};
use lockkeeper_contract::until;

/// The file of a profile is rewritten, and the service refuses the former credentials.
#[test]
fn credentials_of_a_profile_are_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("credentials");
    let write = |id: &str| {
        fs::write(&file, format!("[default]\naws_access_key_id={id}\naws_secret_access_key=secret\n"))
            .unwrap();
    };
    write("FIRST");
    // SAFETY: no other thread of this process runs yet that reads or changes its environment.
    unsafe {
        std::env::set_var("AWS_SHARED_CREDENTIALS_FILE", &file);
        std::env::set_var("AWS_EC2_METADATA_DISABLED", "true");
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let server = start();
        let direct = url(&server, "locks", "");
        assert!(init(&direct).await.unwrap());
        let faults = Faults::of(Protocol::DynamoDb);
        let proxy = faults.proxy("client", SocketAddr::from(([127, 0, 0, 1], server.port())));
        let through =
            direct.replace(&server.url(), &format!("http://{proxy}")).replace("&credentials=none", "");
        let (holds, waits) =
            (Locks::connect(&through).await.unwrap(), Locks::connect(&through).await.unwrap());
        let held = holds.mutex("x").acquire().await.unwrap();
        let waiting = tokio::spawn(async move { waits.mutex("x").acquire().await });
        let expired = ServiceRefusal { code: "ExpiredTokenException", text: "The security token is expired" };
        faults.refuse_only(expired, "Credential=FIRST/");
        write("SECOND");
        until("former credentials are refused", async || (faults.refused() > 0).then_some(())).await;
        until("it is confirmed with the new ones", async || held.verify().await.ok()).await;
        held.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
    });
}
