//! The IPAM plugin, to which the calls are delegated: the same environment and configuration, another program.

use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::document::CniError;
use crate::request::Request;

/// Delegates `command` to the IPAM plugin and returns its result; null where it prints none.
pub(crate) fn delegate(request: &Request, command: &str) -> Result<Value, CniError> {
    let name = request.config["ipam"]["type"].as_str().unwrap_or_default();
    let program = find(name)?;
    let failed = |error: &std::io::Error| CniError::system(format!("cannot run {}", program.display()), error);
    let mut child = Command::new(&program)
        .env("CNI_COMMAND", command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(|error| failed(&error))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A plugin that does not read its configuration says so by its result.
        let _ = stdin.write_all(request.config.to_string().as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| failed(&error))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let document = serde_json::from_str::<Value>(&text).ok();
    match (output.status.success(), document) {
        (true, document) => Ok(document.unwrap_or_default()),
        (false, Some(document)) if document.is_object() => Err(CniError::passed(document)),
        (false, _) => Err(CniError::new(5, format!("{name} failed: {}", output.status), text.trim().to_owned())),
    }
}

/// Finds a plugin in the folders of CNI_PATH.
fn find(name: &str) -> Result<PathBuf, CniError> {
    let path = env::var_os("CNI_PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|folder| folder.join(name)).find(|path| Path::is_file(path));
    found.ok_or_else(|| {
        CniError::new(5, format!("there is no plugin {name}"), format!("CNI_PATH is {}", path.to_string_lossy()))
    })
}
