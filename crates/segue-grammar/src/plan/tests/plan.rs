use std::net::IpAddr;

use segue::wire::address::is_endpoint;
use segue_control::error::Error;
use segue_control::peers::Encap as PeerEncap;
use segue_service::tunnel::plan::*;

use crate::parse::parse;
use crate::plan::plan;
use crate::tunnel::KEYWORDS;

fn made(line: &str) -> Result<Plan, Error> {
    let tokens: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    plan(&parse("segue tunnel", KEYWORDS, &tokens)?, (None, None), &[])
}

fn ok(line: &str) -> Plan {
    made(line).unwrap_or_else(|error| panic!("{line}: {}", error.message))
}

fn mtu_cost(line: &str) -> u32 {
    ok(line).overhead().iter().map(|part| part.bytes).sum()
}

#[test]
fn defaults_are_the_documented_ones() {
    let plan = ok("dev sg0 remote 198.18.0.2 encap gue");
    assert_eq!((plan.mode, plan.dport, plan.port, plan.sport), (Mode::Gre, 6080, 6080, Choice::Auto));
    assert_eq!((plan.encap_csum, plan.encap_remcsum, plan.pmtudisc), (true, false, true));
    assert_eq!((plan.ttl, plan.tos, plan.mtu), (Choice::Inherit, Choice::Fixed(0), Choice::Auto));
    assert_eq!((plan.gro, plan.gso, plan.profile, plan.workers), (true, true, Profile::Strict, 1));
    assert_eq!(plan.gre, Some(Gre::default()));
    assert!(plan.notes().is_empty());
}

#[test]
fn the_time_to_live_is_iproute2s_in_every_mode() {
    const VXLAN: &str = "dev a remote 198.18.0.2 mode vxlan id 1";
    for (line, ttl) in [
        ("dev a remote 198.18.0.2 mode ipip", Choice::Inherit),
        ("dev a remote 198.18.0.2 mode ipip ttl 0", Choice::Inherit),
        ("dev a remote 198.18.0.2 mode ipip ttl auto", Choice::Inherit),
        ("dev a remote 198.18.0.2 mode ipip ttl 9", Choice::Fixed(9)),
        ("dev a remote ::1 mode ip6tnl encaplimit none", Choice::Fixed(64)),
        ("dev a remote ::1 mode ip6gre hoplimit auto", Choice::Fixed(64)),
        ("dev a remote ::1 mode ip6gre hoplimit inherit", Choice::Inherit),
        ("dev a remote ::1 mode ip6gre hoplimit 0", Choice::Inherit),
        (VXLAN, Choice::Fixed(64)),
        (&format!("{VXLAN} ttl 0"), Choice::Fixed(64)),
        (&format!("{VXLAN} ttl auto"), Choice::Fixed(64)),
        (&format!("{VXLAN} ttl inherit"), Choice::Inherit),
    ] {
        assert_eq!(ok(line).ttl, ttl, "{line}");
    }
}

#[test]
fn a_mode_is_called_by_the_word_that_was_given_for_its_family() {
    for word in ["ip6gre", "ip6gretap", "ipip6", "ip6ip6", "ip6tnl"] {
        let plan = ok(&format!("dev a remote ::1 mode {word}"));
        assert_eq!(plan.mode.name_to(plan.remote), word);
    }
}

#[test]
fn vxlan_and_geneve_start_as_in_linux() {
    let vxlan = ok("dev sg0 remote 198.18.0.2 mode vxlan id 42");
    assert_eq!((vxlan.encap, vxlan.dport, vxlan.port, vxlan.ttl), (Encap::None, 8472, 8472, Choice::Fixed(64)));
    assert!(vxlan.encap_csum && vxlan.overlay.learning && !vxlan.overlay.remcsumrx);
    assert_eq!((vxlan.overlay.id, vxlan.overlay.ageing, vxlan.overlay.df), (Some(42), 300, Df::Unset));
    assert!(vxlan.notes()[0].contains("dstport 4789"));
    let geneve = ok("dev sg0 remote 198.18.0.2 mode geneve vni 42 noudpcsum");
    assert_eq!((geneve.dport, geneve.encap_csum), (6081, false));
    let over6 = ok("dev sg0 remote ::1 mode vxlan id 1 dstport 4789 udp6zerocsumtx udp6zerocsumrx");
    assert_eq!((over6.dport, over6.encap_csum, over6.overlay.udp6zerocsumrx), (4789, false, true));
}

