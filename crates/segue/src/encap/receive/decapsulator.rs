//! The state of the receiving half of a tunnel.

use crate::encap::config::{Config, ConfigError};

/// The receiving half of a tunnel: removes the outer headers of datagrams.
/// ```
/// use segue::encap::{Carrier, Config, Decapsulator, Mode, OuterCsum, Received};
/// use segue::packet::{Frag, Packet};
///
/// let [here, there] = ["198.18.0.1", "198.18.0.2"].map(|text| text.parse().unwrap());
/// let config = Config::new(Mode::Ipip, Carrier::Gue { remcsum: true }, here, there);
/// let mut tunnel = Decapsulator::new(config)?;
/// // What a UDP socket received: a GUE header, then an IPv4 packet.
/// let datagram = [0, 4, 0, 0, 0x45, 0, 0, 20, 0, 0, 0, 0, 64, 59, 0x3f, 0x38, 10, 0, 0, 1, 10, 0, 0, 2];
/// let meta = Received { csum: OuterCsum::Verified, ..Received::default() };
/// let mut packet = Packet::default();
/// tunnel.pull(Frag::all(datagram), &meta, &mut packet)?;
/// assert_eq!(packet.len(), 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Decapsulator {
    pub(super) config: Config,
    /// GRE sequence number of the next packet if none is lost; 0 accepts any.
    pub(super) next_seq: u32,
    /// The last packets that were refused for their GRE sequence numbers: the number after the last one, and how many
    /// came one after the other, each newer than the one before; 0 for none.
    pub(super) older: (u32, u32),
    pub(super) checksummed_bytes: u64,
}

impl Decapsulator {
    /// Creates the receiving half of a tunnel.
    ///
    /// # Errors
    /// As for [`Config::check`].
    pub fn new(config: Config) -> Result<Decapsulator, ConfigError> {
        config.check()?;
        Ok(Decapsulator { config, next_seq: 0, older: (0, 0), checksummed_bytes: 0 })
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
