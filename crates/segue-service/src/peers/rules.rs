//! The rules for entries of a peer table, and the tunnel's defaults for them.

use std::net::IpAddr;
use std::sync::Arc;

use segue::encap::{Carrier, Config, Df, Mode, SourcePorts, Tos, Ttl};
use segue::wire::address::is_endpoint;
use segue::wire::vxlan;
use segue_control::model::PeerTable;
use segue_control::peers::{Encap, Key, Mac, Peer};
use segue_datapath::overlay::{Inside, ListenerConfig, PeerConfig, PeerCounters};

use crate::tunnel::kinds::{self, Choice};
use crate::tunnel::resolve::Ready;

/// The default network identifier of VXLAN where neither the tunnel nor the peer has one: that of flannel.
const USUAL_VNI: u32 = 1;

/// The tunnel's own values, and the rules that follow from them.
#[derive(Clone, Debug)]
pub struct Rules {
    local: IpAddr,
    mac: Mac,
    /// Whether the interface carries Ethernet frames; otherwise IP.
    frames: bool,
    remcsum: bool,
    /// Whether datagrams have an outer checksum where the peer does not say.
    outer_checksum: bool,
    /// Encapsulations in the order of the listeners, each with its port and its configuration without a remote.
    forms: Vec<(Encap, u16, Config)>,
}

impl Rules {
    /// Creates the rules of a tunnel whose listeners have these numbers of source ports.
    pub fn new(ready: &Ready, table: &kinds::PeerTable, slots: &[u16], seed: [u8; 16]) -> Rules {
        let plan = &ready.plan;
        let frames = plan.mode.is_ethernet();
        let config = |encap: Encap, port: u16, slots: u16| {
            let (mode, carrier) = match encap {
                Encap::Vxlan => {
                    let vni = plan.overlay.id.unwrap_or(USUAL_VNI);
                    let takes_remcsum = plan.overlay.remcsumrx;
                    (Mode::Ethernet, Carrier::Vxlan { vni, remcsum: false, takes_remcsum })
                }
                Encap::Gue if frames => (Mode::Ethernet, Carrier::Gue { remcsum: plan.encap_remcsum }),
                Encap::Gue => (Mode::Ip, Carrier::Gue { remcsum: plan.encap_remcsum }),
                Encap::Fou => (Mode::Ip, Carrier::Fou),
            };
            Config {
                dport: port,
                port,
                ttl: plan.ttl.fixed().map_or(Ttl::Inherit, Ttl::Fixed),
                tos: match plan.tos {
                    Choice::Fixed(tos) => Tos::Fixed(tos),
                    Choice::Inherit | Choice::Auto => Tos::Inherit,
                },
                df: if plan.pmtudisc { Df::Set } else { Df::Inherit },
                // What a kernel on this host left unfinished, or one behind a veth: it is counted.
                zero_csum6: !table.outer_checksum,
                unfinished: Some(u16::try_from(ready.mtu).unwrap_or(u16::MAX)),
                slots: SourcePorts::Slots(slots),
                seed,
                ..Config::new(mode, carrier, ready.local, ready.local)
            }
        };
        let slots = slots.iter().chain(std::iter::repeat(&1));
        let forms =
            table.listen.iter().zip(slots).map(|((encap, port), slots)| (*encap, *port, config(*encap, *port, *slots)));
        Rules {
            local: ready.local,
            mac: table.lladdr,
            frames,
            remcsum: plan.encap_remcsum,
            outer_checksum: table.outer_checksum,
            forms: forms.collect(),
        }
    }

    /// Returns the local Ethernet address.
    pub(super) fn mac(&self) -> Mac {
        self.mac
    }

    /// Returns whether peers send frames to a local Ethernet address.
    fn has_own_mac(&self) -> bool {
        !self.frames && self.forms.iter().any(|(encap, ..)| *encap == Encap::Vxlan)
    }

    /// Returns the local properties of the tunnel that other programs need.
    pub(super) fn summary(&self) -> PeerTable {
        PeerTable {
            local: self.local.to_string(),
            listen: self.forms.iter().map(|(encap, port, _)| format!("{encap}:{port}")).collect(),
            mac: self.has_own_mac().then(|| self.mac.to_string()),
            ethernet: self.frames,
            remcsum: self.remcsum,
            ..PeerTable::default()
        }
    }

    /// Returns the tunnel's listeners.
    pub(crate) fn listeners(&self) -> Vec<ListenerConfig> {
        self.forms.iter().map(|(_, _, encap)| ListenerConfig { encap: *encap }).collect()
    }

