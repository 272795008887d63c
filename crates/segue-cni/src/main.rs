//! The command `segue-cni`; see [`segue_cni`].

use std::io::Read;
use std::process::ExitCode;

use segue_cni::attach;
use segue_cni::document::{CniError, VERSIONS};
use segue_cni::request::Request;
use segue_control::json;
use serde_json::{Value, json};

fn main() -> ExitCode {
    let mut input = String::new();
    // What cannot be read shows as a wrong document.
    let _ = std::io::stdin().take(1 << 20).read_to_string(&mut input);
    match run(&input) {
        Ok(Some(answer)) => {
            println!("{answer}");
            ExitCode::SUCCESS
        }
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            println!("{}", error.json());
            ExitCode::FAILURE
        }
    }
}

fn run(input: &str) -> Result<Option<Value>, CniError> {
    let command = std::env::var("CNI_COMMAND").unwrap_or_default();
    if command == "VERSION" {
        let asked = json::read::<Value>(input.as_bytes()).unwrap_or_default();
        let version = VERSIONS.into_iter().find(|version| asked["cniVersion"] == *version);
        let version = version.unwrap_or(VERSIONS[VERSIONS.len() - 1]);
        return Ok(Some(json!({ "cniVersion": version, "supportedVersions": VERSIONS })));
    }
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let request = Request::read(&command, input, variable, |file| std::fs::read_to_string(file))?;
    match command.as_str() {
        "ADD" => attach::add(&request).map(Some),
        "DEL" => attach::del(&request).map(|()| None),
        "CHECK" => attach::check(&request).map(|()| None),
        "STATUS" => attach::status(&request).map(|()| None),
        "GC" => attach::gc(&request).map(|()| None),
        other => Err(CniError::environment(format!("CNI_COMMAND is `{}`", segue_control::error::printable(other)))),
    }
}
