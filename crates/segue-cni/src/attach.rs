//! The commands of CNI, which attach a pod by a veth pair, an address and routes, and detach it again.
//!
//! The pod's end has the address with a prefix of 32 bits and a default route by the gateway; the host's end has the
//! gateway's address and a route to the pod. So the host routes between pods, and to the tunnel by the network's route.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;

use segue_control::client;
use segue_host::sys;
use serde_json::{Value, json};

use crate::document::{CniError, Given, addresses};
use crate::ipam;
use crate::link::{Found, Links, Route};
use crate::request::Request;

/// Attaches a pod (ADD), and returns the result.
pub fn add(request: &Request) -> Result<Value, CniError> {
    let mtu = request.mtu()?;
    let namespace = open_namespace(request)?;
    let taken = inside(&namespace, |links| links.find(&request.interface))?;
    if taken.is_some() {
        return Err(CniError::new(4, format!("the pod has an interface {} already", request.interface), "CNI_IFNAME"));
    }
    let given = ipam::delegate(request, "ADD")?;
    let done = addresses(&given).and_then(|ips| {
        let ends = connect(request, &namespace, &ips, mtu)?;
        Ok(result(request, &given, &ips, &ends))
    });
    // The first failure is the one to report.
    if done.is_err()
        && let Err(error) = del(request)
    {
        eprintln!("segue-cni: {}: {}", error.message, error.details);
    }
    done
}

/// Detaches a pod (DEL). A resource that is gone already is no failure.
pub fn del(request: &Request) -> Result<(), CniError> {
    // While the link is there, its address is not given to another pod.
    remove_link(request)?;
    ipam::delegate(request, "DEL").map(|_| ())
}

/// Compares a pod's interface with the result of its ADD (CHECK).
pub fn check(request: &Request) -> Result<(), CniError> {
    let before = &request.config["prevResult"];
    if !before.is_object() {
        return Err(CniError::config("prevResult is missing", "CHECK compares with the result of ADD"));
    }
    ipam::delegate(request, "CHECK")?;
    let ips = addresses(before)?;
    let namespace = open_namespace(request)?;
    let wrong = |what: String| Err(CniError::new(100, what, "DEL and ADD make it anew"));
    let near = here(|links| own(links, request))?;
    let Some(near) = near.filter(|link| link.is_up) else {
        return wrong("the host's end of the pair is gone or down".to_owned());
    };
    let (far, has, routes) = inside(&namespace, |links| {
        let Some(far) = links.find(&request.interface)? else { return Ok((None, Vec::new(), Vec::new())) };
        let (has, routes) = (links.addresses(far.index)?, links.routes(far.index)?);
        Ok((Some(far), has, routes))
    })?;
    let Some(far) = far.filter(|link| link.is_up) else {
        return wrong(format!("{} is gone or down in the pod", request.interface));
    };
    let mac =
        before["interfaces"].as_array().into_iter().flatten().find(|one| one["name"] == request.interface.as_str());
    if mac.is_some_and(|one| one["mac"].as_str().is_some_and(|mac| mac != far.mac)) {
        return wrong(format!("{} has another MAC address: {}", request.interface, far.mac));
    }
    for ip in &ips {
        if !has.iter().any(|prefix| prefix.address == ip.address.address) {
            return wrong(format!("{} does not have {}", request.interface, ip.address.address));
        }
    }
    if !routes.contains(&(Ipv4Addr::UNSPECIFIED, 0)) {
        return wrong("the pod has no default route".to_owned());
    }
    let to_pod = here(|links| links.routes(near.index))?;
    match ips.iter().find(|ip| !to_pod.iter().any(|(to, len)| IpAddr::V4(*to) == ip.address.address && *len == 32)) {
        Some(ip) => wrong(format!("the host has no route to {}", ip.address.address)),
        None => Ok(()),
    }
}

/// Returns an error where an ADD cannot be served (STATUS).
pub fn status(request: &Request) -> Result<(), CniError> {
    let not_ready = |what: String, why: String| CniError::new(50, what, why);
    let tunnel = &request.tunnel;
    request.mtu().map_err(|error| not_ready(error.message, error.details))?;
    client::peers(tunnel)
        .map_err(|error| not_ready(format!("{tunnel} has no table of peers: {}", error.message), error.hint))?;
    without_old_plugins(ipam::delegate(request, "STATUS"))
}

/// Converts the error of an IPAM plugin that lacks a command of version 1.1 into a success.
fn without_old_plugins(outcome: Result<Value, CniError>) -> Result<(), CniError> {
    match outcome {
        Err(error) if error.code == 4 => Ok(()),
        other => other.map(|_| ()),
    }
}

