//! The state of the receiving half of a tunnel.

use crate::encap::config::{Config, ConfigError};

/// The receiving half of a tunnel: removes the outer headers of datagrams.
#[derive(Clone, Debug)]
pub struct Decapsulator {
    pub(super) config: Config,
    /// GRE sequence number of the next packet if none is lost; 0 accepts any.
    pub(super) next_seq: u32,
    pub(super) checksummed_bytes: u64,
}

impl Decapsulator {
    /// Creates the receiving half of a tunnel.
    pub fn new(config: Config) -> Result<Decapsulator, ConfigError> {
        config.check()?;
        Ok(Decapsulator { config, next_seq: 0, checksummed_bytes: 0 })
    }

    /// Returns the configuration of the tunnel.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the number of payload bytes read so far to verify GRE and outer UDP checksums.
    pub fn checksummed_bytes(&self) -> u64 {
        self.checksummed_bytes
    }
}
