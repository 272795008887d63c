//! What the tests of the path through the kernel have in common.

#[path = "path.rs"]
mod path;

use segue_lab::LinkForm;
use segue_tests::{Ground, Shape, Stat, skip};
use serde_json::Value;

/// Number of the tunnel.
pub(crate) const NET: u8 = 1;

/// The words of a tunnel that takes the path.
pub(crate) const REQUIRE: &[&str] = &["fastpath", "require"];
/// The words of one in UDP, without outer checksums.
pub(crate) const REQUIRE_ZERO: &[&str] = &["noencap-csum", "fastpath", "require"];

/// Returns the hosts of a test, or notes why the path cannot be loaded here.
pub(crate) fn ground(name: &str, form: LinkForm, tools: &[&str]) -> Option<Ground> {
    let ground = Ground::new(name, form, tools)?;
    if let Some(why) = path::missing(&ground) {
        skip(name, &why);
        return None;
    }
    Some(ground)
}

/// Returns how many packets of a tunnel took the path: sent and received.
pub(crate) fn taken(stat: &Stat) -> [u64; 2] {
    ["sent", "received"].map(|key| stat.count(&Shape::device(NET), "fastpath", key))
}

/// Returns the packets that the path left to the daemon, for messages and comparison.
pub(crate) fn left(stat: &Stat) -> Value {
    stat.json()["ports"][Shape::device(NET)]["left"].clone()
}