/// Removes the links that belong to no attachment of the runtime's list (GC).
pub fn gc(request: &Request) -> Result<(), CniError> {
    // The second is the name that CNI 1.1.0 had first.
    let list = ["cni.dev/valid-attachments", "cni.dev/attachments"].map(|key| &request.config[key]);
    let list = match list.into_iter().find(|list| !list.is_null()) {
        Some(list) => list.as_array().ok_or_else(|| {
            CniError::config("cni.dev/valid-attachments is no list", "GC keeps what it lists, and removes the rest")
        })?,
        // libcni, called without a list, has called DEL for all that it knows; of the rest nothing is known.
        None => return Ok(()),
    };
    let text = |one: &Value, key: &str| one[key].as_str().unwrap_or_default().to_owned();
    let kept: Vec<String> =
        list.iter().map(|one| alias(&request.network, &text(one, "containerID"), &text(one, "ifname"))).collect();
    let mine = format!("{} ", of_network(&request.network));
    let failed = here(|links| {
        let mut failed = None;
        for (name, link) in links.all()? {
            if link.alias.starts_with(&mine) && !kept.contains(&link.alias) {
                failed = links.remove(link.index).err().map(|error| (name, error)).or(failed);
            }
        }
        Ok(failed)
    })?;
    // The IPAM plugin's reservations are removed in any case.
    without_old_plugins(ipam::delegate(request, "GC"))?;
    match failed {
        Some((name, error)) => Err(CniError::system(format!("cannot remove {name}"), &error)),
        None => Ok(()),
    }
}

/// A veth pair: its end in the host, with its name, and its end in the pod.
struct VethPair {
    host: (String, Found),
    pod: Found,
}

/// Creates the veth pair, its addresses and routes.
fn connect(request: &Request, namespace: &File, ips: &[Given], mtu: u32) -> Result<VethPair, CniError> {
    let (host, alias) = names(request);
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error: io::Error| CniError::system(what, &error)
    };
    let mut links = Links::open().map_err(failed("cannot reach the kernel"))?;
    // Left by a container of this id that was never removed.
    if let Some(old) = own(&mut links, request).map_err(failed("cannot read the links"))? {
        links.remove(old.index).map_err(failed("cannot remove the old pair"))?;
    }
    links
        .make_pair(&host, &request.interface, namespace.as_raw_fd(), mtu)
        .map_err(failed("cannot make a veth pair"))?;
    let near = links.find(&host).map_err(failed("cannot read the links"))?;
    let near = near.ok_or_else(|| CniError::new(100, format!("{host} vanished"), "another program removed it"))?;
    ignore_advertisements(&host).map_err(failed("cannot have this host ignore router advertisements of the pod"))?;
    links.set_up(near.index, Some(&alias)).map_err(failed("cannot set the host's end up"))?;
    let gateways = gateways(ips);
    let pod = inside(namespace, |links| {
        let Some(far) = links.find(&request.interface)? else { return Err(io::ErrorKind::NotFound.into()) };
        links.set_up(far.index, None)?;
        for address in v4(ips) {
            links.add_address(far.index, address, 32)?;
        }
        // The routes that the pod has by another interface stay the first.
        for gateway in &gateways {
            links.add_route_behind(Route::to_host(*gateway), far.index)?;
        }
        if let Some(first) = gateways.first() {
            links.add_route_behind(Route::default_by(*first), far.index)?;
        }
        Ok(far)
    })?;
    for gateway in gateways {
        // Each pod's end has the gateway for itself: the same address on every pair is right.
        links.add_address(near.index, gateway, 32).map_err(failed("cannot set the gateway's address"))?;
    }
    for address in v4(ips) {
        links.add_route(Route::to_host(address), near.index).map_err(|error| no_route(address, &error))?;
    }
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").map_err(failed("cannot make this host a router"))?;
    Ok(VethPair { host: (host, near), pod })
}

/// Returns the error for a route to a pod that cannot be set.
fn no_route(address: Ipv4Addr, error: &io::Error) -> CniError {
    if error.kind() != io::ErrorKind::AlreadyExists {
        return CniError::system("cannot set the route to the pod", error);
    }
    let details = format!(
        "the IPAM plugin gave an address that is in use, as where its reservations are lost: `ip route show {address}` \
         has the link; the next ADD gets another address from host-local, and without that route this one is free"
    );
    // The code for what may succeed later.
    CniError::new(11, format!("this host has a route to {address} already"), details)
}

/// Returns the IPv4 addresses among the given ones.
fn v4(ips: &[Given]) -> impl Iterator<Item = Ipv4Addr> {
    ips.iter().filter_map(|ip| match ip.address.address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    })
}

/// Returns the gateways of the addresses, each once.
fn gateways(ips: &[Given]) -> Vec<Ipv4Addr> {
    let mut found = Vec::new();
    for gateway in ips.iter().map(gateway) {
        if !found.contains(&gateway) {
            found.push(gateway);
        }
    }
    found
}

/// Has this host ignore router advertisements that come by its end of a pair: else a pod would change the host's IPv6
/// routes (CVE-2020-10749).
fn ignore_advertisements(host: &str) -> io::Result<()> {
    let path = format!("/proc/sys/net/ipv6/conf/{host}/accept_ra");
    match fs::read_to_string(&path) {
        // The default may be so already, and the file not be one to write to.
        Ok(text) if text.trim() == "0" => Ok(()),
        // Without the file there is no IPv6.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        _ => fs::write(&path, "0"),
    }
}