#[test]
fn headers_add_up_as_linux_counts_them() {
    let base = "dev sg0 remote 198.18.0.2";
    assert_eq!(mtu_cost(&format!("{base} mode ipip encap gue encap-remcsum")), 40);
    assert_eq!(mtu_cost(&format!("{base} mode ipip encap fou encap-dport 5555")), 28);
    assert_eq!(mtu_cost(&format!("{base} mode gre key 1 encap gue encap-remcsum")), 48);
    assert_eq!(mtu_cost(&format!("{base} mode gre key 1 csum seq encap gue")), 48);
    assert_eq!(mtu_cost(&format!("{base} mode gre ikey 1 icsum iseq encap gue")), 36);
    assert_eq!(mtu_cost("dev sg0 remote 2001:db8::2 mode sit encap gue"), 52);
    assert_eq!(mtu_cost(&format!("{base} mode ipip")), 20);
    assert_eq!(mtu_cost(&format!("{base} mode gretap key 1")), 42);
    assert_eq!(mtu_cost(&format!("{base} mode vxlan id 1")), 50);
    assert_eq!(mtu_cost("dev sg0 remote 2001:db8::2 mode geneve id 1"), 70);
}

#[test]
fn impossible_plans_are_usage_errors() {
    let base = "dev sg0 remote 198.18.0.2";
    let cases = [
        (format!("{base} encap gue noencap-csum encap-remcsum"), "`noencap-csum` does not go with `encap-remcsum`"),
        (format!("{base} encap none encap-dport 5"), "`encap-dport` does not go with `encap none`"),
        (format!("{base} encap none encap-remcsum"), "`encap-remcsum` does not go with `encap none`"),
        (format!("{base} mode vxlan"), "`mode vxlan` needs `id`"),
        (format!("{base} mode vxlan id 1 srcport 9 8"), "`srcport 9 8` is no range"),
        (format!("{base} mode vxlan id 1 srcport 8 9 encap-sport 7"), "`encap-sport` does not go with `srcport`"),
        (format!("{base} encap gue srcport 8 9"), "`srcport` does not go with `mode gre`"),
        (format!("{base} mode geneve id 1 encap gue"), "`encap gue` does not go with `mode geneve`"),
        (format!("{base} mode geneve id 1 remcsumtx"), "`remcsumtx` does not go with `mode geneve`"),
        (format!("{base} mode vxlan id 1 noudpcsum remcsumtx"), "`noudpcsum` does not go with `remcsumtx`"),
        (
            "dev sg0 remote ::1 mode vxlan id 1 udp6zerocsumtx remcsumtx".to_owned(),
            "`udp6zerocsumtx` does not go with `remcsumtx`",
        ),
        (format!("{base} mode vxlan id 1 fdb 02:00:00:00:00:01,::1"), "`::1` cannot be a remote beside 198.18.0.2"),
        (format!("{base} mode ip6gretap"), "`mode ip6gretap` needs an IPv6 remote"),
        (format!("{base} mode gretap id 1"), "`id` does not go with `mode gretap`"),
        (format!("{base} encap fou"), "`encap fou` needs `encap-dport`"),
        (format!("{base} encap fou encap-dport 5 encap-remcsum"), "`encap-remcsum` does not go with `encap fou`"),
        (format!("{base} encap gue mode ip6gre"), "`mode ip6gre` needs an IPv6 remote"),
        (format!("{base} encap gue mode sit addr 198.19.0.1/30"), "`mode sit` carries only IPv6"),
        (format!("{base} encap gue mode ipip addr 2001:db8::1/64"), "`mode ipip` carries only IPv4"),
        (
            format!("{base} encap gue local 2001:db8::1"),
            "`local 2001:db8::1` and `remote 198.18.0.2` are of two families",
        ),
        (format!("{base} encap gue local 198.18.0.2"), "`local` and `remote` are both 198.18.0.2"),
        (format!("{base} encap gue mtu 1200 addr 2001:db8::1/64"), "`mtu 1200` is too small for an IPv6 address"),
        (format!("{base} workers 2"), "`workers 2` cannot serve this tunnel"),
        (format!("{base} encap gue workers 2 encap-sport 5000"), "`workers 2` cannot serve this tunnel"),
        (format!("{base} encap gue mode gre seq workers 2"), "`workers 2` cannot serve this tunnel"),
        (format!("{base} encap gue mode gre iseq workers 2"), "`workers 2` cannot serve this tunnel"),
        (
            format!("{base} mode vxlan id 5 fdb 02:00:00:00:00:01,198.18.0.3 workers 2"),
            "`workers 2` cannot serve this tunnel",
        ),
        (
            format!("{base} mode vxlan id 5 srcport 5000 5002 workers 4"),
            "`workers 4` needs as many source ports, and `srcport` has 3",
        ),
        ("dev sg0 remote 224.0.0.1 encap gue".to_owned(), "`224.0.0.1` cannot be the other end of a tunnel"),
    ];
    for (line, message) in cases {
        let error = made(&line).expect_err(&line);
        assert_eq!((error.message.as_str(), error.kind.exit_code()), (message, 2), "{line}");
        assert!(!error.hint.is_empty());
    }
}

