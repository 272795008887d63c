//! The configuration of a tunnel.

use core::fmt;
use core::net::IpAddr;

use crate::wire::address::is_endpoint;
use crate::wire::gue::{self, Gue};
use crate::wire::{ethernet, geneve, gre, ipv4, ipv6, protocol, udp, vxlan};

/// The headers between the outer IP header and the inner packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// UDP encapsulation with a GUE header. `remcsum` enables remote checksum offload when sending; receiving it needs
    /// no setting.
    Gue {
        /// Whether pending inner checksums are left to the receiver.
        remcsum: bool,
    },
    /// Plain UDP ("foo over UDP"): the port alone determines the inner protocol.
    Fou,
    /// Plain IP: its protocol number determines the inner protocol.
    Bare,
    /// UDP encapsulation with a VXLAN header.
    Vxlan {
        /// Network identifier (VNI), 24 bits.
        vni: u32,
        /// Whether pending inner checksums are left to the receiver, which must be configured to accept that.
        remcsum: bool,
        /// Whether packets whose sender left the inner checksum to the receiver are accepted; otherwise they are
        /// refused, as in Linux.
        takes_remcsum: bool,
    },
    /// UDP and a Geneve header, sent without options.
    Geneve {
        /// Network identifier (VNI), 24 bits.
        vni: u32,
    },
}

/// The inner protocol of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Only IPv4 packets (iproute2: `ipip`).
    Ipip,
    /// Only IPv6 packets (iproute2: `sit`).
    Sit,
    /// IPv4 and IPv6 packets in one tunnel. Over FOU the first nibble tells them apart; Linux needs two ports for that.
    Ip,
    /// IPv4 and IPv6 after a GRE header.
    Gre(GreOptions),
    /// Ethernet frames after a GRE header.
    GreTap(GreOptions),
    /// Ethernet frames, the only mode of VXLAN and Geneve here; in GUE and FOU as IP protocol 143.
    Ethernet,
}

/// The optional words of the GRE header (RFC 2784, RFC 2890), separately for each direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GreOptions {
    /// Key that incoming packets must carry; `None` if they must carry none.
    pub ikey: Option<u32>,
    /// Key of outgoing packets; `None` for none.
    pub okey: Option<u32>,
    /// Whether incoming packets must carry a checksum; otherwise they must carry none.
    pub icsum: bool,
    /// Whether outgoing packets carry a checksum.
    pub ocsum: bool,
    /// Whether incoming packets must carry a sequence number; those older than the newest are dropped, until 16 in a
    /// row show that their sender began anew.
    pub iseq: bool,
    /// Whether outgoing packets carry a sequence number, starting with 0.
    pub oseq: bool,
}

/// The source of the outer TTL or hop limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// The value is copied from the inner header.
    Inherit,
    /// A fixed TTL or hop limit; not 0.
    Fixed(u8),
}

/// The source of the outer DSCP. The ECN field is copied from the inner header in either case (RFC 6040, section 4.1,
/// normal mode).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tos {
    /// The value is copied from the inner header.
    Inherit,
    /// A fixed DSCP: the upper six bits of this byte.
    Fixed(u8),
}

/// Whether outer packets may be fragmented: the DF flag of IPv4; over IPv6, whether the sending host may fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Df {
    /// Outer packets may be fragmented, whatever the inner packet says; the default of VXLAN and Geneve in Linux.
    Unset,
    /// Outer packets may be fragmented if the inner packet may, by its DF flag.
    Inherit,
    /// Outer packets may not be fragmented.
    Set,
}

/// The choice of the outer source port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourcePorts {
    /// A source port chosen by the inner flow: one of this many sockets for a datagram port, or one of 49152..=65535
    /// (RFC 8086, section 3.2.1) in the header sent by a packet port. Not 0. With GRE sequence numbers always the first
    /// one, since order matters.
    Slots(u16),
    /// A fixed source port; not 0.
    Fixed(u16),
}

/// The configuration of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Protocol of inner packets.
    pub mode: Mode,
    /// Headers between outer IP and the inner packet.
    pub carrier: Carrier,
    /// Local outer address of the tunnel.
    pub local: IpAddr,
    /// Outer address of the remote end, of the same family.
    pub remote: IpAddr,
    /// UDP port that the remote end listens on.
    pub dport: u16,
    /// UDP port on which the local end listens.
    pub port: u16,
    /// Whether an outer UDP checksum is sent.
    pub csum: bool,
    /// Whether datagrams without UDP checksum are accepted over IPv6 (RFC 6935, section 5: only if a port was
    /// configured so). Over IPv4 they always are.
    pub zero_csum6: bool,
    /// Largest inner IP packet, in bytes, if the receiving port is a kernel socket that may deliver joined packets or
    /// unfinished checksums unmarked, as raw sockets deliver output of GRO and of other interfaces of the same host;
    /// `None` if every packet arrives as on a wire. See [`Decapsulator`](super::Decapsulator).
    pub unfinished: Option<u16>,
    /// Source of the outer TTL or hop limit.
    pub ttl: Ttl,
    /// Source of the outer DSCP.
    pub tos: Tos,
    /// Whether outer packets may be fragmented.
    pub df: Df,
    /// Choice of the outer source port.
    pub slots: SourcePorts,
    /// Key of the flow hash. Must be random in production: a sender that can predict the hash can direct flows to one
    /// queue.
    pub seed: [u8; 16],
}

