//! Tests of changes of a table, without a worker.

use segue_control::peers::Table as Document;
use segue_datapath::overlay::exchange;
use segue_host::netlink::Link;

use super::*;
use crate::tunnel::kinds::{Choice, Df, Encap, Fastpath, Mode, Overlay, PeerTable, Profile};
use crate::tunnel::plan::Plan;
use crate::tunnel::resolve::ready;

fn keeper() -> Keeper {
    let table = PeerTable {
        file: None,
        listen: vec![(peers::Encap::Vxlan, 8472), (peers::Encap::Gue, 6080)],
        lladdr: "02:00:00:00:00:01".parse().unwrap(),
        outer_checksum: true,
    };
    let plan = Plan {
        dev: "sg0".to_owned(),
        guest: None,
        mode: Mode::Ip6tnl,
        zone: None,
        remote: "0.0.0.0".parse().unwrap(),
        local: Some("198.18.0.1".parse().unwrap()),
        table: Some(table.clone()),
        encap: Encap::Gue,
        dport: 8472,
        sport: Choice::Auto,
        srcport: None,
        port: 8472,
        encap_csum: true,
        encap_remcsum: true,
        addr: Vec::new(),
        mtu: Choice::Auto,
        ttl: Choice::Inherit,
        encaplimit: "none",
        tos: Choice::Fixed(0),
        pmtudisc: true,
        gre: None,
        overlay: Overlay {
            id: Some(7),
            udp6zerocsumtx: false,
            udp6zerocsumrx: false,
            remcsumtx: false,
            remcsumrx: false,
            learning: true,
            ageing: 300,
            maxaddress: 4096,
            fdb: Vec::new(),
            df: Df::Unset,
        },
        gro: true,
        gso: true,
        profile: Profile::Strict,
        fastpath: Fastpath::Auto,
        workers: 1,
        probe: 0,
        trace: None,
        trace_size: None,
        set: Vec::new(),
    };
    let link = Link { index: 2, name: "eth0".into(), mtu: 1500, ethernet: true, ..Link::default() };
    let ready = ready(plan, "198.18.0.1".parse().unwrap(), &link, None).unwrap();
    assert_eq!(ready.mtu, 1450, "the longest of the encapsulations counts");
    let rules = Rules::new(&ready, &table, &[16, 16], [0; 16]);
    Keeper::new(rules, exchange().0, hash::Key([1, 2]), None).unwrap().0
}

fn document(text: &str) -> Document {
    Document::read(text.as_bytes(), "test").unwrap()
}

fn sync(keeper: &Keeper, text: &str) -> Result<Changes, Error> {
    keeper.change(Change::Sync(document(text)))
}

const ONE: &str = r#"{"prefix":"198.19.2.0/24","remote":"198.18.0.2","encap":"gue"}"#;
const TWO: &str = r#"{"prefix":"198.19.3.0/24","remote":"198.18.0.3","encap":"vxlan","mac":"02:00:00:00:00:03"}"#;

