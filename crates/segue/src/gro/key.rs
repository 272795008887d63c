//! What makes two packets belong to one flow.

use super::Alone;
use crate::packet::{Kind, Packet, Stop};
use crate::wire::{ethernet, ipv4, ipv6, read_u16};

const MAX: usize = 128;

/// Addresses, ports, VLAN identifiers and tunnel keys of every level, one behind the other.
///
/// What may change while a flow goes on is left out, so that order is kept across the change: MAC addresses (a gateway
/// fails over) and VLAN priorities.
#[derive(Clone, Copy)]
pub(super) struct FlowKey {
    bytes: [u8; MAX],
    len: u8,
}

impl core::fmt::Debug for FlowKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "FlowKey({:02x?})", self.bytes())
    }
}

impl PartialEq for FlowKey {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl FlowKey {
    /// The key of a packet, or why it has none.
    pub(super) fn of<B: AsRef<[u8]>>(packet: &Packet<B>) -> Result<FlowKey, Alone> {
        match packet.layout.stop() {
            Stop::Transport => {}
            Stop::Protocol => return Err(Alone::Protocol),
            Stop::Fragment => return Err(Alone::Fragment),
            Stop::Malformed => return Err(Alone::Malformed),
            Stop::TooDeep => return Err(Alone::TooDeep),
        }
        let mut key = FlowKey { bytes: [0; MAX], len: 0 };
        let head = packet.head.bytes();
        for header in packet.layout.headers() {
            let bytes = head.get(header.start()..header.end()).ok_or(Alone::Malformed)?;
            let vlan;
            let part = match header.kind {
                Kind::Ethernet => bytes.get(..0),
                Kind::Vlan => {
                    vlan = read_u16(bytes, 0).map(|tag| (tag & ethernet::VLAN_ID).to_be_bytes());
                    vlan.as_ref().map(|id| &id[..])
                }
                Kind::Ipv4 => bytes.get(ipv4::SRC.start..ipv4::DST.end),
                Kind::Ipv6 => bytes.get(ipv6::SRC.start..ipv6::DST.end),
                Kind::Tcp | Kind::Udp => bytes.get(..4),
                Kind::Gre => bytes.get(..2),
                kind => kind.format().and_then(|format| bytes.get(format.flow.clone())),
            };
            key.push(&[header.kind as u8])?;
            key.push(part.ok_or(Alone::Malformed)?)?;
            if header.kind == Kind::Gre
                && let Some(tunnel) = crate::wire::gre::Gre::parse(bytes).and_then(|gre| gre.key)
            {
                key.push(&tunnel.to_be_bytes())?;
            }
        }
        Ok(key)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    fn push(&mut self, part: &[u8]) -> Result<(), Alone> {
        let at = usize::from(self.len);
        self.bytes.get_mut(at..at + part.len()).ok_or(Alone::TooDeep)?.copy_from_slice(part);
        self.len += part.len() as u8;
        Ok(())
    }
}
