//! State of the hooks of flannel's `extension` backend between their calls, and the check of a host that flanneld
//! reports, whose data other hosts have written.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use segue_control::peers::{Encap, Mac, Peer};
use segue_host::prefix::Prefix;
use serde::{Deserialize, Serialize};

use crate::lease::VALUE_LEN;
use crate::network::{Network, is_host};
use crate::refusal::Refusal;

/// The encapsulation in which this host accepts packets: `pre` prints it, and the other hosts get it as data of its
/// lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Takes {
    /// The encapsulation that this host accepts.
    pub mode: Encap,
    /// UDP port of the tunnel.
    pub port: u16,
    /// Whether remote checksums are taken; with GUE.
    #[serde(default, skip_serializing_if = "is_false")]
    pub remcsum: bool,
    /// The VXLAN network identifier; with VXLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vni: Option<u32>,
    /// The MAC address of the VTEP; with VXLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature is serde's")]
fn is_false(value: &bool) -> bool {
    !value
}

/// State that is kept between the calls of hooks, in `.hook.json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// The encapsulation that this host accepts.
    pub(super) takes: Option<Takes>,
    pub(super) network: String,
    pub(super) subnet: String,
    pub(super) address: String,
    /// Number of the last `post` call.
    pub(super) round: u64,
    /// Number of `add` calls of the round.
    pub(super) adds: u64,
    /// The peers by subnet, with the round in which each was last confirmed.
    pub(super) peers: BTreeMap<String, (u64, Peer)>,
    pub(super) refused: BTreeMap<String, usize>,
    /// Process of the tunnel and generation of its table after the last change; `None` where the tunnel has not
    /// confirmed it.
    pub(super) table: Option<(u32, u64)>,
}

impl Memory {
    /// Returns the subnets of other peers that overlap the given one.
    pub(super) fn overlapping(&self, subnet: Network) -> impl Iterator<Item = Network> {
        let others = self.peers.keys().filter_map(|other| Network::parse(other));
        others.filter(move |other| *other != subnet && other.overlaps(subnet))
    }

    /// Checks a host that flanneld reports and converts it to a peer. Of two subnets that overlap, one of the length
    /// that this host's has goes first: all that flanneld leases have it. Else the one that was there first stays.
    pub fn peer(&self, subnet: &str, address: &str, data: &[u8]) -> Result<(Network, Peer), Refusal> {
        let (place, len) = subnet.split_once('/').ok_or(Refusal::KeyMalformed)?;
        let (place, len) = (place.parse().ok(), crate::network::decimal(len).filter(|len| *len <= 32));
        let (Some(place), Some(len)) = (place, len) else { return Err(Refusal::KeyMalformed) };
        let subnet = Network::new(place, len).ok_or(Refusal::HostBits)?;
        let address: Ipv4Addr = address.parse().map_err(|_| Refusal::AddressMalformed)?;
        if !is_host(address) {
            return Err(Refusal::AddressNotUnicast);
        }
        if let Some(network) = Network::parse(&self.network) {
            if !network.holds(subnet) || network == subnet {
                return Err(Refusal::OutsideNetwork);
            }
            if network.contains(address) {
                return Err(Refusal::AddressInNetwork);
            }
        }
        let own = Network::parse(&self.subnet);
        if own.is_some_and(|own| own.overlaps(subnet)) {
            return Err(Refusal::OwnSubnet);
        }
        if self.address == address.to_string() {
            return Err(Refusal::OwnAddress);
        }
        let is_alone = self.overlapping(subnet).next().is_none();
        if !is_alone && own.map(Network::prefix_len) != Some(subnet.prefix_len()) {
            return Err(Refusal::Overlap);
        }
        if is_alone && self.peers.len() >= crate::roster::PEERS && !self.peers.contains_key(&subnet.to_string()) {
            return Err(Refusal::TooMany);
        }
        if data.len() > VALUE_LEN {
            return Err(Refusal::ValueTooLong);
        }
        // A list of values is a structure too, for the decoder.
        let is_object = data.trim_ascii_start().first() == Some(&b'{');
        let theirs = serde_json::from_slice::<Takes>(data).ok().filter(|_| is_object);
        let theirs = theirs.ok_or(Refusal::DataMalformed)?;
        let mac =
            theirs.mac.as_deref().map(|text| text.parse::<Mac>().map_err(|_| Refusal::MacMalformed)).transpose()?;
        if mac.is_some_and(|mac| !mac.is_station()) {
            return Err(Refusal::MacNotUnicast);
        }
        let own_mac = self.takes.as_ref().and_then(|ours| ours.mac.as_deref()?.parse::<Mac>().ok());
        if mac.is_some() && mac == own_mac {
            return Err(Refusal::OwnMac);
        }
        if theirs.port == 0 || theirs.vni.is_some_and(|vni| vni >= 1 << 24) {
            return Err(Refusal::DataMalformed);
        }
        if theirs.mode == Encap::Vxlan && mac.is_none() {
            return Err(Refusal::MacMalformed);
        }
        let own_vni = self.takes.as_ref().and_then(|ours| ours.vni);
        let is_other = own_vni.zip(theirs.vni).is_some_and(|(ours, theirs)| ours != theirs);
        if theirs.mode == Encap::Vxlan && is_other {
            return Err(Refusal::OtherVni);
        }
        // Remote checksums are sent to what takes them, from a host that takes them too.
        let ours = self.takes.as_ref().is_some_and(|ours| ours.remcsum);
        let peer = Peer {
            encap: Some(theirs.mode),
            port: Some(theirs.port),
            vni: theirs.vni.filter(|_| theirs.mode == Encap::Vxlan),
            mac: mac.filter(|_| theirs.mode == Encap::Vxlan),
            remcsum: (theirs.mode == Encap::Gue).then_some(ours && theirs.remcsum),
            ..Peer::new(prefix(subnet), address.into())
        };
        Ok((subnet, peer))
    }
}

/// Returns the prefix of a subnet.
pub(super) fn prefix(subnet: Network) -> Prefix {
    Prefix { address: subnet.first().into(), len: subnet.prefix_len() }
}
