//! Calls of the container runtime.

use std::io;

use segue_cni::document::{CniError, VERSIONS, addresses};
use segue_cni::request::Request;
use segue_control::error::is_hidden;
use segue_control::json;
use serde_json::Value;

use crate::input::Input;
use crate::resources::bounded;

/// Number of bytes that the reader may hold for the shortest call.
const FREE: usize = 128 << 10;
const COMMANDS: [&str; 8] = ["ADD", "DEL", "CHECK", "STATUS", "GC", "VERSION", "", "\x1b[2J"];

/// Reads an arbitrary configuration of a network with an arbitrary environment, and as the result of a plugin for
/// addresses: an accepted call has names that can be those of files, interfaces and networks, and a refused one is a
/// document of the specification.
///
/// The first byte has the command (bits 0 to 2), and whether there is a file with the subnet of this host (bit 3). The
/// variables of the environment and that file follow, each with its length in a byte before it, and the configuration.
pub fn cni(data: &[u8]) {
    let mut input = Input::new(data);
    let how = input.u8();
    let mut text = || {
        let len = usize::from(input.u8());
        String::from_utf8_lossy(input.take(len)).into_owned()
    };
    let [container, namespace, interface, subnet] = [(); 4].map(|()| text());
    let variable = |name: &str| match name {
        "CNI_CONTAINERID" => container.clone(),
        "CNI_NETNS" => namespace.clone(),
        "CNI_IFNAME" => interface.clone(),
        _ => panic!("{name} is not the runtime's"),
    };
    let file = |name: &str| {
        assert!(!name.is_empty());
        if how & 8 == 0 { Ok(subnet.clone()) } else { Err(io::ErrorKind::NotFound.into()) }
    };
    let command = COMMANDS[usize::from(how & 7)];
    let configuration = String::from_utf8_lossy(input.rest());
    bounded(data.len(), FREE, || {
        match Request::read(command, &configuration, variable, file) {
            Ok(request) => check(&request, command),
            Err(error) => check_error(&error),
        }
        if let Ok(document) = json::read::<Value>(configuration.as_bytes()) {
            match addresses(&document) {
                Ok(all) => assert!(!all.is_empty() && all.iter().all(|given| given.address.address.is_ipv4())),
                Err(error) => check_error(&error),
            }
            // A plugin's own error is passed on as it is.
            let passed = CniError::passed(document.clone());
            assert_eq!(passed.json(), document);
        }
    });
}

/// Reads the call that adds a pod to a network of this configuration.
///
/// # Errors
///
/// With the refusal.
pub(crate) fn add(configuration: &[u8]) -> Result<Request, CniError> {
    let variable = |name: &str| match name {
        "CNI_CONTAINERID" => "pod".to_owned(),
        "CNI_NETNS" => "/run/netns/pod".to_owned(),
        _ => "eth0".to_owned(),
    };
    let none = |_: &str| Err(io::ErrorKind::NotFound.into());
    Request::read("ADD", &String::from_utf8_lossy(configuration), variable, none)
}

fn check(request: &Request, command: &str) {
    let is_of_pod = matches!(command, "ADD" | "DEL" | "CHECK");
    let is_plain = |text: &str| !text.is_empty() && !text.starts_with('.') && !text.contains(['/', '\0', ' ']);
    assert!(VERSIONS.contains(&request.version.as_str()) && is_plain(&request.network), "{request:?}");
    assert!(request.tunnel.len() < 16 && is_plain_name(&request.tunnel), "{request:?}");
    if is_of_pod {
        assert!(is_plain(&request.container) && is_plain_name(&request.interface), "{request:?}");
    }
    assert!(!matches!(command, "ADD" | "CHECK") || request.namespace.is_some());
    let plugin = request.config["ipam"]["type"].as_str().expect("a plugin");
    assert!(is_plain(plugin), "{plugin:?} is a name in CNI_PATH");
    if plugin == "host-local" {
        let has = |key: &str| request.config["ipam"].get(key).is_some();
        assert!(has("subnet") || has("ranges") || has("addresses"), "{request:?}");
    }
    // There is no such interface, or the configuration says what its MTU is.
    if let Err(error) = request.mtu() {
        check_error(&error);
    }
}

/// Returns whether the text can be the name of an interface, which is a folder in /sys too.
fn is_plain_name(text: &str) -> bool {
    (1..16).contains(&text.len()) && text != "." && text != ".." && !text.contains(['/', ':', ' ', '\0'])
}

fn check_error(error: &CniError) {
    let document = error.json();
    assert!(
        document["code"].is_u64() && document["msg"].is_string() && document["cniVersion"] == "1.1.0",
        "{document}"
    );
    let message = document["msg"].as_str().unwrap_or_default();
    assert!(!message.is_empty() && !message.chars().any(is_hidden), "{message:?} acts on the terminal");
}
