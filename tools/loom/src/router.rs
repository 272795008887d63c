//! The router's end of the feed.

pub(crate) mod tables {
    /// A test message, identified by its number.
    #[derive(Debug, PartialEq)]
    pub struct Message(pub u32);
}
#[path = "../../../crates/segue-datapath/src/router/feed.rs"]
pub(crate) mod feed;
