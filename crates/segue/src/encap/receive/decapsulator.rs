//! The state of the receiving half of a tunnel.

use crate::encap::config::{Config, ConfigError};

/// Takes packets out of a tunnel.
#[derive(Clone, Debug)]
pub struct Decapsulator {
    pub(super) config: Config,
    /// The sequence number that the next GRE packet has if none is lost; 0 takes anything.
    pub(super) next_seq: u32,
    pub(super) checksummed_bytes: u64,
}

impl Decapsulator {
    /// A tunnel's receiving half.
    pub fn new(config: Config) -> Result<Decapsulator, ConfigError> {
        config.check()?;
        Ok(Decapsulator { config, next_seq: 0, checksummed_bytes: 0 })
    }

    /// What it was made of.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Bytes of payload that were read to verify GRE and outer UDP checksums, so far.
    pub fn checksummed_bytes(&self) -> u64 {
        self.checksummed_bytes
    }
}