#[test]
fn remote_local_and_fdb_take_the_ends_of_tunnels() {
    for text in [
        "0.0.0.1",
        "127.0.0.1",
        "198.18.0.9",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::1",
        "::ffff:198.18.0.9",
        "2001:db8::9",
        "ff02::1",
    ] {
        let address: IpAddr = text.parse().unwrap();
        let other = if address.is_ipv4() { "198.18.0.2" } else { "2001:db8::2" };
        for (line, message) in [
            (format!("dev a remote {text} encap gue"), format!("`{address}` cannot be the other end of a tunnel")),
            (
                format!("dev a remote {other} local {text} encap gue"),
                format!("`{address}` cannot be the address of one host"),
            ),
            (
                format!("dev a remote {other} mode vxlan id 1 fdb 02:00:00:00:00:01,{text}"),
                format!("`{address}` cannot be a remote beside {other}"),
            ),
        ] {
            let error = made(&line).err().map(|error| error.message);
            assert_eq!(error, (!is_endpoint(address)).then_some(message), "{line}");
        }
    }
    for zero in ["0.0.0.0", "::"] {
        let other = if zero == "::" { "2001:db8::2" } else { "198.18.0.2" };
        assert!(made(&format!("dev a remote {zero} encap gue")).is_err());
        let local = ok(&format!("dev a remote {other} local {zero} encap gue")).local;
        assert_eq!(local, None, "the route decides");
    }
}

#[test]
fn an_interface_has_no_name_of_an_outside_port_of_its_tunnel() {
    for (dev, words) in [
        ("udp", "remote 198.18.0.2 encap gue"),
        ("udp", "remote 198.18.0.2 mode vxlan id 1"),
        ("udp", "remote 198.18.0.2 mode geneve id 1 dev vhost:/run/udp.sock"),
        ("raw", "remote 198.18.0.2"),
        ("gue", "peers none local 198.18.0.1"),
        ("vxlan", "peers none local 198.18.0.1 listen gue,vxlan"),
    ] {
        let line = if words.contains("dev ") { words.to_owned() } else { format!("dev {dev} {words}") };
        let error = made(&line).expect_err(&line);
        let message = format!("`{dev}` is the name of another port of this tunnel");
        assert_eq!((error.message, error.kind.exit_code()), (message, 2), "{line}");
        let place = error.place.expect("a place");
        assert_eq!(place.words[place.at - 1], "dev", "{line}");
    }
    // A name of a port of other tunnels.
    for line in [
        "dev raw remote 198.18.0.2 encap gue",
        "dev udp remote 198.18.0.2",
        "dev vxlan remote 198.18.0.2 mode vxlan id 1",
        "dev gue remote 198.18.0.2 encap gue",
        "dev vxlan peers none local 198.18.0.1",
        "dev udp peers none local 198.18.0.1",
    ] {
        let plan = ok(line);
        assert!(!plan.outside_names().contains(&plan.dev.as_str()), "{line}");
    }
}

#[test]
fn one_direction_overrides_nothing_of_the_other() {
    let gre = ok("dev a remote ::1 encap gue okey 7 icsum oseq").gre.unwrap();
    assert_eq!(gre, Gre { okey: Some(7), icsum: true, oseq: true, ..Gre::default() });
    let both = ok("dev a remote ::1 encap gue key 9 csum seq").gre.unwrap();
    assert_eq!(both, Gre { ikey: Some(9), okey: Some(9), icsum: true, ocsum: true, iseq: true, oseq: true });
}

