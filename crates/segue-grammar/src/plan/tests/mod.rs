//! Tests from keywords through plans to the service's settings.

mod group;
mod names;
mod plan;
mod resolve;
