//! Invalid leases, each with the reason for which it is refused. In keys and values each character stands for
//! the byte of its number.

use std::collections::BTreeMap;

use super::ground::SUBNETS;

/// Key of a good lease that covers half the network, listed before any other; leases of the configured length take
/// precedence.
pub(crate) const WIDE: &str = "/198.19.0.0-17";

/// A lease that would be taken.
pub(crate) const GOOD: &str = r#"{"PublicIP":"198.18.0.9","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"5a:65:bd:bd:44:09"}}"#;

/// Wrong etcd keys for a good lease, each with the reason of its refusal; the name of the leases' directory goes in
/// front.
const KEYS: &[(&str, &str)] = &[
    ("key_outside", "-anything"),
    ("key_outside", "-old/198.19.207.0-24"),
    ("key_outside", ".d/198.19.207.0-24"),
    ("key_malformed", "/"),
    ("key_malformed", "//198.19.207.0-24"),
    ("key_malformed", "/198.19.207.0"),
    ("key_malformed", "/198.19.207.0-"),
    ("key_malformed", "/-24"),
    ("key_malformed", "/198.19.207.0-33"),
    ("key_malformed", "/198.19.207.0-280"),
    ("key_malformed", "/198.19.207.0-+24"),
    ("key_malformed", "/198.19.207.0-024"),
    ("key_malformed", "/198.19.207-24"),
    ("key_malformed", "/198.19.207.256-24"),
    ("key_malformed", "/198.019.207.0-24"),
    ("key_malformed", "/198.19.207.0/24"),
    ("key_malformed", "/198.19.207.0-24/more"),
    ("key_malformed", "/198.19.207.0-24 "),
    ("key_malformed", "/198.19.207.0-24\n"),
    ("key_malformed", "/\u{1b}[2J198.19.207.0-24"),
    ("key_malformed", "/198.19.207.0-24\0"),
    ("key_malformed", "/\u{ff}\u{fe}-24"),
    ("key_malformed", "/198.19.207.0-24&"),
    ("key_malformed", "/198.19.207.0-24&2001:db8::"),
    ("key_malformed", "/198.19.207.0-24&2001:db8::-129"),
    ("key_malformed", "/198.19.207.0-24&198.19.206.0-24"),
    ("key_malformed", "/198.19.207.0--24"),
    ("key_malformed", "/3323187968-24"),
    ("key_malformed", "/2001:db8:1::-64"),
    ("host_bits", "/198.19.207.1-24"),
    ("host_bits", "/198.19.207.128-24"),
    ("host_bits", "/198.19.207.0-24&2001:db8::1-64"),
    ("outside_network", "/198.20.207.0-24"),
    ("outside_network", "/198.18.0.0-24"),
    ("outside_network", "/0.0.0.0-0"),
    ("outside_network", "/127.0.0.0-8"),
    ("outside_network", "/224.0.0.0-4"),
    ("outside_network", "/198.18.0.0-15"),
    ("outside_network", "/198.19.0.0-16"),
    // The node of the kernel has had it before.
    ("overlap", "/198.19.4.128-25"),
    ("overlap", "/198.19.4.0-25"),
    ("overlap", "/198.19.4.9-32"),
];