#[test]
fn every_word_of_the_table_is_a_key_of_the_plans_json() {
    let plain = serde_json::to_value(ok("dev a remote ::1 encap gue")).unwrap();
    let table = serde_json::to_value(ok("dev a peers none local ::1 listen vxlan,gue")).unwrap();
    for word in KEYWORDS {
        let key = word.name.replace('-', "_");
        let json = match word.name {
            "peers" => &table,
            "listen" | "lladdr" => &table["peers"],
            _ => &plain,
        };
        let direction = matches!(key.as_str(), "key" | "csum" | "seq" | "ikey" | "okey")
            || key.ends_with("seq")
            || matches!(key.as_str(), "icsum" | "ocsum");
        let found = json.get(&key).is_some() || (direction && json.get("gre").is_some());
        assert!(found, "{key} is not in {json}");
    }
}

#[test]
fn a_tunnel_with_a_peer_table_has_an_address_listeners_and_no_remote() {
    let table = ok("dev a peers none local 198.18.0.1 listen gue:7000,vxlan id 9 encap-remcsum").table.unwrap();
    assert_eq!((table.file, table.listen), (None, vec![(PeerEncap::Vxlan, 8472), (PeerEncap::Gue, 7000)]));
    // The same after a restart, another one for another interface.
    let mac = |dev: &str| ok(&format!("dev {dev} peers none local 198.18.0.1 listen vxlan")).table.unwrap().lladdr;
    assert_eq!(mac("a"), table.lladdr);
    assert!(mac("a") != mac("b") && mac("a").is_station() && mac("a").0[0] == 2);
    let file = ok("dev a peers p.json local ::1").table.unwrap();
    assert_eq!((file.file, file.listen), (Some("p.json".into()), vec![(PeerEncap::Gue, 6080)]));
    // A table of prefixes, or one of Ethernet addresses, whose MTU is by the longest of the headers.
    for (words, mode, bytes) in [
        ("listen vxlan,gue", Mode::Ip6tnl, 50),
        ("mode eth listen vxlan", Mode::Eth, 50),
        ("mode eth listen vxlan,gue", Mode::Eth, 50),
        ("mode eth listen gue", Mode::Eth, 46),
        ("mode eth listen vxlan,gue encap-remcsum", Mode::Eth, 54),
    ] {
        let plan = ok(&format!("dev a peers none local 198.18.0.1 {words}"));
        let sum: u32 = plan.overhead().iter().map(|part| part.bytes).sum();
        assert_eq!((plan.mode, sum), (mode, bytes), "{words}");
    }
    // The peers' default, and no option of the sockets.
    let bare = ok("dev a peers none local ::1 noencap-csum encap-remcsum");
    assert_eq!((bare.encap_csum, bare.table.map(|table| table.outer_checksum)), (true, Some(false)));
    for (line, message) in [
        ("dev a peers none", "`peers` needs `local`"),
        ("dev a peers none local 0.0.0.0", "`peers` needs `local`"),
        ("dev a peers none local ::1 remote ::2", "`remote` does not go with `peers`"),
        ("dev a peers none local ::1 mode gre", "`mode gre` does not go with `peers`"),
        ("dev a mode eth remote ::1", "`mode eth` needs `peers`"),
        ("dev a mode eth peers none local ::1 listen vxlan,fou", "`listen fou` does not go with `mode eth`"),
        (
            "dev a mode eth peers none local ::1 listen vxlan lladdr 02:00:00:00:00:01",
            "`lladdr` does not go with `mode eth`",
        ),
        ("dev a peers none local ::1 id 7", "`id` does not go with this `listen`"),
        ("dev a peers none local ::1 listen fou encap-remcsum", "`encap-remcsum` does not go with this `listen`"),
        ("dev a peers none local ::1 listen gue,gue:1", "`gue,gue:1` is not a value of `listen`"),
        ("dev a peers none local ::1 listen gue:1,fou:1", "`gue:1,fou:1` is not a value of `listen`"),
        (
            "dev a peers none local ::1 listen vxlan lladdr 01:00:00:00:00:00",
            "`01:00:00:00:00:00` cannot be the address of one end",
        ),
        ("dev a remote ::1 listen gue", "`listen` needs `peers`"),
        ("dev a local ::1", "`remote` is missing"),
    ] {
        assert_eq!(made(line).unwrap_err().message, message, "{line}");
    }
}
