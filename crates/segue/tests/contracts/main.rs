//! The engine's promises: transparency, never launder, order, conservation, bounds. Each is a property of random streams,
//! and each has caught something deliberately broken.

mod decap;
mod fast_path;
mod hardening;
mod mutants;
mod mutations;
mod paths;
mod properties;
mod streams;
mod terminating;
mod tunnels;
mod upheld;
