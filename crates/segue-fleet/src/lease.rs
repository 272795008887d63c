//! A lease in flannel's registry: its key, its value, and the additions of segue nodes to it.
//!
//! The key is `PREFIX/subnets/198.19.59.0-24`, on dual stack followed by `&2001:db8:1::-64`. The value is written in
//! the field order and the spelling of flannel's own encoder, so that both are equal byte for byte.

use std::net::{Ipv4Addr, Ipv6Addr};

use segue_control::peers::Mac;
use serde_json::{Map, Value};

use crate::config::{Backend, Config, field};
use crate::network::{Network, decimal, is_host};
use crate::refusal::Refusal;

/// Longest value that is read, bytes.
pub const VALUE_LEN: usize = 4096;
/// The backends that flannel knows.
const BACKENDS: [&str; 11] = [
    "vxlan",
    "udp",
    "ipip",
    "host-gw",
    "wireguard",
    "ipsec",
    "extension",
    "alloc",
    "tencent-vpc",
    "ali-vpc",
    "aws-vpc",
];

/// Encapsulation that a segue node accepts besides the network's backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The UDP port of GUE.
    pub gue_port: u16,
    /// Whether GUE's remote checksum option is taken.
    pub remcsum: bool,
}

/// The content of one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The subnet of the host.
    pub subnet: Network,
    /// The address of the host.
    pub address: Ipv4Addr,
    /// The MAC address of the host's VTEP; only with the backend `vxlan`.
    pub mac: Option<Mac>,
    /// Encapsulation that the host accepts besides the network's backend.
    pub offer: Option<Offer>,
}

/// Returns the subnet in a key, where `directory` is `PREFIX/subnets`.
pub fn subnet_of(key: &[u8], directory: &str) -> Result<Network, Refusal> {
    let rest = key.strip_prefix(directory.as_bytes()).and_then(|rest| rest.strip_prefix(b"/"));
    let name = std::str::from_utf8(rest.ok_or(Refusal::KeyOutside)?).map_err(|_| Refusal::KeyMalformed)?;
    let (four, six) = name.split_once('&').map_or((name, None), |(four, six)| (four, Some(six)));
    let (address, len) = four.rsplit_once('-').ok_or(Refusal::KeyMalformed)?;
    let address: Ipv4Addr = address.parse().map_err(|_| Refusal::KeyMalformed)?;
    let len = decimal(len).filter(|len| *len <= 32).ok_or(Refusal::KeyMalformed)?;
    if let Some(six) = six {
        let (address, len) = six.rsplit_once('-').ok_or(Refusal::KeyMalformed)?;
        let address: Ipv6Addr = address.parse().map_err(|_| Refusal::KeyMalformed)?;
        let len = decimal(len).filter(|len| *len <= 128).ok_or(Refusal::KeyMalformed)?;
        let host_bits = u128::MAX.checked_shr(u32::from(len)).unwrap_or(0);
        if u128::from(address) & host_bits != 0 {
            return Err(Refusal::HostBits);
        }
    }
    Network::new(address, len).ok_or(Refusal::HostBits)
}

/// Returns the key of the lease of `subnet`, where `directory` is `PREFIX/subnets`.
pub fn key_of(subnet: Network, directory: &str) -> String {
    format!("{directory}/{}-{}", subnet.first(), subnet.prefix_len())
}

/// Returns the PublicIP of a value, if it is readable: it names the owner of the lease even if the rest is wrong.
pub fn public_address(value: &[u8]) -> Option<Ipv4Addr> {
    let value: Value = serde_json::from_slice(value.get(..VALUE_LEN).unwrap_or(value)).ok()?;
    field(value.as_object()?, "PublicIP")?.as_str()?.parse().ok()
}

