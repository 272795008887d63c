//! Queries of a NAT's mappings, which belong to the thread that moves packets.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use segue_control::mapping::Mapping;
use segue_datapath::nat::{self, Protocol, TcpState};
use segue_datapath::router::{FeedSender, Message};

/// Longest wait for the packet thread.
const PATIENCE: Duration = Duration::from_secs(1);

/// Returns `tcp`, `udp` or `icmp`.
pub(crate) fn protocol_name(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Icmp => "icmp",
    }
}

/// Requests the mappings from the packet thread, from another thread.
pub fn request(sender: &FeedSender) -> Option<Vec<Mapping>> {
    let (reply, answer) = sync_channel(1);
    if !sender.send(Message::Mappings(reply)) {
        return None;
    }
    let (now, all) = answer.recv_timeout(PATIENCE).ok()?;
    let mut all: Vec<Mapping> = all.iter().map(|mapping| shown(mapping, now.0)).collect();
    all.sort_by_cached_key(|mapping| (*mapping.inside.ip(), mapping.protocol.clone(), mapping.inside.port()));
    Some(all)
}

/// Converts a mapping to the form of the control socket.
fn shown(mapping: &nat::Mapping, now: u64) -> Mapping {
    let state = match (mapping.is_static, mapping.protocol, mapping.connections.state()) {
        (true, ..) => Some("static"),
        (_, Protocol::Tcp, TcpState::Opening) => Some("opening"),
        (_, Protocol::Tcp, TcpState::Open) => Some("open"),
        (_, Protocol::Tcp, TcpState::Closing) => Some("closing"),
        _ => None,
    };
    Mapping {
        protocol: protocol_name(mapping.protocol).to_owned(),
        inside: SocketAddrV4::new(Ipv4Addr::from_bits(mapping.inside.0), mapping.inside.1),
        outside: mapping.outside,
        state: state.map(str::to_owned),
        idle_s: (mapping.packets != [0; 2]).then(|| now.saturating_sub(mapping.last.0) / 1_000_000_000),
        out: mapping.packets[0],
        into: mapping.packets[1],
    }
}
