//! What a tunnel is made of.

use core::fmt;
use core::net::IpAddr;

use crate::wire::gue::{self, Gue};
use crate::wire::{gre, ipv4, ipv6, protocol, udp};

/// What stands between UDP and the protocol inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// A GUE header. `remcsum` asks for remote checksum offload when sending; receiving it needs no asking.
    Gue {
        /// Leave inner checksums that are pending to the far end.
        remcsum: bool,
    },
    /// Nothing ("foo over UDP"): the port alone says what is inside.
    Fou,
}

/// What is inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// IPv4.
    Ipip,
    /// IPv6.
    Sit,
    /// IPv4 and IPv6. Over FOU the first nibble tells them apart, where Linux needs two ports.
    Ip,
    /// IPv4 and IPv6 behind a GRE header.
    Gre(GreOptions),
}

/// The optional words of the GRE header (RFC 2784, RFC 2890), for each direction by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GreOptions {
    /// Key that incoming packets must carry; `None` if they must carry none.
    pub ikey: Option<u32>,
    /// Key of outgoing packets.
    pub okey: Option<u32>,
    /// Incoming packets must carry a checksum, or must not.
    pub icsum: bool,
    /// Outgoing packets carry a checksum.
    pub ocsum: bool,
    /// Incoming packets must carry a sequence number, and older ones than the newest are dropped.
    pub iseq: bool,
    /// Outgoing packets carry a sequence number, starting with 0.
    pub oseq: bool,
}

/// Where the outer TTL or hop limit comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// From the inner header.
    Inherit,
    /// Always this one; not 0.
    Fixed(u8),
}

/// Where the outer DSCP comes from. The ECN field is copied from the inner header in either case (RFC 6040, section 4.1,
/// normal mode).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tos {
    /// From the inner header.
    Inherit,
    /// The upper six bits of this.
    Fixed(u8),
}

/// How the outer source port is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourcePorts {
    /// By the inner flow: one of so many sockets for a datagram port, one of 49152..=65535 (RFC 8086, section 3.2.1) in
    /// the header that a packet port sends. Not 0. With GRE sequence numbers always the first one, since order counts.
    Slots(u16),
    /// Always this one; not 0.
    Fixed(u16),
}

/// A tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// What is inside.
    pub mode: Mode,
    /// What stands between UDP and the inside.
    pub carrier: Carrier,
    /// Our outer address.
    pub local: IpAddr,
    /// The other end's outer address, of the same family.
    pub remote: IpAddr,
    /// UDP port that the other end listens on.
    pub dport: u16,
    /// UDP port that we listen on.
    pub port: u16,
    /// Outer UDP checksum: sent, and over IPv6 also demanded (RFC 6935, section 5: a port takes datagrams without one
    /// only if told to).
    pub csum: bool,
    /// Outer TTL or hop limit.
    pub ttl: Ttl,
    /// Outer DSCP.
    pub tos: Tos,
    /// Set Don't Fragment on the outside always, not only where the inner packet has it.
    pub pmtudisc: bool,
    /// Outer source port.
    pub slots: SourcePorts,
    /// Key of the flow hash. Random in production: who can predict the hash can aim flows at one queue.
    pub seed: [u8; 16],
}

/// Why a configuration is no tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// One of the outer addresses is IPv4, the other IPv6.
    MixedFamilies,
    /// An outer address that no packet may be sent to or from: unspecified or multicast.
    Address(IpAddr),
    /// Remote checksum offload without outer checksum: nothing would protect the packet.
    RemcsumWithoutCsum,
    /// A port, or the number of source ports, is 0.
    ZeroPort,
    /// The fixed TTL is 0.
    ZeroTtl,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigError::MixedFamilies => f.write_str("local and remote are not of the same address family"),
            ConfigError::Address(address) => write!(f, "{address} cannot be the end of a tunnel"),
            ConfigError::RemcsumWithoutCsum => {
                f.write_str("encap-remcsum needs encap-csum: without the outer checksum nothing protects the packet")
            }
            ConfigError::ZeroPort => f.write_str("0 is no UDP port"),
            ConfigError::ZeroTtl => f.write_str("a packet with a TTL of 0 goes nowhere"),
        }
    }
}

impl core::error::Error for ConfigError {}

impl Config {
    /// A tunnel with the usual choices: GUE's port at both ends, outer checksum, TTL 64, DSCP inherited, path MTU
    /// discovery, 16 source ports, and a seed of zeros that a program should replace.
    pub fn new(mode: Mode, carrier: Carrier, local: IpAddr, remote: IpAddr) -> Config {
        Config {
            mode,
            carrier,
            local,
            remote,
            dport: gue::PORT,
            port: gue::PORT,
            csum: true,
            ttl: Ttl::Fixed(64),
            tos: Tos::Inherit,
            pmtudisc: true,
            slots: SourcePorts::Slots(16),
            seed: [0; 16],
        }
    }

