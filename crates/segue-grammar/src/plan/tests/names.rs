//! Tests of remotes that are host names.

use std::net::IpAddr;

use segue_control::error::{Error, Kind};
use segue_host::names::Answer;

use crate::parse::{host_at, parse};
use crate::plan::plan_with;
use crate::tunnel::KEYWORDS;

fn addresses(all: &[&str]) -> Answer {
    Ok(all.iter().map(|address| address.parse().unwrap()).collect())
}

fn remote(line: &str, answer: &Answer) -> Result<IpAddr, Error> {
    let tokens: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let resolver = |host: &str| {
        assert_eq!(host, "peer");
        answer.clone()
    };
    plan_with(&parse("segue tunnel", KEYWORDS, &tokens)?, (None, None), &[], &resolver).map(|plan| plan.remote)
}

#[test]
fn a_name_has_its_lowest_address_of_the_family_of_local_or_else_of_the_first() {
    let both = addresses(&["2001:db8::3", "198.18.0.3", "2001:db8::2", "198.18.0.2"]);
    for (local, wanted) in
        [("", "2001:db8::2"), ("local 198.18.0.1", "198.18.0.2"), ("local 2001:db8::1", "2001:db8::2")]
    {
        let found = remote(&format!("dev a {local} remote peer encap gue"), &both).unwrap();
        assert_eq!(found, wanted.parse::<IpAddr>().unwrap(), "{local}");
    }
}

#[test]
fn a_name_without_an_address_of_the_family_of_local_is_told_from_one_without_any() {
    let wrong = |local: &str, answer: &Answer| {
        let error = remote(&format!("dev a local {local} remote peer encap gue"), answer).unwrap_err();
        assert_eq!((error.kind, error.place.as_ref().map(|place| place.at)), (Kind::Unreachable, Some(5)));
        (error.message, error.why.unwrap(), error.hint)
    };
    for (local, other, wanted, has) in
        [("198.18.0.1", "2001:db8::2", "IPv4", "IPv6"), ("2001:db8::1", "198.18.0.2", "IPv6", "IPv4")]
    {
        let (message, why, hint) = wrong(local, &addresses(&[other]));
        assert_eq!(message, format!("`peer` has no {wanted} address, and `local {local}` is one"));
        assert!(why.contains(&format!("the name has {has} addresses alone")), "{why}");
        assert!(hint.contains(&format!("`local` with an {has} address")), "{hint}");
    }
    for (answer, reason) in [(Err("refused".to_owned()), "refused"), (addresses(&[]), "the resolver knows none")] {
        let (message, why, hint) = wrong("198.18.0.1", &answer);
        assert_eq!((message.as_str(), why.as_str()), ("cannot find the address of `peer`", reason));
        assert_eq!(hint, "getent ahosts peer");
    }
}

#[test]
fn the_name_of_a_remote_is_found_among_the_words_of_a_tunnel() {
    for (line, at) in [
        ("dev a remote peer encap gue", Some(3)),
        ("--trace x.pcap encap gue remote peer dev a", Some(5)),
        ("dev remote remote peer", Some(3)),
        ("dev remote remote remote encap gue", Some(3)),
        ("remote peer dev remote encap gue", Some(1)),
        ("dev a remote 198.18.0.2", None),
        ("dev a remote fe80::1%eth0", None),
        ("dev a peers none local ::1", None),
        ("dev remote", None),
        ("remote", None),
    ] {
        let tokens: Vec<&str> = line.split(' ').collect();
        assert_eq!(host_at(KEYWORDS, &tokens), at, "{line}");
    }
}