/// Parses the lease of another host.
pub fn parse(key: &[u8], value: &[u8], directory: &str, config: &Config) -> Result<Lease, Refusal> {
    let subnet = subnet_of(key, directory)?;
    if !config.has_place_for(subnet) {
        return Err(Refusal::OutsideNetwork);
    }
    if value.len() > VALUE_LEN {
        return Err(Refusal::ValueTooLong);
    }
    let value: Value = serde_json::from_slice(value).map_err(|_| Refusal::ValueMalformed)?;
    let fields = value.as_object().ok_or(Refusal::ValueMalformed)?;
    if is_ambiguous(fields, &["PublicIP", "BackendType", "BackendData"]) {
        return Err(Refusal::ValueMalformed);
    }
    let address = match field(fields, "PublicIP") {
        None | Some(Value::Null) => return Err(Refusal::AddressMissing),
        Some(Value::String(text)) => text.parse::<Ipv4Addr>().map_err(|_| Refusal::AddressMalformed)?,
        Some(_) => return Err(Refusal::AddressMalformed),
    };
    if !is_host(address) {
        return Err(Refusal::AddressNotUnicast);
    }
    if config.network.contains(address) {
        return Err(Refusal::AddressInNetwork);
    }
    let backend = match field(fields, "BackendType") {
        None | Some(Value::Null) => "udp",
        Some(Value::String(name)) if name.is_empty() => "udp",
        Some(Value::String(name)) => name,
        Some(_) => return Err(Refusal::BackendUnknown),
    };
    if backend != config.backend.name() {
        return Err(if BACKENDS.contains(&backend) { Refusal::BackendOther } else { Refusal::BackendUnknown });
    }
    let (mac, offer) = match config.backend {
        Backend::Udp { .. } => (None, None),
        Backend::Vxlan { vni, .. } => {
            let data = match field(fields, "BackendData") {
                None | Some(Value::Null) => return Err(Refusal::DataMissing),
                Some(data) => data.as_object().ok_or(Refusal::DataMalformed)?,
            };
            let (mac, offer) = vxlan(data, vni)?;
            (Some(mac), offer)
        }
    };
    Ok(Lease { subnet, address, mac, offer })
}

/// Returns whether one of these fields has two spellings that differ in case: Go's decoder would use the later one. Of
/// two fields with the same spelling the later one counts here too.
fn is_ambiguous(fields: &Map<String, Value>, names: &[&str]) -> bool {
    names.iter().any(|name| fields.keys().filter(|key| key.eq_ignore_ascii_case(name)).count() > 1)
}

fn vxlan(data: &Map<String, Value>, vni: u32) -> Result<(Mac, Option<Offer>), Refusal> {
    if is_ambiguous(data, &["VNI", "VtepMAC"]) {
        return Err(Refusal::DataMalformed);
    }
    // Leases of old versions of flannel have no VNI.
    match field(data, "VNI") {
        None | Some(Value::Null) => {}
        Some(value) => match value.as_u64() {
            None => return Err(Refusal::DataMalformed),
            Some(other) if other != u64::from(vni) => return Err(Refusal::OtherVni),
            Some(_) => {}
        },
    }
    let mac = match field(data, "VtepMAC") {
        Some(Value::String(text)) => text.parse::<Mac>().map_err(|_| Refusal::MacMalformed)?,
        _ => return Err(Refusal::MacMalformed),
    };
    if !mac.is_station() {
        return Err(Refusal::MacNotUnicast);
    }
    let offer = match data.get("segue") {
        None => None,
        Some(value) => parse_offer(value)?,
    };
    Ok((mac, offer))
}

/// Parses the field that a segue node adds to BackendData. An offer of a later version or of another encapsulation is
/// none.
pub fn parse_offer(value: &Value) -> Result<Option<Offer>, Refusal> {
    let fields = value.as_object().ok_or(Refusal::OfferMalformed)?;
    let version = fields.get("v").and_then(Value::as_u64).filter(|version| *version > 0);
    // The other fields of a later version are not known.
    if version.ok_or(Refusal::OfferMalformed)? > 1 {
        return Ok(None);
    }
    let encap = fields.get("encap").and_then(Value::as_str).ok_or(Refusal::OfferMalformed)?;
    if encap != "gue" {
        return Ok(None);
    }
    let port = fields.get("port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
    let remcsum = match fields.get("remcsum") {
        None => false,
        Some(value) => value.as_bool().ok_or(Refusal::OfferMalformed)?,
    };
    match port {
        Some(gue_port @ 1..) => Ok(Some(Offer { gue_port, remcsum })),
        _ => Err(Refusal::OfferMalformed),
    }
}

/// Returns the value of this host's lease, byte for byte as flannel would write it; with `offer`, BackendData has one
/// more field, which flannel ignores.
pub fn value(address: Ipv4Addr, backend: Backend, mac: Option<Mac>, offer: Option<Offer>) -> String {
    let begin = format!(r#"{{"PublicIP":"{address}","PublicIPv6":null"#);
    match (backend, mac) {
        (Backend::Vxlan { vni, .. }, Some(mac)) => {
            let offer = offer.map(|offer| {
                format!(r#","segue":{{"v":1,"encap":"gue","port":{},"remcsum":{}}}"#, offer.gue_port, offer.remcsum)
            });
            let offer = offer.unwrap_or_default();
            format!(r#"{begin},"BackendType":"vxlan","BackendData":{{"VNI":{vni},"VtepMAC":"{mac}"{offer}}}}}"#)
        }
        _ => begin + "}",
    }
}
