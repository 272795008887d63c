//! The documents of CNI: errors, and the addresses and routes of a result.

use std::net::{IpAddr, Ipv4Addr};

use segue_host::address::is_host_v4;
use segue_host::prefix::Prefix;
use serde_json::{Value, json};

/// The versions of the specification that the plugin supports.
pub const VERSIONS: [&str; 3] = ["0.4.0", "1.0.0", "1.1.0"];

/// An error in the form of the CNI specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniError {
    /// The error code; the specification defines those below 100.
    pub code: u32,
    /// Description of the operation that failed.
    pub message: String,
    /// Cause of the error, or its remedy.
    pub details: String,
    /// Error document of the IPAM plugin, passed on unchanged.
    passed: Option<Value>,
}

impl CniError {
    /// Creates an error of the CNI protocol.
    pub fn new(code: u32, message: impl Into<String>, details: impl Into<String>) -> CniError {
        CniError { code, message: message.into(), details: details.into(), passed: None }
    }

    /// Returns the error for an environment variable that is missing or invalid.
    pub fn environment(message: String) -> CniError {
        CniError::new(4, message, "CNI_COMMAND, CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME and CNI_PATH are the runtime's")
    }

    /// Returns the error for a failed system call.
    pub fn system(what: impl Into<String>, error: &std::io::Error) -> CniError {
        CniError::new(5, what, segue_control::error::os_text(error))
    }

    /// Returns the error for an invalid network configuration.
    pub fn config(message: impl Into<String>, details: impl Into<String>) -> CniError {
        CniError::new(7, message, details)
    }

    /// Returns the error that another plugin reported, with its document.
    pub fn passed(document: Value) -> CniError {
        let code = document["code"].as_u64().and_then(|code| u32::try_from(code).ok()).unwrap_or(999);
        let text = |key: &str| document[key].as_str().unwrap_or_default().to_owned();
        CniError { code, message: text("msg"), details: text("details"), passed: Some(document) }
    }

    /// Returns the error as the JSON document of the specification.
    pub fn json(&self) -> Value {
        self.passed.clone().unwrap_or_else(
            || json!({ "cniVersion": "1.1.0", "code": self.code, "msg": self.message, "details": self.details }),
        )
    }
}

/// An address that the IPAM plugin allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// The address with its prefix length.
    pub address: Prefix,
    /// The gateway, an address of the host.
    pub gateway: Option<Ipv4Addr>,
}

/// Reads the addresses in a result of the IPAM plugin or of this plugin.
pub fn addresses(result: &Value) -> Result<Vec<Given>, CniError> {
    let wrong = |why: &str| CniError::new(6, "the result of the IPAM plugin cannot be read", why);
    let ips = result["ips"].as_array().filter(|ips| !ips.is_empty()).ok_or_else(|| wrong("it has no ips"))?;
    let read = |ip: &Value| {
        let address: Prefix = ip["address"]
            .as_str()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| wrong("an address is no prefix"))?;
        if !is_host(address.address) {
            return Err(wrong("an address is not that of a host in IPv4"));
        }
        let gateway = match &ip["gateway"] {
            Value::Null => None,
            text => {
                let gateway = text.as_str().and_then(|text| text.parse::<Ipv4Addr>().ok());
                let gateway = gateway.filter(|gateway| is_host((*gateway).into()));
                Some(gateway.ok_or_else(|| wrong("a gateway is not that of a host in IPv4"))?)
            }
        };
        Ok(Given { address, gateway })
    };
    ips.iter().map(read).collect()
}

/// Returns whether an address can be that of a host: IPv4, and neither 0/8, loopback, multicast nor 240/4 (RFC 6890).
fn is_host(address: IpAddr) -> bool {
    matches!(address, IpAddr::V4(four) if is_host_v4(four))
}