    /// Returns a peer with defaults for all omitted values, and its key.
    ///
    /// # Errors
    /// The rule that it breaks.
    pub(super) fn resolve(&self, peer: Peer) -> Result<(Key, Peer), String> {
        let key = self.key(&peer)?;
        let remote = peer.remote;
        // A table names no interface, which a link-local address needs.
        let is_link_local = matches!(remote, IpAddr::V6(v6) if v6.is_unicast_link_local());
        if !is_endpoint(remote) || is_link_local {
            return Err(format!("`remote` {remote} is not the address of one host"));
        }
        if remote == self.local {
            return Err(format!("`remote` {remote} is this end of the tunnel"));
        }
        if remote.is_ipv4() != self.local.is_ipv4() {
            return Err(format!("`remote` {remote} is not of the family of `local` {}", self.local));
        }
        let known = || self.forms.iter().map(|(encap, ..)| encap.name()).collect::<Vec<_>>().join(", ");
        let encap = match (peer.encap, &self.forms[..]) {
            (Some(encap), _) => encap,
            (None, [(encap, ..)]) => *encap,
            (None, _) => return Err(format!("`encap` is missing: the tunnel has {}", known())),
        };
        let Some((_, port, _)) = self.forms.iter().find(|(form, ..)| *form == encap) else {
            return Err(format!("`encap` {encap} is none of the tunnel's `listen`: {}", known()));
        };
        let port = peer.port.unwrap_or(*port);
        if port == 0 {
            return Err("`port` is 0".to_owned());
        }
        let is_vxlan = encap == Encap::Vxlan;
        if !is_vxlan && (peer.vni.is_some() || peer.mac.is_some()) {
            return Err(format!("`vni` and `mac` do not go with `encap` {encap}"));
        }
        let vni = is_vxlan.then(|| peer.vni.unwrap_or(self.usual_vni()));
        if vni.is_some_and(|vni| vni > vxlan::MAX_VNI) {
            return Err("`vni` has more than 24 bits".to_owned());
        }
        match peer.mac {
            Some(_) if self.frames => return Err("`mac` does not go with frames, which have addresses".to_owned()),
            None if is_vxlan && !self.frames => {
                return Err("`mac` is missing: the peer's end drops frames for others".to_owned());
            }
            Some(mac) if !mac.is_station() => return Err(format!("`mac` {mac} is not the address of one station")),
            Some(mac) if mac == self.mac => return Err(format!("`mac` {mac} is this end of the tunnel")),
            _ => {}
        }
        let is_bare = peer.outer_checksum == Some(false);
        let remcsum = peer.remcsum.unwrap_or(encap == Encap::Gue && self.remcsum && !is_bare);
        if remcsum && !(encap == Encap::Gue && self.remcsum) {
            return Err(match encap {
                Encap::Gue => "`remcsum` needs a tunnel with the word `encap-remcsum`".to_owned(),
                _ => format!("`remcsum` does not go with `encap` {encap}"),
            });
        }
        if remcsum && is_bare {
            return Err("`outer_checksum` false does not go with `remcsum`: it alone protects the payload".to_owned());
        }
        let resolved = Peer {
            prefix: peer.prefix,
            station: peer.station,
            remote,
            encap: Some(encap),
            port: Some(port),
            vni,
            mac: peer.mac,
            outer_checksum: Some(peer.outer_checksum.unwrap_or(self.outer_checksum || remcsum)),
            remcsum: Some(remcsum),
        };
        Ok((key, resolved))
    }

    /// Returns the key by which a peer is looked up.
    fn key(&self, peer: &Peer) -> Result<Key, String> {
        let prefix = match (peer.prefix, peer.station) {
            (Some(_), Some(_)) => return Err("it has `prefix` and `match`, and one of the two counts".to_owned()),
            (Some(_), None) if self.frames => {
                return Err("this tunnel carries Ethernet frames: it has no peers by `prefix`".to_owned());
            }
            (None, Some(_)) if !self.frames => {
                return Err("this tunnel carries IP: it has no peers by `match`".to_owned());
            }
            (None, Some(Mac::ZERO)) => return Ok(Key::Flood(peer.remote)),
            (None, Some(station)) if !station.is_station() => {
                return Err(format!(
                    "`match` {station} is the address of a group: frames to groups go to the peers of {}",
                    Mac::ZERO
                ));
            }
            (None, Some(station)) => return Ok(Key::Match(station)),
            (None, None) if self.frames => return Err("`match` is missing".to_owned()),
            (None, None) => return Err("`prefix` is missing".to_owned()),
            (Some(prefix), None) => prefix,
        };
        if prefix != prefix.masked() {
            return Err(format!("`prefix` has bits set after its length: it would be {}", prefix.masked()));
        }
        if prefix.len > 0 && (prefix.address.is_multicast() || prefix.address.is_loopback()) {
            return Err("`prefix` is multicast or loopback, which no tunnel carries".to_owned());
        }
        Ok(Key::Prefix(prefix))
    }

    fn usual_vni(&self) -> u32 {
        let of = |config: &Config| match config.carrier {
            Carrier::Vxlan { vni, .. } => Some(vni),
            _ => None,
        };
        self.forms.iter().find_map(|(_, _, config)| of(config)).unwrap_or(USUAL_VNI)
    }

    /// Returns the datapath's form of a peer that [`resolve`](Self::resolve) has completed.
    pub(super) fn config(&self, peer: &Peer, counters: Arc<PeerCounters>) -> Option<PeerConfig> {
        let inside = match (peer.prefix, peer.station) {
            (Some(prefix), _) => Inside::Prefix(prefix.address, prefix.len),
            (None, Some(Mac::ZERO)) => Inside::Flood,
            (None, Some(station)) => Inside::Station(station.0),
            (None, None) => return None,
        };
        let listener = self.forms.iter().position(|(encap, ..)| Some(*encap) == peer.encap)?;
        let base = self.forms.get(listener)?.2;
        let carrier = match base.carrier {
            Carrier::Vxlan { remcsum, takes_remcsum, .. } => {
                Carrier::Vxlan { vni: peer.vni.unwrap_or(USUAL_VNI), remcsum, takes_remcsum }
            }
            Carrier::Gue { .. } => Carrier::Gue { remcsum: peer.remcsum == Some(true) },
            other => other,
        };
        let csum = peer.outer_checksum != Some(false);
        let encap = Config { carrier, remote: peer.remote, dport: peer.port.unwrap_or(base.dport), csum, ..base };
        Some(PeerConfig { inside, listener, encap, mac: peer.mac.map(|mac| mac.0), counters })
    }
}
