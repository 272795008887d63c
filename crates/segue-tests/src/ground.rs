//! The program and the hosts that a test needs, or the reason for skipping the test.

use std::env;
use std::path::{Path, PathBuf};

use segue_lab::{Host, LinkForm, connect, skip, unavailable, which};

/// The program under test, and two hosts.
#[derive(Debug)]
pub struct Ground {
    /// Host A: 198.18.0.1 and 2001:db8::1 on the link.
    pub a: Host,
    /// Host B: 198.18.0.2 and 2001:db8::2 on the link.
    pub b: Host,
    /// Path of the program `segue`.
    pub program: PathBuf,
}

impl Ground {
    /// Finds the program and creates two hosts joined by a link of this form. `None` where the test cannot run here,
    /// which is noted under `name`; `tools` are the programs that it needs besides `ip` and `ethtool`.
    pub fn new(name: &str, form: LinkForm, tools: &[&str]) -> Option<Ground> {
        let ground = Ground::apart(name, tools)?;
        connect(&ground.a, &ground.b, form).expect("a link between two hosts");
        Some(ground)
    }

    /// Finds the program and creates two hosts without a link; otherwise the same as [`Ground::new`].
    pub fn apart(name: &str, tools: &[&str]) -> Option<Ground> {
        let Some(program) = find_program() else {
            skip(name, "the program is not built (cargo build -p segue-cli)");
            return None;
        };
        let tools = ["ip", "ethtool"].iter().chain(tools).filter(|tool| which(tool).is_none());
        let missing = tools.copied().collect::<Vec<_>>().join(", ");
        if !missing.is_empty() {
            skip(name, &format!("not installed: {missing}"));
            return None;
        }
        if let Some(why) = unavailable() {
            skip(name, &why);
            return None;
        }
        let [a, b] = ["a", "b"].map(|name| Host::new(name).expect("a host, since one could be made a moment ago"));
        Some(Ground { a, b, program })
    }
}

/// Returns the path in `$SEGUE_BIN`, which must exist if set, or else the program in this workspace's target directory.
pub fn find_program() -> Option<PathBuf> {
    if let Some(path) = env::var_os("SEGUE_BIN").map(PathBuf::from) {
        return Some(path.canonicalize().unwrap_or_else(|error| panic!("SEGUE_BIN={}: {error}", path.display())));
    }
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    ["release/segue", "debug/segue"].iter().find_map(|name| target.join(name).canonicalize().ok())
}
