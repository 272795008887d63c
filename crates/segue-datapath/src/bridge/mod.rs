//! The parts of a learning bridge: what it has learned, its limits and its settings.

mod flood;
mod settings;
mod stations;
