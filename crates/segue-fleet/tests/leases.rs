//! Tests of entries of the registry: those that flannel writes are read, each hostile entry is refused under its
//! reason, and none of them displaces another peer.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use segue_fleet::config::Config;
use segue_fleet::datapath::{difference, peer};
use segue_fleet::grace::Grace;
use segue_fleet::lease::{self, Offer};
use segue_fleet::network::Network;
use segue_fleet::refusal::Refusal;
use segue_fleet::roster::{Judged, Policy, Record, Roster};

const DIRECTORY: &str = "/coreos.com/network/subnets";
const VALUE: &str = r#"{"PublicIP":"198.18.0.2","PublicIPv6":null,"BackendType":"vxlan","BackendData":{"VNI":1,"VtepMAC":"5a:65:bd:bd:44:bb"}}"#;
const OFFER: Offer = Offer { gue_port: 6080, remcsum: true };

fn config() -> Config {
    Config::parse(br#"{"Network":"198.19.0.0/16","SubnetLen":24,"Backend":{"Type":"vxlan","VNI":1}}"#).unwrap()
}

fn roster(limit: usize) -> Roster {
    Roster::new(Policy {
        config: config(),
        directory: DIRECTORY.to_owned(),
        address: [198, 18, 0, 1].into(),
        local: Some([198, 18, 0, 101].into()),
        subnet: Network::parse("198.19.1.0/24").unwrap(),
        mac: Some("5a:65:bd:bd:44:aa".parse().unwrap()),
        limit,
    })
}

fn record(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>, created: i64) -> Record {
    Record { key: key.into(), value: value.into(), created, modified: created, lease: 7 }
}

fn at(name: &str) -> String {
    format!("{DIRECTORY}/{name}")
}

/// Returns a lease of the host 198.18.0.N for the subnet 198.19.N.0/24.
fn good(n: u8) -> Record {
    let value = VALUE.replace("198.18.0.2", &format!("198.18.0.{n}"));
    record(at(&format!("198.19.{n}.0-24")), value, i64::from(n))
}

fn data(data: &str) -> String {
    format!(r#"{{"PublicIP":"198.18.0.2","PublicIPv6":null,"BackendType":"vxlan","BackendData":{data}}}"#)
}

fn address(address: &str) -> String {
    VALUE.replace(r#""198.18.0.2""#, address)
}

fn segue(offer: &str) -> String {
    data(&format!(r#"{{"VNI":1,"VtepMAC":"5a:65:bd:bd:44:bb","segue":{offer}}}"#))
}

/// Returns hostile entries: key, value, and the reason of the refusal.
fn hostile() -> Vec<(Vec<u8>, Vec<u8>, Refusal)> {
    use Refusal::*;
    let keys: &[(&[u8], Refusal)] = &[
        (b"", KeyOutside),
        (b"-anything", KeyOutside),
        (b"X/198.19.60.0-24", KeyOutside),
        (b"/", KeyMalformed),
        (b"//198.19.60.0-24", KeyMalformed),
        (b"/198.19.60.0-24/", KeyMalformed),
        (b"/198.19.60.0", KeyMalformed),
        (b"/198.19.60.0-", KeyMalformed),
        (b"/198.19.60.0-33", KeyMalformed),
        (b"/198.19.60.0-024", KeyMalformed),
        (b"/198.19.60.0-+24", KeyMalformed),
        (b"/198.19.060.0-24", KeyMalformed),
        (b"/198.19.60-24", KeyMalformed),
        (b"/198.19.60.256-24", KeyMalformed),
        (b"/2001:db8:1::-64", KeyMalformed),
        (b"/198.19.60.0-24&", KeyMalformed),
        (b"/198.19.60.0-24&2001:db8:1::-129", KeyMalformed),
        (b"/\xff\xfe-24", KeyMalformed),
        (b"/198.19.60.0-24\n", KeyMalformed),
        (b"/198.19.60.0-24\0", KeyMalformed),
        (b"/ 198.19.60.0-24", KeyMalformed),
        (b"/198.19.60.0-2 4", KeyMalformed),
        (b"/198.19.60.0--24", KeyMalformed),
        (b"/198.19.60.0-24-24", KeyMalformed),
        (b"/198.19.60.0-0x18", KeyMalformed),
        (b"/198.19.60.0-18446744073709551640", KeyMalformed),
        (b"/0xc6.19.60.0-24", KeyMalformed),
        (b"/3323149312-24", KeyMalformed),
        (b"/::ffff:198.19.60.0-120", KeyMalformed),
        (b"/../subnets/198.19.60.0-24", KeyMalformed),
        (b"/198.19.60.0-24/198.19.61.0-24", KeyMalformed),
        ("/198.19.60.0-\u{662}\u{664}".as_bytes(), KeyMalformed),
        ("/198\u{3002}19\u{3002}60\u{3002}0-24".as_bytes(), KeyMalformed),
        ("/198.19.60.0\u{2013}24".as_bytes(), KeyMalformed),
        (b"/198.19.60.0-24&2001:db8:1::-64&", KeyMalformed),
        (b"/198.19.60.0-24&2001:db8:1::-064", KeyMalformed),
        (b"/198.19.60.0-24&fe80::%1-64", KeyMalformed),
        (b"/198.19.60.0-24&198.19.61.0-24", KeyMalformed),
        (b"/&2001:db8:1::-64", KeyMalformed),
        (b"/198.19.60.7-24", HostBits),
        (b"/198.19.60.0-1", HostBits),
        (b"/198.19.255.255-24", HostBits),
        (b"/198.19.60.0-24&2001:db8:1::1-64", HostBits),
        (b"/198.19.60.0-24&2001:db8:1::-0", HostBits),
        (b"/198.20.60.0-24", OutsideNetwork),
        (b"/198.18.0.0-24", OutsideNetwork),
        (b"/198.19.0.0-16", OutsideNetwork),
        (b"/0.0.0.0-0", OutsideNetwork),
        (b"/198.18.0.0-15", OutsideNetwork),
        (b"/128.0.0.0-1", OutsideNetwork),
        (b"/198.20.0.0-16", OutsideNetwork),
        (b"/127.0.0.0-8", OutsideNetwork),
        (b"/224.0.0.0-4", OutsideNetwork),
        (b"/255.255.255.255-32", OutsideNetwork),
        (b"/198.19.1.128-25", OwnSubnet),
        (b"/198.19.0.0-23", OwnSubnet),
        (b"/198.19.0.0-17", OwnSubnet),
        (b"/198.19.1.0-32", OwnSubnet),
        (b"/198.19.1.0-24&2001:db8:1::-64", OwnSubnet),
        (b"/198.19.2.255-32", Overlap),
        (b"/198.19.2.0-25", Overlap),
        (b"/198.19.2.0-23", Overlap),
    ];
    let values: Vec<(String, Refusal)> = vec![
        (String::new(), ValueMalformed),
        ("null".into(), ValueMalformed),
        ("[]".into(), ValueMalformed),
        ("{".into(), ValueMalformed),
        ("[".repeat(4000), ValueMalformed),
        (format!("{VALUE} {VALUE}"), ValueMalformed),
        (format!("{VALUE},"), ValueMalformed),
        (format!("[{VALUE}]"), ValueMalformed),
        (format!("\u{feff}{VALUE}"), ValueMalformed),
        ("true".into(), ValueMalformed),
        ("7".into(), ValueMalformed),
        (r#""198.18.0.2""#.into(), ValueMalformed),
        (VALUE.replace('"', "'"), ValueMalformed),
        (VALUE.replace("null", "NaN"), ValueMalformed),
        (VALUE.replace("null", r#""\ud800""#), ValueMalformed),
        (VALUE.replace("null", &format!("{}{}", "[".repeat(200), "]".repeat(200))), ValueMalformed),
        // Which of the two other programs take depends on their order.
        (VALUE.replacen('{', r#"{"publicip":"198.18.0.3","#, 1), ValueMalformed),
        (VALUE.replacen('{', r#"{"BACKENDTYPE":"udp","#, 1), ValueMalformed),
        (VALUE.replacen('{', r#"{"backenddata":{},"#, 1), ValueMalformed),
        (format!("{VALUE}{}", " ".repeat(4096)), ValueTooLong),
        ("{}".into(), AddressMissing),
        (address("null"), AddressMissing),
        (address("7"), AddressMalformed),
        (address(r#""""#), AddressMalformed),
        (address(r#""there""#), AddressMalformed),
        (address(r#""2001:db8::2""#), AddressMalformed),
        (address(r#""198.18.0.2/24""#), AddressMalformed),
        (address("true"), AddressMalformed),
        (address("3323068418"), AddressMalformed),
        (address(r#"["198.18.0.2"]"#), AddressMalformed),
        (address(r#"{"":"198.18.0.2"}"#), AddressMalformed),
        (address(r#"" 198.18.0.2""#), AddressMalformed),
        (address(r#""198.18.0.2\n""#), AddressMalformed),
        (address(r#""198.18.0.02""#), AddressMalformed),
        (address(r#""198.18.2""#), AddressMalformed),
        (address(r#""198.18.0.256""#), AddressMalformed),
        (address(r#""0xc6.18.0.2""#), AddressMalformed),
        (address(r#""198.18.0.2:8472""#), AddressMalformed),
        (address(r#""::ffff:198.18.0.2""#), AddressMalformed),
        (address("\"198.18.0.\u{662}\""), AddressMalformed),
        (address(r#""0.0.0.1""#), AddressNotUnicast),
        (address(r#""127.255.255.254""#), AddressNotUnicast),
        (address(r#""239.255.255.250""#), AddressNotUnicast),
        (address(r#""240.0.0.1""#), AddressNotUnicast),
        (address(r#""198.19.0.0""#), AddressInNetwork),
        (address(r#""198.19.255.255""#), AddressInNetwork),
        (address(r#""127.0.0.1""#), AddressNotUnicast),
        (address(r#""0.0.0.0""#), AddressNotUnicast),
        (address(r#""224.0.0.1""#), AddressNotUnicast),
        (address(r#""255.255.255.255""#), AddressNotUnicast),
        (address(r#""169.254.1.1""#), AddressNotUnicast),
        (address(r#""198.19.60.1""#), AddressInNetwork),
        (address(r#""198.18.0.1""#), OwnAddress),
        (address(r#""198.18.0.101""#), OwnAddress),
        (VALUE.replace("vxlan", "teleport"), BackendUnknown),
        (VALUE.replace(r#""vxlan""#, "7"), BackendUnknown),
        (VALUE.replace("vxlan", "VXLAN"), BackendUnknown),
        (VALUE.replace("vxlan", "vxlan "), BackendUnknown),
        (VALUE.replace(r#""vxlan""#, r#"["vxlan"]"#), BackendUnknown),
        (VALUE.replace("vxlan", ""), BackendOther),
        (VALUE.replace(r#""vxlan""#, "null"), BackendOther),
        (VALUE.replace("vxlan", "wireguard"), BackendOther),
        (r#"{"PublicIP":"198.18.0.2","PublicIPv6":null}"#.into(), BackendOther),
        (VALUE.split(r#","BackendData"#).next().unwrap().to_owned() + "}", DataMissing),
        (data("null"), DataMissing),
        (data(r#""a string""#), DataMalformed),
        (data(r#"{"VNI":"1","VtepMAC":"5a:65:bd:bd:44:bb"}"#), DataMalformed),
        (data(r#"{"VNI":-1,"VtepMAC":"5a:65:bd:bd:44:bb"}"#), DataMalformed),
        (data("[]"), DataMalformed),
        (data("true"), DataMalformed),
        (data(r#""{\"VNI\":1,\"VtepMAC\":\"5a:65:bd:bd:44:bb\"}""#), DataMalformed),
        (data(r#"{"VNI":true,"VtepMAC":"5a:65:bd:bd:44:bb"}"#), DataMalformed),
        (data(r#"{"VNI":[1],"VtepMAC":"5a:65:bd:bd:44:bb"}"#), DataMalformed),
        (data(r#"{"VNI":1.0,"VtepMAC":"5a:65:bd:bd:44:bb"}"#), DataMalformed),
        (data(r#"{"VNI":18446744073709551617,"VtepMAC":"5a:65:bd:bd:44:bb"}"#), DataMalformed),
        (data(r#"{"VNI":1,"vni":2,"VtepMAC":"5a:65:bd:bd:44:bb"}"#), DataMalformed),
        (data(r#"{"VNI":1,"VtepMAC":"5a:65:bd:bd:44:bb","vtepmac":"5a:65:bd:bd:44:cc"}"#), DataMalformed),
        (data(r#"{"VNI":0,"VtepMAC":"5a:65:bd:bd:44:bb"}"#), OtherVni),
        (data(r#"{"VNI":16777217,"VtepMAC":"5a:65:bd:bd:44:bb"}"#), OtherVni),
        (data(r#"{"VNI":2,"VtepMAC":"5a:65:bd:bd:44:bb"}"#), OtherVni),
        (data(r#"{"VNI":4294967297,"VtepMAC":"5a:65:bd:bd:44:bb"}"#), OtherVni),
        (data(r#"{"VNI":1}"#), MacMalformed),
        (data(r#"{"VNI":1,"VtepMAC":"5a:65:bd:bd:44"}"#), MacMalformed),
        (data(r#"{"VNI":1,"VtepMAC":"5a-65-bd-bd-44-bb"}"#), MacMalformed),
        (data("{}"), MacMalformed),
        (data(r#"{"VNI":1,"VtepMAC":null}"#), MacMalformed),
        (data(r#"{"VNI":1,"VtepMAC":7}"#), MacMalformed),
        (data(r#"{"VNI":1,"VtepMAC":""}"#), MacMalformed),
        (data(r#"{"VNI":1,"VtepMAC":"5a:65:bd:bd:44:b"}"#), MacMalformed),
        (data(r#"{"VNI":1,"VtepMAC":"5a:65:bd:bd:44:bb:00:11"}"#), MacMalformed),
        (data(r#"{"VNI":1,"VtepMAC":"5a65.bdbd.44bb"}"#), MacMalformed),
        (data(r#"{"VNI":1,"VtepMAC":"5g:65:bd:bd:44:bb"}"#), MacMalformed),
        (data(r#"{"VNI":1,"VtepMAC":"+a:65:bd:bd:44:bb"}"#), MacMalformed),
        (data(r#"{"VNI":1,"VtepMAC":" 5a:65:bd:bd:44:bb"}"#), MacMalformed),
        (data(r#"{"VNI":1,"VtepMAC":"33:33:00:00:00:01"}"#), MacNotUnicast),
        (data(r#"{"VNI":1,"VtepMAC":"5b:65:bd:bd:44:bb"}"#), MacNotUnicast),
        (data(r#"{"VNI":1,"VtepMAC":"5A:65:BD:BD:44:AA"}"#), OwnMac),
        (data(r#"{"VNI":1,"VtepMAC":"00:00:00:00:00:00"}"#), MacNotUnicast),
        (data(r#"{"VNI":1,"VtepMAC":"01:00:5e:00:00:01"}"#), MacNotUnicast),
        (data(r#"{"VNI":1,"VtepMAC":"ff:ff:ff:ff:ff:ff"}"#), MacNotUnicast),
        (data(r#"{"VNI":1,"VtepMAC":"5a:65:bd:bd:44:aa"}"#), OwnMac),
        (segue("7"), OfferMalformed),
        (segue(r#"{"v":1,"encap":"gue","port":0}"#), OfferMalformed),
        (segue(r#"{"v":1,"encap":"gue","port":65536}"#), OfferMalformed),
        (segue(r#"{"v":1,"encap":"gue","port":6080,"remcsum":2}"#), OfferMalformed),
        (segue(r#"{"v":1,"encap":"gue","port":6080,"remcsum":null}"#), OfferMalformed),
        (segue("null"), OfferMalformed),
        (segue("[]"), OfferMalformed),
        (segue("{}"), OfferMalformed),
        (segue(r#"{"v":1}"#), OfferMalformed),
        (segue(r#"{"v":1,"encap":"gue"}"#), OfferMalformed),
        (segue(r#"{"v":1,"encap":7,"port":6080}"#), OfferMalformed),
        (segue(r#"{"v":0,"encap":"gue","port":6080}"#), OfferMalformed),
        (segue(r#"{"v":-1,"encap":"gue","port":6080}"#), OfferMalformed),
        (segue(r#"{"v":"1","encap":"gue","port":6080}"#), OfferMalformed),
        (segue(r#"{"v":1,"encap":"gue","port":-1}"#), OfferMalformed),
        (segue(r#"{"v":1,"encap":"gue","port":"6080"}"#), OfferMalformed),
        (segue(r#"{"v":1,"encap":"gue","port":6080.5}"#), OfferMalformed),
    ];
    let key = |name: &[u8]| [DIRECTORY.as_bytes(), name].concat();
    let mut all: Vec<_> = keys.iter().map(|(name, why)| (key(name), VALUE.as_bytes().to_vec(), *why)).collect();
    all.push((at(&"9".repeat(100_000)).into_bytes(), VALUE.into(), KeyMalformed));
    all.push((key(b"/198.19.60.0-24"), [VALUE.as_bytes(), b"\xff"].concat(), ValueMalformed));
    all.extend(values.into_iter().map(|(value, why)| (key(b"/198.19.60.0-24"), value.into_bytes(), why)));
    all
}

#[test]
fn what_flannel_writes_is_read_and_written_byte_for_byte() {
    let record = record(at("198.19.59.0-24"), VALUE, 1);
    let read = lease::parse(&record.key, &record.value, DIRECTORY, &config()).unwrap();
    assert_eq!(lease::key_of(read.subnet, DIRECTORY).as_bytes(), record.key);
    assert_eq!(lease::value(read.address, config().backend, read.mac, read.offer), VALUE);
    let udp = Config::parse(br#"{"Network":"198.19.0.0/16"}"#).unwrap();
    let value = r#"{"PublicIP":"198.18.0.2","PublicIPv6":null}"#;
    let read = lease::parse(&record.key, value.as_bytes(), DIRECTORY, &udp).unwrap();
    assert_eq!(lease::value(read.address, udp.backend, read.mac, read.offer), value);
}

#[test]
fn leases_of_other_versions_are_read() {
    let key = at("198.19.59.0-24&2001:db8:1::-64");
    for value in [
        // Of a dual stack, of a version without VNI, and with keys that are not known.
        data(r#"{"VNI":1,"VtepMAC":"5a:65:bd:bd:44:bb"}"#).replace("null", r#""2001:db8::2""#),
        data(r#"{"VtepMAC":"5A:65:BD:BD:44:BB"}"#),
        data(r#"{"VNI":1,"VtepMAC":"5a:65:bd:bd:44:bb","Later":[1,2]}"#).replace("}}", r#"},"More":{}}"#),
        VALUE.replace("PublicIP\"", "publicip\""),
        // Of a dual stack without an address of IPv6, and an offer of a later version or of another format.
        data(r#"{"VNI":null,"VtepMAC":"5a:65:bd:bd:44:bb"}"#).replace(r#","PublicIPv6":null"#, ""),
        segue(r#"{"v":2,"encap":"gue","port":"new"}"#),
        segue(r#"{"v":2,"formats":[{"gue":6080}]}"#),
        segue(r#"{"v":1,"encap":"geneve"}"#),
    ] {
        let read = lease::parse(key.as_bytes(), value.as_bytes(), DIRECTORY, &config()).expect(&value);
        assert_eq!((read.subnet.to_string().as_str(), read.offer), ("198.19.59.0/24", None));
    }
}

#[test]
fn of_a_field_that_comes_twice_the_last_counts_as_in_flannel() {
    let key = at("198.19.59.0-24");
    let twice = VALUE.replacen('{', r#"{"PublicIP":"198.18.0.3","#, 1).replace(r#"{"VNI":1"#, r#"{"VNI":2,"VNI":1"#);
    let read = lease::parse(key.as_bytes(), twice.as_bytes(), DIRECTORY, &config());
    assert_eq!(read, lease::parse(key.as_bytes(), VALUE.as_bytes(), DIRECTORY, &config()));
    assert!(read.is_ok_and(|read| read.address.octets() == [198, 18, 0, 2]));
}

#[test]
fn an_offer_goes_through_the_lease_and_only_two_offers_make_gue() {
    let config = config();
    let mac = "5a:65:bd:bd:44:bb".parse().ok();
    for offer in [OFFER, Offer { gue_port: 1, remcsum: false }] {
        let value = lease::value([198, 18, 0, 2].into(), config.backend, mac, Some(offer));
        let read = lease::parse(at("198.19.59.0-24").as_bytes(), value.as_bytes(), DIRECTORY, &config).unwrap();
        assert_eq!(read.offer, Some(offer));
        let json = |ours| serde_json::to_string(&peer(&read, config.backend, ours)).unwrap();
        let Offer { gue_port, remcsum } = offer;
        let begin = format!(r#"{{"prefix":"198.19.59.0/24","remote":"198.18.0.2","encap":"gue","port":{gue_port}"#);
        assert_eq!(json(Some(OFFER)), format!(r#"{begin},"remcsum":{remcsum}}}"#));
        assert_eq!(json(Some(Offer { remcsum: false, ..OFFER })), format!(r#"{begin},"remcsum":false}}"#));
        assert!(json(None).contains(r#""encap":"vxlan","port":8472,"vni":1,"mac":"5a:65:bd:bd:44:bb""#));
    }
    let plain = lease::parse(at("198.19.59.0-24").as_bytes(), VALUE.as_bytes(), DIRECTORY, &config).unwrap();
    assert!(serde_json::to_string(&peer(&plain, config.backend, Some(OFFER))).unwrap().contains(r#""encap":"vxlan""#));
}

#[test]
fn each_hostile_entry_is_refused_under_its_reason_and_costs_no_peer() {
    let cases = hostile();
    assert!(cases.len() >= 50, "{}", cases.len());
    let peers: Vec<_> = [2, 3, 5].map(good).into();
    let mut alone = roster(10);
    peers.iter().for_each(|record| alone.put(record));
    let leases = alone.judged().leases;
    assert_eq!(leases.len(), 3);
    for (key, value, reason) in &cases {
        // The newest entry, and the oldest one.
        for created in [1000, 0] {
            let mut roster = roster(10);
            peers.iter().for_each(|record| roster.put(record));
            roster.put(&record(key.clone(), value.clone(), created));
            let Judged { leases: now, refused, .. } = roster.judged();
            let shown = String::from_utf8_lossy(&key[..key.len().min(60)]).into_owned();
            assert_eq!(refused.iter().map(|(_, why)| *why).collect::<Vec<_>>(), [*reason], "{shown}: {value:?}");
            assert!(refused[0].0.len() < 300 && !refused[0].0.contains(char::is_control), "{shown}");
            assert_eq!(now, leases, "{shown}");
            roster.remove(key);
            assert_eq!(roster.judged(), Judged { leases: leases.clone(), ..Judged::default() }, "{shown}");
        }
    }
    // All of them at once, in front of the good ones.
    let wrong = cases.iter().zip(1000..).map(|((key, value, _), n)| record(key.clone(), value.clone(), n));
    let all: Vec<Record> = wrong.chain(peers).collect();
    let mut roster = roster(100);
    all.iter().for_each(|record| roster.put(record));
    assert_eq!(roster.judged().leases, leases);
}

#[test]
fn an_entry_that_is_taken_keeps_every_rule_however_it_was_changed() {
    let (config, directory) = (config(), DIRECTORY);
    let usual = (at("198.19.59.0-24"), segue(r#"{"v":1,"encap":"gue","port":6080,"remcsum":true}"#));
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut taken = 0;
    for _ in 0..100_000 {
        let (mut key, mut value) = (usual.0.clone().into_bytes(), usual.1.clone().into_bytes());
        for _ in 0..=random(3) {
            let text = if random(4) == 0 { &mut key } else { &mut value };
            let place = random(text.len());
            let byte = text[place];
            match random(4) {
                0 => text[place] = random(256) as u8,
                1 => text[place] = b"0123456789\"{}[]:,.-&"[random(20)],
                2 => {
                    text.remove(place);
                }
                _ => text.insert(place, byte),
            }
        }
        let Ok(lease) = lease::parse(&key, &value, directory, &config) else { continue };
        taken += 1;
        let shown = format!("{} {}", String::from_utf8_lossy(&key), String::from_utf8_lossy(&value));
        let octets = lease.address.octets();
        assert!(!matches!(octets[0], 0 | 127 | 224..) && octets[..2] != [169, 254], "{shown}");
        assert!(!config.network.contains(lease.address), "{shown}");
        assert!(config.network.holds(lease.subnet) && lease.subnet != config.network, "{shown}");
        assert!(lease.mac.is_some_and(|mac| mac.0[0] & 1 == 0 && mac.0 != [0; 6]), "{shown}");
        assert!(lease.offer.is_none_or(|offer| offer.gue_port > 0), "{shown}");
        // Written by this host, it is the same lease.
        let again = lease::value(lease.address, config.backend, lease.mac, lease.offer);
        let key = lease::key_of(lease.subnet, directory);
        assert_eq!(lease::parse(key.as_bytes(), again.as_bytes(), directory, &config), Ok(lease), "{shown}");
    }
    assert!(taken > 1000, "{taken}");
}

#[test]
fn every_reason_has_a_hostile_entry() {
    // These are not about a single lease.
    for reason in Refusal::ALL.iter().filter(|reason| !matches!(reason, Refusal::TooMany | Refusal::Tunnel)) {
        assert!(hostile().iter().any(|(_, _, refusal)| refusal == reason), "{reason}");
    }
    let mut names: Vec<_> = Refusal::ALL.iter().map(|reason| reason.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Refusal::ALL.len());
}

#[test]
fn the_difference_of_two_tables_is_what_has_to_be_changed() {
    let table = |numbers: &[(u8, u8)]| -> Vec<_> {
        let config = config();
        let of = |(n, host): &(u8, u8)| {
            let value = VALUE.replace("198.18.0.2", &format!("198.18.0.{host}"));
            let key = at(&format!("198.19.{n}.0-24"));
            peer(&lease::parse(key.as_bytes(), value.as_bytes(), DIRECTORY, &config).unwrap(), config.backend, None)
        };
        numbers.iter().map(of).collect()
    };
    let (before, after) = (table(&[(2, 2), (3, 3), (4, 4)]), table(&[(2, 2), (4, 9), (5, 5)]));
    let (changed, gone) = difference(&before, &after);
    assert_eq!(changed, table(&[(4, 9), (5, 5)]));
    assert_eq!(gone.iter().map(ToString::to_string).collect::<Vec<_>>(), ["198.19.3.0/24"]);
    assert_eq!(difference(&after, &after), (Vec::new(), Vec::new()));
}

#[test]
fn the_older_of_two_that_overlap_counts_in_whatever_order_they_come() {
    let wide = record(at("198.19.8.0-22"), VALUE, 5);
    let narrow = record(at("198.19.9.0-24"), VALUE, 4);
    let one_more = record(at("198.19.10.0-24"), VALUE, 3);
    for order in [[&wide, &narrow, &one_more], [&one_more, &narrow, &wide], [&narrow, &wide, &one_more]] {
        let mut roster = roster(10);
        for record in order {
            roster.put(record);
        }
        let judged = roster.judged();
        let subnets: Vec<String> = judged.leases.iter().map(|lease| lease.subnet.to_string()).collect();
        assert_eq!(subnets, ["198.19.9.0/24", "198.19.10.0/24"]);
        assert_eq!(judged.refused, [(at("198.19.8.0-22"), Refusal::Overlap)]);
        // What was in its way ends.
        roster.remove(&narrow.key);
        roster.remove(&one_more.key);
        assert_eq!(roster.judged().leases[0].subnet.to_string(), "198.19.8.0/22");
    }
}

#[test]
fn a_lease_of_the_configured_length_goes_before_an_older_one_of_another() {
    let half = record(at("198.19.128.0-17"), VALUE, 1);
    let part = record(at("198.19.130.64-26"), VALUE, 2);
    for order in [[&half, &part, &good(130), &good(200)], [&good(200), &good(130), &part, &half]] {
        let mut roster = roster(10);
        for record in order {
            roster.put(record);
        }
        let judged = roster.judged();
        let subnets: Vec<String> = judged.leases.iter().map(|lease| lease.subnet.to_string()).collect();
        assert_eq!(subnets, ["198.19.130.0/24", "198.19.200.0/24"]);
        assert_eq!(
            judged.refused,
            [(at("198.19.128.0-17"), Refusal::Overlap), (at("198.19.130.64-26"), Refusal::Overlap)]
        );
    }
    // It takes no place from them either, where there are only as many as they need.
    let mut roster = roster(2);
    for record in [record(at("198.19.64.0-18"), VALUE, 1), good(130), good(200)] {
        roster.put(&record);
    }
    let judged = roster.judged();
    assert_eq!((judged.leases.len(), judged.refused), (2, vec![(at("198.19.64.0-18"), Refusal::TooMany)]));
}

#[test]
fn a_lease_with_an_ipv6_part_gives_way_to_a_younger_one_of_the_same_subnet_without() {
    let dual = record(at("198.19.9.0-24&2001:db8::-64"), address(r#""198.18.0.7""#), 1);
    for order in [[&dual, &good(9)], [&good(9), &dual]] {
        let mut roster = roster(10);
        for record in order {
            roster.put(record);
        }
        let hosts = |judged: &Judged| judged.leases.iter().map(|lease| lease.address.octets()[3]).collect::<Vec<u8>>();
        let judged = roster.judged();
        assert_eq!(hosts(&judged), [9]);
        assert_eq!(judged.refused, [(at("198.19.9.0-24&2001:db8::-64"), Refusal::Overlap)]);
        roster.remove(&good(9).key);
        assert_eq!(hosts(&roster.judged()), [7]);
    }
}

#[test]
fn leases_of_another_length_or_of_dual_stack_take_no_place_from_the_usual_ones() {
    let mut roster = roster(4);
    for n in 0..200 {
        roster.put(&record(at(&format!("198.19.64.{n}-32")), VALUE, 0));
        roster.put(&record(at(&format!("198.19.65.0-24&2001:db8:{n}::-64")), VALUE, 0));
    }
    for n in 2..5 {
        roster.put(&good(n));
    }
    let judged = roster.judged();
    let subnets: BTreeSet<u8> = judged.leases.iter().map(|lease| lease.subnet.first().octets()[2]).collect();
    assert_eq!(subnets, BTreeSet::from([2, 3, 4, 65]));
    assert_eq!(judged.left_out, 400 - 8);
}

#[test]
fn a_list_says_which_entries_are_gone() {
    let wrong = |n: u8| record(at(&format!("wrong-{n}{}", "x".repeat(200))), VALUE, 0);
    let listed = |limit: usize, records: &[Record]| {
        let mut listed = roster(limit);
        records.iter().for_each(|record| listed.put(record));
        listed
    };
    let mut known = roster(10);
    assert!(known.adopt(listed(10, &[good(2), good(3), wrong(1), wrong(2)])).is_empty());
    let gone = known.adopt(listed(10, &[good(3), good(4), wrong(2), wrong(3)]));
    assert_eq!((gone.len(), &gone[0]), (2, &good(2).key));
    let counts = |roster: &Roster| (roster.judged().leases.len(), roster.judged().refused.len());
    assert_eq!(counts(&known), (3, 3), "they stay until they are removed");
    let holds = |roster: &Roster, key: &[u8]| roster.stored(key).is_some();
    assert!(holds(&known, &good(2).key) && holds(&known, &wrong(1).key) && holds(&known, &gone[1]));
    gone.iter().for_each(|key| assert!(!known.remove(key)));
    assert_eq!(counts(&known), (2, 2));
    assert!(!holds(&known, &good(2).key) && !holds(&known, &wrong(1).key));
    // What is gone takes no place of what is listed.
    let mut small = listed(1, &[good(2), good(3), wrong(1)]);
    assert_eq!(small.adopt(listed(1, &[good(4), good(5), wrong(2)])).len(), 3);
    let judged = small.judged();
    assert_eq!((judged.leases[0].subnet.to_string(), judged.left_out), ("198.19.4.0/24".to_owned(), 0));
    assert!(holds(&small, &wrong(2).key) && !holds(&small, &wrong(1).key) && !holds(&small, &good(2).key));
}

/// Tests that what is gone in a grace time stays until its end, unless it comes again, and that no report of what was
/// never there is kept, however many there are.
#[test]
fn a_grace_time_keeps_no_more_keys_than_there_are_entries() {
    let mut roster = roster(10);
    let long = record(at(&"x".repeat(4000)), VALUE, 0);
    for record in [good(2), good(3), long.clone()] {
        roster.put(&record);
    }
    let now = Instant::now();
    let over = now + Duration::from_secs(30);
    let mut grace = Grace::default();
    assert!(!grace.remove(&mut roster, &good(3).key, now), "no grace time runs");
    assert_eq!((roster.judged().leases.len(), grace.kept()), (1, 0));
    grace.begin(over);
    for n in 0..100_000 {
        let unknown = at(&format!("{n}{}", "y".repeat(200)));
        assert!(!grace.remove(&mut roster, unknown.as_bytes(), now));
        assert!(!grace.remove(&mut roster, &good(2).key, now) && !grace.remove(&mut roster, &long.key, now));
    }
    assert_eq!(grace.kept(), 2);
    assert_eq!((roster.judged().leases.len(), roster.judged().refused.len()), (1, 1), "they stay");
    grace.put(&roster, &good(2).key);
    assert_eq!((grace.end(&mut roster, now), grace.kept()), (None, 1));
    assert_eq!((grace.end(&mut roster, over), grace.kept()), (Some(false), 0));
    assert_eq!((roster.judged().leases.len(), roster.judged().refused.len()), (1, 0));
    assert_eq!(grace.end(&mut roster, over), None, "once");
    // A new list says again what is gone.
    grace.begin(over);
    assert!(!grace.remove(&mut roster, &good(2).key, now));
    grace.listed();
    assert_eq!((grace.end(&mut roster, over), roster.judged().leases.len()), (Some(false), 1));
}

#[test]
fn the_limit_refuses_the_youngest_and_wrong_entries_take_no_places() {
    let mut roster = roster(3);
    for n in 0..200u16 {
        roster.put(&record(at(&format!("wrong-{n}")), VALUE, 0));
    }
    for n in 2..9 {
        roster.put(&good(n));
    }
    let judged = roster.judged();
    let subnets: Vec<u8> = judged.leases.iter().map(|lease| lease.subnet.first().octets()[2]).collect();
    assert_eq!(subnets, [2, 3, 4]);
    assert_eq!(judged.refused.iter().filter(|(_, why)| *why == Refusal::TooMany).count(), 3);
    assert_eq!(judged.left_out, 197 + 1);
    // Where one that counts is gone, only a new list can show what fits now.
    assert!(roster.remove(&good(2).key));
}

#[test]
fn of_more_leases_than_there_are_places_the_youngest_leave_in_whatever_order_they_come() {
    // A list comes in the order of the keys.
    let young = (2..8).map(|n| Record { created: 100 + i64::from(n), ..good(n) });
    let all: Vec<Record> = young.chain([Record { created: 1, ..good(9) }]).collect();
    for order in [all.iter().collect::<Vec<_>>(), all.iter().rev().collect()] {
        let mut roster = roster(3);
        for record in order {
            roster.put(record);
        }
        let judged = roster.judged();
        let subnets: Vec<u8> = judged.leases.iter().map(|lease| lease.subnet.first().octets()[2]).collect();
        assert_eq!((subnets, judged.left_out), (vec![2, 3, 9], 1));
        assert!(roster.stored(&good(7).key).is_none() && roster.stored(&good(6).key).is_some());
    }
}