/// Wrong values of good keys: the part of the good value that is replaced, and its replacement.
const VALUES: &[(&str, &str, &str)] = &[
    ("value_malformed", GOOD, ""),
    ("value_malformed", GOOD, "{"),
    ("value_malformed", GOOD, "[]"),
    ("value_malformed", GOOD, "null"),
    ("value_malformed", GOOD, "\u{ff}\u{fe}\0"),
    ("value_malformed", "}}", "}}}"),
    ("value_malformed", r#"{"PublicIP""#, r#"{"publicip":"198.18.0.8","PublicIP""#),
    ("address_missing", r#""PublicIP":"198.18.0.9","#, ""),
    ("address_missing", r#""198.18.0.9""#, "null"),
    ("address_malformed", "198.18.0.9", "198.18.0"),
    ("address_malformed", "198.18.0.9", "198.18.0.9/32"),
    ("address_malformed", "198.18.0.9", " 198.18.0.9"),
    ("address_malformed", "198.18.0.9", "::ffff:198.18.0.9"),
    ("address_malformed", "198.18.0.9", "2001:db8::9"),
    ("address_malformed", r#""198.18.0.9""#, "9"),
    ("address_not_unicast", "198.18.0.9", "0.0.0.0"),
    ("address_not_unicast", "198.18.0.9", "127.0.0.1"),
    ("address_not_unicast", "198.18.0.9", "169.254.0.9"),
    ("address_not_unicast", "198.18.0.9", "224.0.0.1"),
    ("address_not_unicast", "198.18.0.9", "240.0.0.9"),
    ("address_not_unicast", "198.18.0.9", "255.255.255.255"),
    ("address_in_network", "198.18.0.9", "198.19.9.9"),
    ("own_address", "198.18.0.9", "198.18.0.2"),
    ("backend_unknown", r#""vxlan""#, r#""vxlam""#),
    ("backend_unknown", r#""vxlan""#, "7"),
    ("backend_unknown", r#""vxlan""#, r#""VXLAN""#),
    ("backend_other", r#""vxlan""#, r#""host-gw""#),
    ("backend_other", r#""BackendType":"vxlan","#, ""),
    ("data_missing", r#","BackendData":{"VNI":1,"VtepMAC":"5a:65:bd:bd:44:09"}"#, ""),
    ("data_missing", r#"{"VNI":1,"VtepMAC":"5a:65:bd:bd:44:09"}"#, "null"),
    ("data_malformed", r#"{"VNI":1,"VtepMAC":"5a:65:bd:bd:44:09"}"#, r#""gue""#),
    ("data_malformed", r#""VNI":1"#, r#""VNI":"1""#),
    ("data_malformed", r#""VNI":1"#, r#""VNI":-1"#),
    ("data_malformed", r#""VNI":1"#, r#""VNI":1.5"#),
    ("data_malformed", r#""VNI":1"#, r#""VNI":18446744073709551617"#),
    ("data_malformed", r#""VNI":1"#, r#""VNI":1,"vni":2"#),
    ("other_vni", r#""VNI":1"#, r#""VNI":2"#),
    ("other_vni", r#""VNI":1"#, r#""VNI":0"#),
    ("mac_malformed", r#","VtepMAC":"5a:65:bd:bd:44:09""#, ""),
    ("mac_malformed", "5a:65:bd:bd:44:09", "5a:65:bd:bd:44"),
    ("mac_malformed", "5a:65:bd:bd:44:09", "5a-65-bd-bd-44-09"),
    ("mac_malformed", r#""5a:65:bd:bd:44:09""#, "9"),
    ("mac_not_unicast", "5a:65:bd:bd:44:09", "01:00:5e:00:00:09"),
    ("mac_not_unicast", "5a:65:bd:bd:44:09", "33:33:00:00:00:09"),
    ("mac_not_unicast", "5a:65:bd:bd:44:09", "ff:ff:ff:ff:ff:ff"),
    ("mac_not_unicast", "5a:65:bd:bd:44:09", "00:00:00:00:00:00"),
    ("offer_malformed", "}}", r#","segue":7}}"#),
    ("offer_malformed", "}}", r#","segue":{"v":0,"encap":"gue","port":6080}}}"#),
    ("offer_malformed", "}}", r#","segue":{"v":1,"encap":"gue"}}}"#),
    ("offer_malformed", "}}", r#","segue":{"v":1,"encap":"gue","port":0}}}"#),
    ("offer_malformed", "}}", r#","segue":{"v":1,"encap":"gue","port":70000}}}"#),
    ("offer_malformed", "}}", r#","segue":{"v":1,"encap":"gue","port":6080,"remcsum":"yes"}}}"#),
];

/// Returns all wrong leases by their reasons, as keys and values, for the host 198.18.0.2 with the given subnet and MAC
/// address.
pub(crate) fn leases(subnet: &str, mac: &str) -> BTreeMap<&'static str, Vec<(String, String)>> {
    let mut all: BTreeMap<&str, Vec<(String, String)>> = BTreeMap::new();
    for (reason, key) in KEYS {
        all.entry(reason).or_default().push((format!("{SUBNETS}{key}"), GOOD.to_owned()));
    }
    let long = format!("{SUBNETS}/{}", "a".repeat(4000));
    all.entry("key_malformed").or_default().push((long, GOOD.to_owned()));
    // Subnets that no host gets while there is the wide lease.
    let mut third = 20..;
    let mut good_key = || format!("{SUBNETS}/198.19.{}.0-24", third.next().unwrap());
    for (reason, what, by) in VALUES {
        let value = GOOD.replacen(what, by, 1);
        assert_ne!(value, GOOD, "{what}");
        all.entry(reason).or_default().push((good_key(), value));
    }
    let deep = "[".repeat(2000);
    let long = GOOD.replace("null", &format!("\"{}\"", "a".repeat(4096)));
    let same = GOOD.replace("5a:65:bd:bd:44:09", mac);
    for (reason, value) in [("value_malformed", deep), ("value_too_long", long), ("own_mac", same)] {
        all.entry(reason).or_default().push((good_key(), value));
    }
    let base = subnet.strip_suffix(".0/24").expect("a subnet of 256 addresses");
    for part in [".0-25", ".128-25", ".77-32"] {
        all.entry("own_subnet").or_default().push((format!("{SUBNETS}/{base}{part}"), GOOD.to_owned()));
    }
    all
}
