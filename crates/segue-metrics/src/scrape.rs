//! A snapshot of the state of all instances.

use segue_control::client;
use segue_control::error::Error;
use segue_control::model::Instance;

/// A function that returns the description of a reason: the group of the counter (`drops`, `flushes`, `refusals`,
/// `mismatches`, `fallbacks`) and its name.
pub type Sentence = fn(&str, &str) -> Option<String>;

/// A snapshot of the state of all instances.
#[derive(Debug, Default)]
pub struct Scrape {
    /// The version of the requesting program.
    pub version: String,
    /// The instances that answered.
    pub instances: Vec<Instance>,
    /// The failures of instances that are alive and did not answer.
    pub failed: Vec<Error>,
}

impl Scrape {
    /// Requests the state of every instance that this user can see.
    pub fn now(version: &str) -> Scrape {
        let client::Found { instances, failed, .. } = client::all();
        Scrape { version: version.to_owned(), instances, failed }
    }
}