/// The reason why a configuration is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// One of the outer addresses is IPv4, the other one IPv6.
    MixedFamilies,
    /// An outer address that cannot be the end of a tunnel ([`is_endpoint`]).
    Address(IpAddr),
    /// Remote checksum offload without outer checksum: nothing would protect the packet.
    RemcsumWithoutCsum,
    /// A port, or the number of source ports, is 0.
    ZeroPort,
    /// The fixed TTL is 0.
    ZeroTtl,
    /// The carrier cannot carry the mode.
    Carrier,
    /// A network identifier of more than 24 bits.
    Vni,
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
            ConfigError::Carrier => f.write_str("this mode is not carried in that way"),
            ConfigError::Vni => f.write_str("a network identifier has 24 bits"),
        }
    }
}

impl core::error::Error for ConfigError {}

impl Config {
    /// Creates a tunnel with default settings: the carrier's port at both ends (GUE's for FOU), outer checksum, TTL 64,
    /// DSCP inherited, path MTU discovery, 16 source ports, and a seed of zeros that a program should replace.
    pub fn new(mode: Mode, carrier: Carrier, local: IpAddr, remote: IpAddr) -> Config {
        let port = match carrier {
            Carrier::Vxlan { .. } => vxlan::PORT,
            Carrier::Geneve { .. } => geneve::PORT,
            Carrier::Gue { .. } | Carrier::Fou | Carrier::Bare => gue::PORT,
        };
        Config {
            mode,
            carrier,
            local,
            remote,
            dport: port,
            port,
            csum: true,
            zero_csum6: false,
            unfinished: None,
            ttl: Ttl::Fixed(64),
            tos: Tos::Inherit,
            df: Df::Set,
            slots: SourcePorts::Slots(16),
            seed: [0; 16],
        }
    }

    /// Checks that the configuration is valid.
    ///
    /// # Errors
    /// [`ConfigError`], the first contradiction that is found.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.local.is_ipv4() != self.remote.is_ipv4() {
            return Err(ConfigError::MixedFamilies);
        }
        if let Some(&address) = [self.local, self.remote].iter().find(|address| !is_endpoint(**address)) {
            return Err(ConfigError::Address(address));
        }
        let carries = match self.carrier {
            Carrier::Vxlan { .. } | Carrier::Geneve { .. } => self.mode == Mode::Ethernet,
            Carrier::Bare => self.mode != Mode::Ethernet,
            Carrier::Gue { .. } | Carrier::Fou => true,
        };
        if !carries {
            return Err(ConfigError::Carrier);
        }
        if let Carrier::Vxlan { vni, .. } | Carrier::Geneve { vni } = self.carrier
            && vni > vxlan::MAX_VNI
        {
            return Err(ConfigError::Vni);
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

    /// Returns the number of bytes added to an inner IP packet when sending, for the MTU of the inside: 20 to 90. An
    /// inner Ethernet header counts; VLAN tags do not, since only [`fit`](super::fit) knows how many a frame has.
    ///
    /// With remote checksum offload its 8 bytes are always counted, although packets with a complete checksum go
    /// without (Linux counts the same way).
    pub fn overhead(&self) -> usize {
        let carrier = match self.carrier {
            Carrier::Gue { remcsum } => Gue::emit_len(remcsum),
            Carrier::Fou | Carrier::Bare => 0,
            Carrier::Vxlan { .. } => vxlan::LEN,
            Carrier::Geneve { .. } => geneve::MIN_LEN,
        };
        let gre = self.mode.gre().map_or(0, GreOptions::send_len);
        let link = if self.mode.is_ethernet() { ethernet::LEN } else { 0 };
        self.outer_len() + carrier + gre + link
    }

    /// Returns the length of outer IP and UDP, in bytes.
    pub(super) fn outer_len(&self) -> usize {
        let udp = if self.carrier == Carrier::Bare { 0 } else { udp::LEN };
        udp + if self.local.is_ipv4() { ipv4::MIN_LEN } else { ipv6::LEN }
    }

    pub(super) fn remcsum(&self) -> bool {
        matches!(self.carrier, Carrier::Gue { remcsum: true } | Carrier::Vxlan { remcsum: true, .. })
    }
}

