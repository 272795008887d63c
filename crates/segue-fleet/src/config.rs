//! The network's configuration: the value of `PREFIX/config`, as flannel reads it.

use std::net::Ipv4Addr;

use serde_json::{Map, Value};

use crate::network::Network;

/// The UDP port of Linux' VXLAN where none is configured; not 4789.
pub const VXLAN_PORT: u16 = 8472;
/// The UDP port of flannel's `udp` backend where none is configured.
pub const UDP_PORT: u16 = 8285;

/// The backend of a network: how its hosts reach one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// flannel's backend `vxlan`.
    Vxlan {
        /// The VXLAN network identifier, 24 bits.
        vni: u32,
        /// UDP port of the tunnel.
        port: u16,
    },
    /// The backend `udp`: a bare IPv4 packet in UDP, as FOU of protocol 4.
    Udp {
        /// UDP port of the tunnel.
        port: u16,
    },
}

impl Backend {
    /// Returns the name of the backend in flannel's documents.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Vxlan { .. } => "vxlan",
            Backend::Udp { .. } => "udp",
        }
    }
}

/// The configuration of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Network that is divided into the hosts' subnets.
    pub network: Network,
    /// The prefix length of a subnet.
    pub subnet_len: u8,
    /// First subnet that may be given to a host.
    pub subnet_min: Ipv4Addr,
    /// Last subnet that may be given to a host.
    pub subnet_max: Ipv4Addr,
    /// The backend of the network.
    pub backend: Backend,
    /// Parts of the configuration that segue does not implement, one sentence each.
    pub notes: Vec<String>,
}

impl Config {
    /// Parses the backend's JSON document. The error is a sentence that names the field.
    pub fn parse(text: &[u8]) -> Result<Config, String> {
        let value: Value = serde_json::from_slice(text).map_err(|error| format!("it is no JSON: {error}"))?;
        let fields = value.as_object().ok_or("it is no JSON object")?;
        if flag(fields, "EnableIPv6")? {
            return Err("EnableIPv6 is set, and leases of IPv6 subnets are not made yet".to_owned());
        }
        if field(fields, "EnableIPv4").is_some() && !flag(fields, "EnableIPv4")? {
            return Err("EnableIPv4 is false".to_owned());
        }
        let network = string(fields, "Network")?.ok_or("Network is missing")?;
        let network = Network::parse(network).ok_or("Network is no IPv4 network ADDRESS/LEN")?;
        let mut config = Config {
            subnet_len: subnet_len(fields, network)?,
            subnet_min: network.first(),
            subnet_max: network.last(),
            backend: Backend::Udp { port: UDP_PORT },
            notes: Vec::new(),
            network,
        };
        let size = 1u64 << (32 - u32::from(config.subnet_len));
        let at = |offset: u64| Ipv4Addr::from((u64::from(u32::from(network.first())) + offset) as u32);
        config.subnet_min = border(fields, "SubnetMin", &config, at(size))?;
        config.subnet_max = border(fields, "SubnetMax", &config, at(network.size() - size))?;
        if config.subnet_min > config.subnet_max {
            return Err("SubnetMin is above SubnetMax".to_owned());
        }
        (config.backend, config.notes) = backend(fields)?;
        Ok(config)
    }

    /// Returns whether `subnet` can belong to a host: it is a part of the network, and not all of it.
    pub fn has_place_for(&self, subnet: Network) -> bool {
        self.network.holds(subnet) && subnet != self.network
    }
}

fn subnet_len(fields: &Map<String, Value>, network: Network) -> Result<u8, String> {
    let default = if network.prefix_len() <= 22 { 24 } else { network.prefix_len() + 2 };
    let len = match number(fields, "SubnetLen")? {
        0 => u64::from(default),
        len => len,
    };
    // A host needs an address for the tunnel and one for its bridge, and the first subnet is not given away.
    match u8::try_from(len) {
        Ok(len) if len <= 30 && len >= network.prefix_len() + 2 => Ok(len),
        _ => Err(format!("SubnetLen is {len}: it lies from {} to 30", network.prefix_len() + 2)),
    }
}

fn border(fields: &Map<String, Value>, name: &str, config: &Config, default: Ipv4Addr) -> Result<Ipv4Addr, String> {
    let Some(text) = string(fields, name)? else { return Ok(default) };
    let address: Ipv4Addr = text.parse().map_err(|_| format!("{name} is no IPv4 address"))?;
    if !config.network.contains(address) {
        return Err(format!("{name} is outside of Network"));
    }
    match Network::new(address, config.subnet_len) {
        Some(_) => Ok(address),
        None => Err(format!("{name} is not the first address of a subnet of /{}", config.subnet_len)),
    }
}

