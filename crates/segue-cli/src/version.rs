//! `segue --version`: one line, or with `-v` the details that a bug report needs.

use segue::checksum::{self, Implementation};
use segue_control::error::{Error, Kind, printable};
use segue_host::sys;
use serde_json::{Value, json};

use crate::out::Out;

/// The version of this program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs `segue --version`.
pub(crate) fn run(out: &Out) {
    let value = value();
    if out.json {
        out.value(&value);
    } else if out.verbose {
        out.data(&text(&value));
    } else {
        out.data(&format!("segue {VERSION}\n"));
    }
}

/// Environment variable that names the checksum implementation to use instead of the fastest one, for measurements.
const SIMD: &str = "SEGUE_SIMD";

/// Selects the checksum implementation named by the environment; an unknown name is an error.
pub(crate) fn choose_simd() -> Result<(), Error> {
    let Some(wanted) = std::env::var_os(SIMD).filter(|wanted| !wanted.is_empty()) else { return Ok(()) };
    if let Some(found) = checksum::implementations().find(|known| wanted == known.name()) {
        found.choose();
        return Ok(());
    }
    let known: Vec<&str> = checksum::implementations().map(Implementation::name).collect();
    let what = format!("{SIMD} is `{}`, which this processor does not have", printable(&wanted.to_string_lossy()));
    Err(Error::new(Kind::Usage, what, format!("unset {SIMD}")).why(format!("it has {}", known.join(", "))))
}

/// Returns the instruction set that checksums use on this machine.
pub(crate) fn simd() -> String {
    checksum::implementation().to_owned()
}

fn value() -> Value {
    json!({
        "schema": "segue.version/1",
        "version": VERSION,
        "commit": env!("SEGUE_COMMIT"),
        "target": env!("SEGUE_TARGET"),
        "simd": simd(),
        "kernel": std::fs::read_to_string("/proc/sys/kernel/osrelease").map(|text| text.trim().to_owned()).ok(),
        "landlock_abi": sys::landlock_abi(),
        "seccomp": sys::has_seccomp_filters(),
    })
}

fn text(value: &Value) -> String {
    let mut text = format!("segue {VERSION}\n");
    let fields = value.as_object().into_iter().flatten().filter(|(key, _)| *key != "schema" && *key != "version");
    for (key, value) in fields {
        let shown = match value {
            Value::String(text) => text.clone(),
            Value::Null => "none".to_owned(),
            Value::Bool(on) => if *on { "yes" } else { "no" }.to_owned(),
            other => other.to_string(),
        };
        text.push_str(&format!("{key:<13} {shown}\n"));
    }
    text
}
