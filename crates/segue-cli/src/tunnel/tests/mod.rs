//! Words through the grammar to plans, and what the service makes of them.

mod group;
mod plan;
mod resolve;
