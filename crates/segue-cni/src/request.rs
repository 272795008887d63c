//! A call of the container runtime: the environment variables and the network configuration.

use std::fs;
use std::io;
use std::path::PathBuf;

use segue_control::error::printable;
use segue_control::json;
use serde_json::{Value, json};

use crate::document::{CniError, VERSIONS};

/// Default file with the subnet of this host.
const SUBNET_FILE: &str = "/run/flannel/subnet.env";
/// Default name of the tunnel's interface.
const TUNNEL: &str = "segue0";

/// A call by the container runtime.
#[derive(Clone, Debug)]
pub struct Request {
    /// The id of the container.
    pub container: String,
    /// The path of the container's network namespace, where the runtime gave one.
    pub namespace: Option<PathBuf>,
    /// The name of the interface in the container.
    pub interface: String,
    /// The network configuration, with the subnet added to its section `ipam`.
    pub config: Value,
    /// The version of the CNI specification that the configuration names.
    pub version: String,
    /// The name of the network.
    pub network: String,
    /// The interface of the tunnel.
    pub tunnel: String,
}

impl Request {
    /// Parses a call from the network configuration and the environment, whose variables `variable` returns; `read`
    /// reads the file with the subnet of this host.
    pub fn read(
        command: &str,
        input: &str,
        variable: impl Fn(&str) -> String,
        read: impl Fn(&str) -> io::Result<String>,
    ) -> Result<Request, CniError> {
        let mut config: Value = json::read(input.as_bytes())
            .map_err(|error| CniError::new(6, "the configuration on stdin is no JSON", error.to_string()))?;
        let text = |key: &str| config[key].as_str().unwrap_or_default().to_owned();
        let version = match text("cniVersion") {
            version if VERSIONS.contains(&version.as_str()) => version,
            other => {
                let message = format!("cniVersion is `{}`", printable(&other));
                return Err(CniError::new(1, message, format!("it is one of {}", VERSIONS.join(", "))));
            }
        };
        let network = text("name");
        if !is_name(&network) {
            return Err(CniError::config(format!("name is `{}`", printable(&network)), "letters, digits, . _ -"));
        }
        let tunnel = match &config["dev"] {
            dev if dev.is_null() || dev == "" => TUNNEL.to_owned(),
            dev => dev.as_str().filter(|dev| is_interface(dev)).map(str::to_owned).ok_or_else(|| {
                CniError::config(format!("dev is {}", printable(&dev.to_string())), "the interface of the tunnel")
            })?,
        };
        let (container, interface) = (variable("CNI_CONTAINERID"), variable("CNI_IFNAME"));
        let namespace = Some(variable("CNI_NETNS")).filter(|path| !path.is_empty()).map(PathBuf::from);
        let is_of_pod = matches!(command, "ADD" | "DEL" | "CHECK");
        if is_of_pod && !is_name(&container) {
            return Err(CniError::environment(format!("CNI_CONTAINERID is `{}`", printable(&container))));
        }
        if is_of_pod && !is_interface(&interface) {
            return Err(CniError::environment(format!("CNI_IFNAME is `{}`", printable(&interface))));
        }
        if matches!(command, "ADD" | "CHECK") && namespace.is_none() {
            return Err(CniError::environment("CNI_NETNS is missing".to_owned()));
        }
        if config["ipam"]["type"].as_str().is_none_or(|plugin| !is_name(plugin)) {
            let details = r#""ipam": {"type": "host-local"}"#;
            return Err(CniError::config("ipam.type is missing: it names the plugin for addresses", details));
        }
        let has_range = ["subnet", "ranges", "addresses"].iter().any(|key| config["ipam"].get(key).is_some());
        if config["ipam"]["type"] == "host-local" && !has_range {
            let file =
                Some(text("subnetFile")).filter(|file| !file.is_empty()).unwrap_or_else(|| SUBNET_FILE.to_owned());
            match subnet(&file, read(&file)) {
                Ok(subnet) => config["ipam"]["ranges"] = json!([[{ "subnet": subnet }]]),
                // What is to be removed is removed without it.
                Err(_) if matches!(command, "DEL" | "GC") => {
                    config["ipam"]["ranges"] = json!([[{ "subnet": "198.18.0.0/15" }]]);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Request { container, namespace, interface, config, version, network, tunnel })
    }

    /// Returns the MTU of the pod's interface: that of the tunnel, unless the configuration has a smaller one.
    pub fn mtu(&self) -> Result<u32, CniError> {
        let text = fs::read_to_string(format!("/sys/class/net/{}/mtu", self.tunnel));
        let tunnel: u32 = text.ok().and_then(|text| text.trim().parse().ok()).ok_or_else(|| {
            let details = format!("segue tunnel dev {} peers none ... makes it", self.tunnel);
            CniError::new(11, format!("there is no interface {}", printable(&self.tunnel)), details)
        })?;
        let given = &self.config["mtu"];
        match given.as_u64() {
            None if given.is_null() => Ok(tunnel),
            Some(0) => Ok(tunnel),
            Some(mtu) if (68..=u64::from(tunnel)).contains(&mtu) => Ok(mtu as u32),
            _ => {
                let message = format!("mtu is {}", printable(&given.to_string()));
                Err(CniError::config(message, format!("it lies from 68 to {tunnel}, the tunnel's")))
            }
        }
    }
}

/// Returns the subnet that a file of flannel's form with this text names, as a network without host bits.
fn subnet(file: &str, text: io::Result<String>) -> Result<String, CniError> {
    let missing = |why: String| CniError::new(11, format!("{file} does not say the subnet of this host"), why);
    let text = text.map_err(|error| missing(error.to_string()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("FLANNEL_SUBNET="));
    let prefix: segue_host::prefix::Prefix = line
        .and_then(|subnet| subnet.trim().parse().ok())
        .ok_or_else(|| missing("it has no line FLANNEL_SUBNET=ADDRESS/LEN".to_owned()))?;
    Ok(prefix.masked().to_string())
}

/// Returns whether the text is a valid name of a network or container (CNI specification).
fn is_name(text: &str) -> bool {
    let is_letter = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'_' | b'.' | b'-');
    text.len() <= 200 && text.bytes().all(is_letter) && text.bytes().next().is_some_and(|c| c.is_ascii_alphanumeric())
}

/// Returns whether the text is a valid interface name in Linux.
fn is_interface(text: &str) -> bool {
    (1..16).contains(&text.len())
        && text != "."
        && text != ".."
        && text.bytes().all(|c| c.is_ascii_graphic() && c != b'/' && c != b':')
}
