//! The UDP ports of tunnels.

use super::format::Kind;

/// The content of datagrams to a UDP port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Carried {
    /// The datagram carries plain data.
    #[default]
    Data,
    /// The datagram carries a tunnel format.
    Shim(Kind),
    /// Packets of an IP protocol (FOU).
    Protocol(u8),
}

/// The UDP destination ports of tunnels. They are configuration, since no packet tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tunnels {
    ports: [(u16, Carried); Tunnels::MOST],
}

impl Tunnels {
    /// Maximum number of ports; further ones are ignored, as is port 0.
    pub const MOST: usize = 16;

    /// The set without tunnel ports: UDP is always a transport.
    pub const NONE: Tunnels = Tunnels { ports: [(0, Carried::Data); Tunnels::MOST] };

    /// Adds a port for a tunnel format; the first entry for a port counts. A kind that is no tunnel format is ignored.
    #[must_use]
    pub fn with(self, port: u16, kind: Kind) -> Self {
        if kind.format().is_some() { self.add(port, Carried::Shim(kind)) } else { self }
    }

    /// Adds a UDP port of GUE.
    #[must_use]
    pub fn with_gue(self, port: u16) -> Self {
        self.with(port, Kind::Gue)
    }

    /// Adds a FOU port for one IP protocol.
    #[must_use]
    pub fn with_fou(self, port: u16, protocol: u8) -> Self {
        self.add(port, Carried::Protocol(protocol))
    }

    fn add(mut self, port: u16, carried: Carried) -> Self {
        if let Some(free) = self.ports.iter_mut().find(|p| p.0 == 0 && port != 0) {
            *free = (port, carried);
        }
        self
    }

    /// Returns whether datagrams to `port` are a tunnel's.
    pub fn has(&self, port: u16) -> bool {
        self.carried(port) != Carried::Data
    }

    pub(super) fn carried(&self, port: u16) -> Carried {
        if port == 0 {
            return Carried::Data;
        }
        self.ports.iter().take_while(|p| p.0 != 0).find(|p| p.0 == port).map_or(Carried::Data, |p| p.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_has_what_was_said_of_it_first_and_there_are_at_most_sixteen() {
        let gue = Carried::Shim(Kind::Gue);
        let tunnels = Tunnels::NONE.with_gue(6080).with_fou(5555, 4).with(6080, Kind::Vxlan).with(8472, Kind::Vxlan);
        for (port, carried) in [
            (6080, gue),
            (5555, Carried::Protocol(4)),
            (8472, Carried::Shim(Kind::Vxlan)),
            (6081, Carried::Data),
            (0, Carried::Data),
        ] {
            assert_eq!(tunnels.carried(port), carried, "{port}");
            assert_eq!(tunnels.has(port), carried != Carried::Data, "{port}");
        }
        // Neither port 0 nor a kind that is no tunnel over UDP takes a place.
        assert_eq!(Tunnels::NONE.with_gue(0).with_fou(0, 4).with(7, Kind::Tcp).with(7, Kind::Gre), Tunnels::NONE);
        let many = (1..=20).fold(Tunnels::NONE, Tunnels::with_gue);
        let found: Vec<u16> = (0..=21).filter(|port| many.has(*port)).collect();
        assert_eq!(found, (1..=16).collect::<Vec<u16>>());
    }
}