/// Returns the gateway of an address: that of the IPAM plugin, else the first address of the network.
fn gateway(ip: &Given) -> Ipv4Addr {
    ip.gateway.unwrap_or_else(|| match ip.address.masked().address {
        IpAddr::V4(first) => Ipv4Addr::from(u32::from(first) | 1),
        IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
    })
}

fn result(request: &Request, given: &Value, ips: &[Given], ends: &VethPair) -> Value {
    let sandbox = request.namespace.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let is_old = request.version == "0.4.0";
    let ips: Vec<Value> = ips
        .iter()
        .map(|ip| {
            let mut one =
                json!({ "interface": 1, "address": format!("{}/32", ip.address.address), "gateway": gateway(ip) });
            if is_old {
                one["version"] = json!("4");
            }
            one
        })
        .collect();
    let mut interfaces = json!([
        { "name": ends.host.0, "mac": ends.host.1.mac },
        { "name": request.interface, "mac": ends.pod.mac, "sandbox": sandbox },
    ]);
    if request.version == "1.1.0" {
        for (one, link) in [&ends.host.1, &ends.pod].into_iter().enumerate() {
            interfaces[one]["mtu"] = json!(link.mtu);
        }
    }
    let routes = json!([{ "dst": "0.0.0.0/0" }]);
    let dns = given.get("dns").cloned().unwrap_or_else(|| json!({}));
    json!({ "cniVersion": request.version, "interfaces": interfaces, "ips": ips, "routes": routes, "dns": dns })
}

/// Removes the host's end of the pair.
fn remove_link(request: &Request) -> Result<(), CniError> {
    here(|links| {
        let Some(link) = own(links, request)? else { return Ok(()) };
        match links.remove(link.index) {
            // The kernel may have removed it in between, with the namespace of the pod.
            Err(error) if own(links, request)?.is_some() => Err(error),
            _ => Ok(()),
        }
    })
}

/// Returns the host's end of the veth pair: the link of its name, unless the alias is another's, else the one with its
/// alias, which another program renamed.
fn own(links: &mut Links, request: &Request) -> io::Result<Option<Found>> {
    let (host, alias) = names(request);
    match links.find(&host)? {
        Some(link) if link.alias == alias || link.alias.is_empty() => Ok(Some(link)),
        _ => Ok(links.all()?.into_iter().find(|(_, link)| link.alias == alias).map(|(_, link)| link)),
    }
}

/// Returns the name and the identifying alias of the host's end.
fn names(request: &Request) -> (String, String) {
    let alias = alias(&request.network, &request.container, &request.interface);
    let mut hasher = DefaultHasher::new();
    alias.hash(&mut hasher);
    (format!("sg{:012x}", hasher.finish() & 0xffff_ffff_ffff), alias)
}

fn alias(network: &str, container: &str, interface: &str) -> String {
    // The kernel keeps 255 bytes.
    format!("{} {} {interface}", of_network(network), shortened(container, 150))
}

/// Returns the prefix of the aliases of a network.
fn of_network(network: &str) -> String {
    format!("segue-cni {}", shortened(network, 70))
}

/// Returns a name with at most `most` bytes: of a longer one the beginning and a hash of the whole. No name has a `~`
/// itself.
fn shortened(name: &str, most: usize) -> String {
    if name.len() <= most {
        return name.to_owned();
    }
    // FNV-1a: the hash of the standard library may be another one in a later version of this program.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let begin: String = name.chars().take(most - 17).collect();
    format!("{begin}~{hash:016x}")
}

fn open_namespace(request: &Request) -> Result<File, CniError> {
    let path = request.namespace.as_deref().unwrap_or(std::path::Path::new(""));
    File::open(path).map_err(|error| CniError::system(format!("cannot open the namespace {}", path.display()), &error))
}

fn here<T>(work: impl FnOnce(&mut Links) -> io::Result<T>) -> Result<T, CniError> {
    let done = Links::open().and_then(|mut links| work(&mut links));
    done.map_err(|error| CniError::system("cannot read or change links", &error))
}

fn inside<T>(namespace: &File, work: impl FnOnce(&mut Links) -> io::Result<T>) -> Result<T, CniError> {
    let done = sys::in_net_namespace(namespace, || Links::open().and_then(|mut links| work(&mut links)));
    done.flatten().map_err(|error| CniError::system("cannot read or change links in the pod", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_that_differ_at_their_end_have_aliases_of_their_own() {
        let long = |len: usize, last: &str| format!("{}{last}", "n".repeat(len - last.len()));
        let [one, other] = ["1", "2"].map(|last| of_network(&long(71, last)));
        assert_ne!(one, other);
        assert_eq!(one.len(), "segue-cni ".len() + 70);
        assert_eq!(of_network(&long(70, "1")), format!("segue-cni {}", long(70, "1")));
        let [one, other] = ["1", "2"].map(|last| alias(&long(200, "n"), &long(200, last), "abcdefghijklmno"));
        assert_ne!(one, other);
        assert!(one.len() <= 255 && one.ends_with(" abcdefghijklmno"), "{one}");
        // They have to be the same in each version.
        assert_eq!(shortened(&long(18, "a").replace('n', "a"), 17), "~9238305690ca5ec7");
    }
}
