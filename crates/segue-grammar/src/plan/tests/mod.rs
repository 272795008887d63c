//! Tests from keywords through plans to the service's settings.

mod group;
mod plan;
mod resolve;
