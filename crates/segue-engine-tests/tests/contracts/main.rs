//! Tests of the contracts of the engine: transparency, never launder, order, conservation, bounds. Each is a property
//! of random streams, and each catches a deliberately broken implementation.

mod decap;
mod enumerated;
mod fast_path;
mod hardening;
mod mutants;
mod mutations;
mod paths;
mod plain;
mod properties;
mod streams;
mod terminating;
mod tunnels;
mod upheld;
