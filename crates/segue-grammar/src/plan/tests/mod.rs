//! Tests from keywords through plans to what the service makes of them.

mod group;
mod plan;
mod resolve;
