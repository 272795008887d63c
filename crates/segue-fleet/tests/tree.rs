//! Tests that the program `segue` links none of the libraries for HTTP and TLS, and no program an asynchronous runtime.

use std::process::Command;

/// Returns the names of the crates that a program of the package links on this machine. What other systems need was
/// never downloaded.
fn linked(package: &str) -> Vec<String> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["tree", "--locked", "--offline", "-p", package, "-e", "normal", "--prefix", "none"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let mut names: Vec<String> = text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

#[test]
fn only_the_agent_links_http_and_tls_and_nothing_an_asynchronous_runtime() {
    let has = |names: &[String], name: &str| names.iter().any(|one| one == name);
    let (segue, cni, fleet) = (linked("segue-cli"), linked("segue-cni"), linked("segue-fleet"));
    assert!(has(&segue, "segue-datapath") && has(&fleet, "segue-control") && has(&cni, "segue-host"));
    for name in ["ureq", "rustls", "ring"] {
        assert!(!has(&segue, name) && !has(&cni, name) && has(&fleet, name), "{name}");
    }
    for name in ["tokio", "tonic", "hyper", "async-std", "smol", "segue-fleet"] {
        assert!(!has(&segue, name) && !has(&cni, name), "{name}");
        assert!(name == "segue-fleet" || !has(&fleet, name), "{name}");
    }
}