impl Mode {
    /// Returns whether inner IP packets of this version (4 or 6) are allowed.
    pub(super) fn takes(&self, version: u8) -> bool {
        match self {
            Mode::Ipip => version == 4,
            Mode::Sit => version == 6,
            Mode::Ip | Mode::Gre(_) => true,
            Mode::GreTap(_) | Mode::Ethernet => false,
        }
    }

    /// Returns whether the inner packets are Ethernet frames.
    pub fn is_ethernet(&self) -> bool {
        matches!(self, Mode::GreTap(_) | Mode::Ethernet)
    }

    /// Returns the options of the GRE header, if the mode has one.
    pub fn gre(&self) -> Option<&GreOptions> {
        match self {
            Mode::Gre(options) | Mode::GreTap(options) => Some(options),
            Mode::Ipip | Mode::Sit | Mode::Ip | Mode::Ethernet => None,
        }
    }

    /// Returns the IP protocol number for the carrier, with an inner packet of this version.
    pub(super) fn protocol(&self, version: u8) -> u8 {
        match self {
            Mode::Gre(_) | Mode::GreTap(_) => protocol::GRE,
            Mode::Ethernet => protocol::ETHERNET,
            Mode::Ipip | Mode::Sit | Mode::Ip if version == 4 => protocol::IPV4,
            Mode::Ipip | Mode::Sit | Mode::Ip => protocol::IPV6,
        }
    }

    /// Returns the IP protocol numbers of the mode's packets directly over IP: one for each socket of a raw port, in
    /// the order of its slots.
    pub fn protocols(&self) -> &'static [u8] {
        match self {
            Mode::Ipip => &[protocol::IPV4],
            Mode::Sit => &[protocol::IPV6],
            Mode::Ip => &[protocol::IPV4, protocol::IPV6],
            Mode::Gre(_) | Mode::GreTap(_) => &[protocol::GRE],
            Mode::Ethernet => &[protocol::ETHERNET],
        }
    }
}

impl GreOptions {
    /// Returns the length of the sent GRE header in bytes.
    pub(super) fn send_len(&self) -> usize {
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
        assert_eq!(config(Mode::Ipip, Carrier::Bare, true).overhead(), 20);
        assert_eq!(config(key, Carrier::Bare, false).overhead(), 48);
        assert_eq!(config(Mode::GreTap(GreOptions::default()), Carrier::Bare, true).overhead(), 38);
        let vxlan = Carrier::Vxlan { vni: 1, remcsum: true, takes_remcsum: true };
        assert_eq!(config(Mode::Ethernet, vxlan, true).overhead(), 50);
        assert_eq!(config(Mode::Ethernet, vxlan, false).overhead(), 70);
        assert_eq!(config(Mode::Ethernet, Carrier::Geneve { vni: 1 }, true).overhead(), 50);
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
            (Config { carrier: Carrier::Geneve { vni: 1 }, ..good }, ConfigError::Carrier),
            (Config { mode: Mode::Ethernet, carrier: Carrier::Bare, ..good }, ConfigError::Carrier),
            (Config { mode: Mode::Ethernet, carrier: Carrier::Geneve { vni: 1 << 24 }, ..good }, ConfigError::Vni),
            (
                Config {
                    mode: Mode::Ethernet,
                    carrier: Carrier::Vxlan { vni: 1, remcsum: true, takes_remcsum: false },
                    csum: false,
                    ..good
                },
                ConfigError::RemcsumWithoutCsum,
            ),
        ];
        for (config, error) in bad {
            assert_eq!(config.check(), Err(error));
            assert!(!std::format!("{error}").is_empty());
        }
        assert_eq!(Config { csum: false, carrier: Carrier::Fou, ..good }.check(), Ok(()));
    }

    #[test]
    fn both_addresses_are_ends_of_tunnels() {
        for text in [
            "0.0.0.1",
            "127.0.0.1",
            "198.18.0.9",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:198.18.0.9",
            "2001:db8::9",
            "ff02::1",
        ] {
            let address: IpAddr = text.parse().unwrap();
            let other: IpAddr = if address.is_ipv4() { "198.18.0.1" } else { "2001:db8::1" }.parse().unwrap();
            for (local, remote) in [(address, other), (other, address)] {
                let found = Config::new(Mode::Ip, RCO, local, remote).check();
                let expected = if is_endpoint(address) { Ok(()) } else { Err(ConfigError::Address(address)) };
                assert_eq!(found, expected, "{local} {remote}");
            }
        }
    }
}
