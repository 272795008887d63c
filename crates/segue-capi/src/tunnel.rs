//! One tunnel, which encapsulates packets and trains, and decapsulates datagrams.

use segue::encap::{Carrier, Config, Decapsulator, Encapsulator, GreOptions, Mode};
use segue::gso::{Frames, Limits, split_linear};
use segue::packet::{Frag, Packet, Start, Tunnels, Unit};
use segue::virtio::{self, Loaded, VirtioNet};

use crate::error::{ARGUMENT, CONFIG, Code};

/// The state of one tunnel.
pub(crate) struct Tunnel {
    encap: Encapsulator,
    decap: Decapsulator,
    frames: Frames,
}

impl Tunnel {
    /// Creates a tunnel of mode 0 (IP in IP) or 1 (GRE), in IP (0), FOU (1), GUE (2) or GUE with remote checksums (3).
    /// `key` is that of the flow hash.
    pub(crate) fn new(
        (mode, carrier): (u32, u32),
        (local, remote): (std::net::IpAddr, std::net::IpAddr),
        port: u16,
        key: [u64; 2],
    ) -> Result<Tunnel, isize> {
        let mode = match mode {
            0 => Mode::Ip,
            1 => Mode::Gre(GreOptions::default()),
            _ => return Err(ARGUMENT),
        };
        let carrier = match carrier {
            0 => Carrier::Bare,
            1 => Carrier::Fou,
            2 => Carrier::Gue { remcsum: false },
            3 => Carrier::Gue { remcsum: true },
            _ => return Err(ARGUMENT),
        };
        let mut config = Config::new(mode, carrier, local, remote);
        if port != 0 {
            (config.dport, config.port) = (port, port);
        }
        let (front, rest) = config.seed.split_at_mut(8);
        front.copy_from_slice(&key[0].to_le_bytes());
        rest.copy_from_slice(&key[1].to_le_bytes());
        let encap = Encapsulator::new(config).map_err(|_| CONFIG)?;
        let decap = Decapsulator::new(config).map_err(|_| CONFIG)?;
        Ok(Tunnel { encap, decap, frames: Frames::new() })
    }

    /// Encapsulates a packet or train and splits it into complete packets.
    pub(crate) fn encap(&mut self, header: &VirtioNet, bytes: &[u8]) -> Result<&Frames, isize> {
        let completed;
        let mut packet = Packet::default();
        let loaded = virtio::load(header, Frag::all(bytes), Start::Ip, &mut packet).map_err(Code::code)?;
        if loaded != Loaded::Ready {
            // A checksum that is not that of a TCP or UDP header which is split.
            completed = copy_with(bytes, loaded);
            packet.load(Frag::all(completed.as_slice()), Start::Ip, &Tunnels::NONE);
        }
        self.encap.push(&mut packet).map_err(Code::code)?;
        self.frames.clear();
        split_linear(&packet, &Limits::NONE, &mut self.frames).map_err(Code::code)?;
        Ok(&self.frames)
    }

    /// Decapsulates a packet that begins with its outer IP header.
    pub(crate) fn decap(&mut self, bytes: &[u8]) -> Result<&Frames, isize> {
        let mut packet = Packet::default();
        self.decap.pull_packet(Frag::all(bytes), &mut packet).map_err(Code::code)?;
        debug_assert!(matches!(packet.offload.unit, Unit::Whole(_)));
        self.frames.clear();
        split_linear(&packet, &Limits::NONE, &mut self.frames).map_err(Code::code)?;
        Ok(&self.frames)
    }
}

/// Returns a copy of a packet with the checksum that it owes.
fn copy_with(bytes: &[u8], owed: Loaded) -> Vec<u8> {
    let mut copy = bytes.to_vec();
    match owed {
        Loaded::Ready => {}
        Loaded::Owed(place) => place.fill(&mut copy),
        Loaded::OwedSctp(place) => place.fill(&mut copy),
    }
    copy
}