fn backend(fields: &Map<String, Value>) -> Result<(Backend, Vec<String>), String> {
    let empty = Map::new();
    let fields = match field(fields, "Backend") {
        None | Some(Value::Null) => &empty,
        Some(Value::Object(fields)) => fields,
        Some(_) => return Err("Backend is no JSON object".to_owned()),
    };
    let port = |default: u16| match number(fields, "Port")? {
        0 => Ok(default),
        port => u16::try_from(port).map_err(|_| format!("Backend.Port is {port}: it is at most 65535")),
    };
    let mut notes = Vec::new();
    match string(fields, "Type")?.unwrap_or("udp") {
        "udp" => Ok((Backend::Udp { port: port(UDP_PORT)? }, notes)),
        "vxlan" => {
            let vni = match (field(fields, "VNI"), number(fields, "VNI")?) {
                (None | Some(Value::Null), _) => 1,
                (_, vni) if vni < 1 << 24 => vni as u32,
                (_, vni) => return Err(format!("Backend.VNI is {vni}: it is at most 16777215")),
            };
            if flag(fields, "GBP")? {
                notes.push("GBP is set: the policy bits of peers are not read, and none are sent".to_owned());
            }
            if flag(fields, "DirectRouting")? {
                let text = "DirectRouting is set: peers of this LAN are reached through the tunnel all the same, and \
                            what they send without a tunnel arrives as on any router";
                notes.push(text.to_owned());
            }
            Ok((Backend::Vxlan { vni, port: port(VXLAN_PORT)? }, notes))
        }
        "extension" => Err("the backend is `extension`: there flanneld starts `segue fleet hook`".to_owned()),
        other => Err(format!("the backend `{}` is none of vxlan and udp", segue_control::error::printable(other))),
    }
}

/// Returns the field with the given name: exactly, or else ignoring case, like Go's decoder.
pub(crate) fn field<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).or_else(|| fields.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value))
}

fn string<'a>(fields: &'a Map<String, Value>, name: &str) -> Result<Option<&'a str>, String> {
    match field(fields, name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{name} is no string")),
    }
}

fn number(fields: &Map<String, Value>, name: &str) -> Result<u64, String> {
    match field(fields, name) {
        None | Some(Value::Null) => Ok(0),
        Some(value) => value.as_u64().ok_or(format!("{name} is no positive whole number")),
    }
}

fn flag(fields: &Map<String, Value>, name: &str) -> Result<bool, String> {
    match field(fields, name) {
        None | Some(Value::Null) => Ok(false),
        Some(value) => value.as_bool().ok_or(format!("{name} is neither true nor false")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Config {
        Config::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn what_is_left_out_has_flannels_values() {
        let config = parsed(r#"{"Network":"198.19.0.0/16","Backend":{"Type":"vxlan"}}"#);
        assert_eq!(config.subnet_len, 24);
        assert_eq!(config.subnet_min, Ipv4Addr::new(198, 19, 1, 0));
        assert_eq!(config.subnet_max, Ipv4Addr::new(198, 19, 255, 0));
        assert_eq!(config.backend, Backend::Vxlan { vni: 1, port: 8472 });
        let null = parsed(r#"{"Network":"198.19.0.0/16","Backend":{"Type":"vxlan","VNI":null,"Port":null}}"#);
        assert_eq!(null, config);
        assert_eq!(parsed(r#"{"Network":"198.19.0.0/24"}"#).subnet_len, 26);
        assert_eq!(parsed(r#"{"Network":"198.19.0.0/24"}"#).backend, Backend::Udp { port: 8285 });
    }

    #[test]
    fn fields_are_found_without_regard_to_case() {
        let config =
            parsed(r#"{"network":"198.19.0.0/16","SUBNETLEN":26,"backend":{"type":"vxlan","vni":7,"port":4789}}"#);
        assert_eq!((config.subnet_len, config.backend), (26, Backend::Vxlan { vni: 7, port: 4789 }));
    }

    #[test]
    fn a_wrong_configuration_is_refused_with_the_name_of_the_field() {
        for (text, why) in [
            ("", "no JSON"),
            ("[]", "no JSON object"),
            ("{}", "Network is missing"),
            (r#"{"Network":"198.19.0.0"}"#, "Network is no"),
            (r#"{"Network":7}"#, "Network is no string"),
            (r#"{"Network":"198.19.0.0/16","SubnetLen":17}"#, "SubnetLen is 17"),
            (r#"{"Network":"198.19.0.0/16","SubnetLen":31}"#, "SubnetLen is 31"),
            (r#"{"Network":"198.19.0.0/16","SubnetLen":-1}"#, "SubnetLen is no"),
            (r#"{"Network":"198.19.0.0/30"}"#, "SubnetLen is 32"),
            (r#"{"Network":"198.19.0.0/16","SubnetMin":"198.18.0.0"}"#, "SubnetMin is outside"),
            (r#"{"Network":"198.19.0.0/16","SubnetMin":"198.19.0.1"}"#, "SubnetMin is not the first"),
            (r#"{"Network":"198.19.0.0/16","SubnetMin":"198.19.9.0","SubnetMax":"198.19.8.0"}"#, "above SubnetMax"),
            (r#"{"Network":"198.19.0.0/16","Backend":{"Type":"vxlan","VNI":16777216}}"#, "VNI"),
            (r#"{"Network":"198.19.0.0/16","Backend":{"Type":"vxlan","Port":65536}}"#, "Port"),
            (r#"{"Network":"198.19.0.0/16","Backend":{"Type":"extension"}}"#, "hook"),
            (r#"{"Network":"198.19.0.0/16","Backend":{"Type":"host-gw"}}"#, "host-gw"),
            (r#"{"Network":"198.19.0.0/16","Backend":7}"#, "Backend is no"),
            (r#"{"Network":"198.19.0.0/16","EnableIPv6":true}"#, "EnableIPv6"),
            (r#"{"Network":"198.19.0.0/16","EnableIPv4":false}"#, "EnableIPv4"),
        ] {
            let refused = Config::parse(text.as_bytes()).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