#[test]
fn a_generation_only_grows_and_belongs_to_one_set_of_peers() {
    let keeper = keeper();
    let table = |generation: u64, peers: &str| format!(r#"{{"generation":{generation},"peers":[{peers}]}}"#);
    let done = sync(&keeper, &table(42, &format!("{ONE},{TWO}"))).unwrap();
    assert_eq!(done, Changes { generation: 42, added: 2, ..Changes::default() });
    let same = sync(&keeper, &table(42, &format!("{TWO},{ONE}"))).unwrap();
    assert_eq!(same, Changes { generation: 42, unchanged: 2, ..Changes::default() });
    for (generation, peers) in [(41, format!("{ONE},{TWO}")), (42, ONE.to_owned())] {
        let error = sync(&keeper, &table(generation, &peers)).unwrap_err();
        assert_eq!(error.kind, Kind::Conflict);
        assert!(error.message.starts_with(&format!("stale generation {generation}")), "{}", error.message);
    }
    assert_eq!(sync(&keeper, &table(50, ONE)).unwrap().removed, 1);
    // Without a number the table is the next one, if it differs.
    let next = sync(&keeper, &format!(r#"{{"peers":[{TWO}]}}"#)).unwrap();
    assert_eq!(next, Changes { generation: 51, added: 1, removed: 1, ..Changes::default() });
    assert_eq!(sync(&keeper, &format!(r#"{{"peers":[{TWO}]}}"#)).unwrap().generation, 51);
    let summary = keeper.summary();
    assert_eq!((summary.generation, summary.peers, summary.refused), (51, 1, 2));
}

#[test]
fn entries_are_changed_one_by_one_and_all_or_none_of_a_change() {
    let keeper = keeper();
    let [one, two] = [ONE, TWO].map(|text| document(&format!(r#"{{"peers":[{text}]}}"#)).peers.remove(0));
    keeper.change(Change::Add(vec![one.clone()])).unwrap();
    let twice = keeper.change(Change::Add(vec![two.clone(), one.clone()])).unwrap_err();
    assert_eq!(twice.message, "198.19.2.0/24 is in the table");
    assert_eq!(keeper.list().peers.len(), 1, "the new one is not there either");
    let other = Peer { remote: "198.18.0.9".parse().unwrap(), ..one.clone() };
    let done = keeper.change(Change::Replace(vec![other, two])).unwrap();
    assert_eq!(done, Changes { generation: 2, added: 1, replaced: 1, ..Changes::default() });
    let key = |text: &str| Key::Prefix(text.parse().unwrap());
    let missing = keeper.change(Change::Del(vec![key("198.19.2.0/24"), key("198.19.2.0/25")])).unwrap_err();
    assert_eq!((missing.kind, missing.message.as_str()), (Kind::NotFound, "198.19.2.0/25 is not in the table"));
    assert_eq!(keeper.change(Change::Del(vec![key("198.19.2.0/24")])).unwrap().removed, 1);
    let listed = keeper.list();
    assert_eq!(listed.peers[0].peer.vni, Some(7), "what was left out has the tunnel's value");
    assert_eq!(listed.peers[0].peer.port, Some(8472));
}

#[test]
fn a_wrong_entry_is_refused_by_its_number_and_the_rule_and_costs_no_other() {
    let keeper = keeper();
    for (entry, rule) in [
        (r#"{"remote":"198.18.0.2","encap":"gue"}"#, "`prefix` is missing"),
        (r#"{"match":"02:00:00:00:00:09","remote":"198.18.0.2"}"#, "no peers by `match`"),
        (r#"{"prefix":"198.19.9.1/24","remote":"198.18.0.2","encap":"gue"}"#, "it would be 198.19.9.0/24"),
        (r#"{"prefix":"224.0.0.0/24","remote":"198.18.0.2","encap":"gue"}"#, "multicast or loopback"),
        (r#"{"prefix":"127.0.0.0/8","remote":"198.18.0.2","encap":"gue"}"#, "multicast or loopback"),
        (r#"{"prefix":"198.19.9.0/24","remote":"0.0.0.0","encap":"gue"}"#, "not the address of one host"),
        (r#"{"prefix":"198.19.9.0/24","remote":"239.0.0.1","encap":"gue"}"#, "not the address of one host"),
        (r#"{"prefix":"198.19.9.0/24","remote":"255.255.255.255","encap":"gue"}"#, "not the address of one host"),
        (r#"{"prefix":"198.19.9.0/24","remote":"198.18.0.1","encap":"gue"}"#, "this end of the tunnel"),
        (r#"{"prefix":"198.19.9.0/24","remote":"2001:db8::1","encap":"gue"}"#, "not of the family"),
        (r#"{"prefix":"198.19.9.0/24","remote":"198.18.0.2"}"#, "`encap` is missing: the tunnel has vxlan, gue"),
        (r#"{"prefix":"198.19.9.0/24","remote":"198.18.0.2","encap":"fou"}"#, "none of the tunnel's `listen`"),
        (r#"{"prefix":"198.19.9.0/24","remote":"198.18.0.2","encap":"gue","port":0}"#, "`port` is 0"),
        (r#"{"prefix":"198.19.9.0/24","remote":"198.18.0.2","encap":"gue","vni":1}"#, "do not go with `encap` gue"),
        (r#"{"prefix":"198.19.9.0/24","remote":"198.18.0.2","encap":"vxlan"}"#, "`mac` is missing"),
        (
            r#"{"prefix":"198.19.9.0/24","remote":"198.18.0.2","encap":"vxlan","mac":"01:00:00:00:00:01"}"#,
            "not the address of one station",
        ),
        (
            r#"{"prefix":"198.19.9.0/24","remote":"198.18.0.2","encap":"vxlan","mac":"02:00:00:00:00:01"}"#,
            "is this end of the tunnel",
        ),
        (
            r#"{"prefix":"198.19.9.0/24","remote":"198.18.0.2","encap":"vxlan","mac":"02:00:00:00:00:02","vni":16777216}"#,
            "more than 24 bits",
        ),
        (
            r#"{"prefix":"198.19.9.0/24","remote":"198.18.0.2","encap":"vxlan","mac":"02:00:00:00:00:02","remcsum":true}"#,
            "`remcsum` does not go with `encap` vxlan",
        ),
        (
            r#"{"prefix":"198.19.9.0/24","remote":"198.18.0.2","encap":"gue","outer_checksum":false,"remcsum":true}"#,
            "`outer_checksum` false does not go with `remcsum`",
        ),
        (ONE, "its prefix or `match` is given twice"),
    ] {
        let done = sync(&keeper, &format!(r#"{{"peers":[{ONE},{entry},{TWO}]}}"#)).unwrap();
        assert_eq!((done.refused, done.refused_peers[0].number), (1, 2), "{entry}");
        assert!(done.refused_peers[0].why.contains(rule), "{entry}: {:?}", done.refused_peers);
        let keys: Vec<String> = keeper.list().peers.iter().map(|listed| listed.peer.key()).collect();
        assert_eq!(keys, ["198.19.2.0/24", "198.19.3.0/24"], "{entry}: the others are in force");
        let (summary, complaint) = (keeper.summary(), keeper.complaint().unwrap());
        assert_eq!((summary.refused_peers, &summary.refused_named), (1, &done.refused_peers));
        assert!(complaint.why.unwrap().contains(rule));
        // Alone it is refused with the rule, and nothing changes.
        if entry != ONE {
            let peer = document(&format!(r#"{{"peers":[{entry}]}}"#)).peers.remove(0);
            let error = keeper.change(Change::Replace(vec![peer])).unwrap_err();
            assert_eq!(error.kind, Kind::BadValue, "{entry}");
            assert!(error.message.starts_with("peer 1 ("), "{entry}: {}", error.message);
            assert!(error.why.as_ref().is_some_and(|why| why.contains(rule)), "{entry}: {:?}", error.why);
        }
    }
    // A good one in the place of a refused one ends the complaint, and so does a table without any.
    let bad = TWO.replace("198.18.0.3", "198.18.0.1");
    sync(&keeper, &format!(r#"{{"peers":[7,{ONE},{bad}]}}"#)).unwrap();
    let named: Vec<u64> = keeper.summary().refused_named.iter().map(|refused| refused.number).collect();
    assert_eq!((named, keeper.list().peers.len()), (vec![1, 3], 1));
    let two = document(&format!(r#"{{"peers":[{TWO}]}}"#)).peers;
    keeper.change(Change::Replace(two)).unwrap();
    assert_eq!((keeper.summary().refused_peers, keeper.list().peers.len()), (1, 2));
    sync(&keeper, &format!(r#"{{"peers":[{ONE},{TWO}]}}"#)).unwrap();
    assert_eq!((keeper.summary().refused_peers, keeper.complaint()), (0, None));
}

#[test]
fn a_peer_that_is_added_for_a_refused_one_ends_the_complaint_about_it() {
    let keeper = keeper();
    let bad = TWO.replace("198.18.0.3", "198.18.0.1");
    sync(&keeper, &format!(r#"{{"peers":[{ONE},{bad}]}}"#)).unwrap();
    let [wrong, two] = [bad.as_str(), TWO].map(|text| document(&format!(r#"{{"peers":[{text}]}}"#)).peers);
    keeper.change(Change::Add(wrong)).unwrap_err();
    assert_eq!(keeper.summary().refused_peers, 1);
    keeper.change(Change::Add(two)).unwrap();
    let summary = keeper.summary();
    assert_eq!((summary.refused_peers, summary.refused_named, keeper.complaint()), (0, Vec::new(), None));
}

#[test]
fn of_very_many_refused_peers_the_next_ones_are_named_when_the_first_are_replaced() {
    let keeper = keeper();
    let entry = |number: usize, remote: &str| {
        format!(r#"{{"prefix":"198.19.{number}.0/24","remote":"{remote}","encap":"gue"}}"#)
    };
    let count = MOST_NAMED + 5;
    let bad: Vec<String> = (0..count).map(|number| entry(number, "198.18.0.1")).collect();
    let done = sync(&keeper, &format!(r#"{{"peers":[{}]}}"#, bad.join(","))).unwrap();
    assert_eq!((done.refused, done.refused_peers.len()), (count as u64, MOST_NAMED));
    let replace = |numbers: std::ops::Range<usize>| {
        let good: Vec<String> = numbers.map(|number| entry(number, "198.18.0.2")).collect();
        keeper.change(Change::Replace(document(&format!(r#"{{"peers":[{}]}}"#, good.join(","))).peers)).unwrap();
    };
    replace(0..MOST_NAMED);
    let (summary, complaint) = (keeper.summary(), keeper.complaint().expect("five are refused"));
    let named: Vec<u64> = summary.refused_named.iter().map(|refused| refused.number).collect();
    assert_eq!((summary.refused_peers, named), (5, vec![101, 102, 103, 104, 105]));
    assert!(complaint.what.starts_with("5 peers") && complaint.why.unwrap().contains("198.19.100.0/24"));
    replace(MOST_NAMED..count);
    assert_eq!((keeper.summary().refused_peers, keeper.complaint()), (0, None));
}

#[test]
fn a_remote_is_the_end_of_a_tunnel_and_not_link_local() {
    let keeper = keeper();
    for text in [
        "0.0.0.1",
        "127.0.0.1",
        "198.18.0.9",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:198.18.0.9",
        "2001:db8::9",
        "fe80::9",
        "ff02::1",
    ] {
        let address: std::net::IpAddr = text.parse().unwrap();
        let entry = format!(r#"{{"prefix":"198.19.9.0/24","remote":"{text}","encap":"gue"}}"#);
        let done = sync(&keeper, &format!(r#"{{"peers":[{ONE},{entry}]}}"#)).unwrap();
        let why = done.refused_peers.first().map(|refused| refused.why.as_str());
        if !segue::wire::address::is_endpoint(address) || text == "fe80::9" {
            assert!(why.is_some_and(|why| why.contains("is not the address of one host")), "{text}: {why:?}");
        } else if address.is_ipv6() {
            assert!(why.is_some_and(|why| why.contains("is not of the family of `local`")), "{text}: {why:?}");
        } else {
            assert_eq!(why, None, "{text}");
        }
    }
}

#[test]
fn a_peer_without_outer_checksum_leaves_no_checksums_to_the_peer() {
    let keeper = keeper();
    let bare = &format!("{},\"outer_checksum\":false}}", &ONE[..ONE.len() - 1]);
    sync(&keeper, &format!(r#"{{"peers":[{bare},{TWO}]}}"#)).unwrap();
    let listed = keeper.list().peers;
    let flags: Vec<_> = listed.iter().map(|listed| (listed.peer.outer_checksum, listed.peer.remcsum)).collect();
    assert_eq!(flags, [(Some(false), Some(false)), (Some(true), Some(false))]);
    sync(&keeper, &format!(r#"{{"peers":[{ONE}]}}"#)).unwrap();
    let peer = &keeper.list().peers[0].peer;
    assert_eq!((peer.outer_checksum, peer.remcsum), (Some(true), Some(true)), "as the tunnel has it");
}

#[test]
fn a_successor_finds_the_table_that_was_written_last_and_no_half_of_one() {
    let kept = Kept::new().unwrap();
    assert_eq!(kept.read(), None);
    let table = document(&format!(r#"{{"generation":9,"peers":[{ONE},{TWO}]}}"#));
    kept.write(&table);
    let other = Kept::of(kept.try_clone().unwrap()).unwrap();
    assert_eq!(other.read(), Some(table.clone()));
    // A shorter one, whose text ends before that of the longer one.
    let shorter = Document { generation: Some(10), peers: table.peers[..1].to_vec(), ..Document::default() };
    kept.write(&shorter);
    assert_eq!(other.read(), Some(shorter));
}

/// Returns a table whose text has the same length for each number of three digits.
fn numbered(number: u64) -> Document {
    let remote = std::net::Ipv4Addr::new(198, 18, 100 + (number % 100) as u8, 9);
    let peer = |third: u8| {
        let prefix = format!("198.19.{third}.0/24").parse().unwrap();
        Peer { encap: Some(peers::Encap::Gue), ..Peer::new(prefix, remote.into()) }
    };
    Document { generation: Some(number), peers: (1..=100).map(peer).collect(), ..Document::default() }
}

#[test]
fn a_table_that_is_replaced_while_it_is_read_is_no_mixture_of_two() {
    let kept = Kept::new().unwrap();
    let other = Kept::of(kept.try_clone().unwrap()).unwrap();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    kept.write(&numbered(999));
    let found: Vec<Document> = std::thread::scope(|scope| {
        scope.spawn(|| {
            let numbers = (100..1000).cycle().take_while(|_| !is_done.load(std::sync::atomic::Ordering::Relaxed));
            numbers.for_each(|number| kept.write(&numbered(number)));
        });
        // The writer may need some time to begin.
        while other.read().is_none_or(|table| table.generation == Some(999)) {}
        let found = (0..5000).filter_map(|_| other.read()).collect();
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        found
    });
    for table in found.into_iter().chain(other.read()) {
        let whole = numbered(table.generation.unwrap());
        assert!(table == whole, "{table:?}");
    }
    assert!(other.read().is_some());
}

#[test]
fn what_is_remembered_of_removed_peers_is_bounded() {
    let keeper = keeper();
    for round in 0..3u64 {
        let entries = (0..MOST_REMOVED as u32).map(|number| {
            let remote = std::net::Ipv4Addr::from_bits(0xc612_0000 + 1000 + number + (round as u32 * 8192));
            let prefix = std::net::Ipv4Addr::from_bits(0xc613_0000 + number + (round as u32 * 8192));
            let text = format!("{prefix}/32");
            Peer { encap: Some(peers::Encap::Gue), ..Peer::new(text.parse().unwrap(), remote.into()) }
        });
        let table = Document { generation: Some(round + 1), peers: entries.collect(), ..Document::default() };
        keeper.change(Change::Sync(table)).unwrap();
    }
    let state = keeper.state();
    assert_eq!((state.prefixes.len(), state.remotes.len()), (MOST_REMOVED, MOST_REMOVED));
}

/// Tests that the address rules of crates without the engine are equal to the engine's.
#[test]
fn the_engine_and_the_host_have_the_same_rules_for_addresses() {
    for number in (0..=u32::MAX).step_by(65_521) {
        let address = std::net::Ipv4Addr::from(number);
        assert_eq!(segue_host::address::is_host_v4(address), segue::wire::address::is_host_v4(address), "{address}");
    }
    for first in 0..=255 {
        for mac in [[first, 0, 0, 0, 0, 0], [first, 0, 0, 0, 0, 1], [first; 6]] {
            assert_eq!(peers::Mac(mac).is_station(), segue::wire::ethernet::is_station(mac), "{mac:x?}");
        }
    }
}