    /// Whether this can be a tunnel.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.local.is_ipv4() != self.remote.is_ipv4() {
            return Err(ConfigError::MixedFamilies);
        }
        if let Some(&address) = [self.local, self.remote].iter().find(|a| a.is_unspecified() || a.is_multicast()) {
            return Err(ConfigError::Address(address));
        }
        if self.remcsum() && !self.csum {
            return Err(ConfigError::RemcsumWithoutCsum);
        }
        let source = matches!(self.slots, SourcePorts::Slots(0) | SourcePorts::Fixed(0));
        if self.dport == 0 || self.port == 0 || source {
            return Err(ConfigError::ZeroPort);
        }
        if self.ttl == Ttl::Fixed(0) {
            return Err(ConfigError::ZeroTtl);
        }
        Ok(())
    }

    /// Bytes on top of the inner IP packet when sending, for the MTU of the inside: 28 to 76.
    ///
    /// With remote checksum offload its 8 bytes are always counted, although packets whose checksum is complete go without
    /// (Linux counts the same way).
    pub fn overhead(&self) -> usize {
        let carrier = match self.carrier {
            Carrier::Gue { remcsum } => Gue::emit_len(remcsum),
            Carrier::Fou => 0,
        };
        let gre = match self.mode {
            Mode::Gre(options) => options.send_len(),
            Mode::Ipip | Mode::Sit | Mode::Ip => 0,
        };
        self.outer_len() + carrier + gre
    }

    /// Bytes of outer IP and UDP.
    pub(super) fn outer_len(&self) -> usize {
        udp::LEN + if self.local.is_ipv4() { ipv4::MIN_LEN } else { ipv6::LEN }
    }

    pub(super) fn remcsum(&self) -> bool {
        self.carrier == Carrier::Gue { remcsum: true }
    }
}

impl Mode {
    /// Whether IP packets of this version (4 or 6) may be inside.
    pub(super) fn takes(&self, version: u8) -> bool {
        match self {
            Mode::Ipip => version == 4,
            Mode::Sit => version == 6,
            Mode::Ip | Mode::Gre(_) => true,
        }
    }

    /// The IP protocol number for the carrier, with a packet of this version inside.
    pub(super) fn protocol(&self, version: u8) -> u8 {
        match self {
            Mode::Gre(_) => protocol::GRE,
            Mode::Ipip | Mode::Sit | Mode::Ip if version == 4 => protocol::IPV4,
            Mode::Ipip | Mode::Sit | Mode::Ip => protocol::IPV6,
        }
    }
}

impl GreOptions {
    /// Bytes of the header that we send.
    fn send_len(&self) -> usize {
        gre::MIN_LEN + 4 * [self.ocsum, self.okey.is_some(), self.oseq].iter().filter(|&&on| on).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(mode: Mode, carrier: Carrier, v4: bool) -> Config {
        let (local, remote) = if v4 { ("198.18.0.1", "198.18.0.2") } else { ("2001:db8::1", "2001:db8::2") };
        Config::new(mode, carrier, local.parse().unwrap(), remote.parse().unwrap())
    }

    const RCO: Carrier = Carrier::Gue { remcsum: true };

    #[test]
    fn the_overhead_is_that_of_the_tables_in_the_drafts() {
        let full =
            Mode::Gre(GreOptions { okey: Some(1), ocsum: true, oseq: true, ikey: None, icsum: false, iseq: false });
        let key = Mode::Gre(GreOptions { okey: Some(1), ..GreOptions::default() });
        assert_eq!(config(Mode::Ipip, Carrier::Fou, true).overhead(), 28);
        assert_eq!(config(Mode::Ipip, Carrier::Gue { remcsum: false }, true).overhead(), 32);
        assert_eq!(config(Mode::Ipip, RCO, true).overhead(), 40);
        assert_eq!(config(Mode::Sit, RCO, false).overhead(), 60);
        assert_eq!(config(key, RCO, true).overhead(), 48);
        assert_eq!(config(full, RCO, false).overhead(), 76);
    }

    #[test]
    fn bad_combinations_are_told_apart() {
        let good = config(Mode::Ip, RCO, true);
        assert_eq!(good.check(), Ok(()));
        let bad = [
            (Config { local: "2001:db8::1".parse().unwrap(), ..good }, ConfigError::MixedFamilies),
            (
                Config { remote: "224.0.0.1".parse().unwrap(), ..good },
                ConfigError::Address("224.0.0.1".parse().unwrap()),
            ),
            (Config { local: "0.0.0.0".parse().unwrap(), ..good }, ConfigError::Address("0.0.0.0".parse().unwrap())),
            (Config { csum: false, ..good }, ConfigError::RemcsumWithoutCsum),
            (Config { dport: 0, ..good }, ConfigError::ZeroPort),
            (Config { port: 0, ..good }, ConfigError::ZeroPort),
            (Config { slots: SourcePorts::Slots(0), ..good }, ConfigError::ZeroPort),
            (Config { slots: SourcePorts::Fixed(0), ..good }, ConfigError::ZeroPort),
            (Config { ttl: Ttl::Fixed(0), ..good }, ConfigError::ZeroTtl),
        ];
        for (config, error) in bad {
            assert_eq!(config.check(), Err(error));
            assert!(!std::format!("{error}").is_empty());
        }
        assert_eq!(Config { csum: false, carrier: Carrier::Fou, ..good }.check(), Ok(()));
    }
}
