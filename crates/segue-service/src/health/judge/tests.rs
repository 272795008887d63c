use std::collections::HashMap;
use std::time::Duration;

use super::super::evidence::PathState;
use super::super::flow::Counts;
use super::*;

const REMOTE: &str = "198.18.0.2";
const LOCAL: &str = "198.18.0.1";

fn monitored() -> Monitored {
    Monitored {
        name: "sg0".into(),
        index: 9,
        kind: "ipip in GUE".into(),
        local: LOCAL.parse().unwrap(),
        remotes: vec![REMOTE.parse().unwrap()],
        remote_name: "198.18.0.2:6080".to_owned(),
        zone: None,
        ports: Some((6080, 6080)),
        mtu: 1464,
        overhead: 36,
        underlay: "e0".into(),
        link: None,
        path_mtu: 1500,
        sends_trains: true,
        joins: true,
        takes_trains: true,
    }
}

/// Returns a view in which everything is in order.
fn view() -> View {
    let link = LinkView {
        name: "e0".into(),
        is_up: true,
        has_carrier: true,
        mtu: 1500,
        tx: Some(true),
        tso: Some(true),
        gso: Some(true),
        gro: Some(true),
        had_tso: true,
        had_gro: true,
        is_gone: false,
    };
    let inside = LinkView { name: "sg0".into(), mtu: 1464, ..link.clone() };
    let path = PathState { link: 2, gateway: None, mtu: None, has_failed: false };
    View {
        paths: [(REMOTE.parse().unwrap(), (Some(path), true))].into(),
        links: [(2, link), (9, inside)].into(),
        loops: HashMap::new(),
        locals: [(LOCAL.parse().unwrap(), Local { link: 2, len: 24, zone: None, is_here: true })].into(),
    }
}

fn judged(change: impl FnOnce(&mut View)) -> Vec<(String, String)> {
    let mut evidence = Evidence { view: view(), ..Evidence::default() };
    change(&mut evidence.view);
    let found = judge(&monitored(), &Flow::default(), &evidence, Instant::now());
    found.into_iter().map(|complaint| (complaint.code, complaint.fix.unwrap())).collect()
}

fn local(view: &mut View) -> &mut Local {
    view.locals.get_mut(&LOCAL.parse().unwrap()).unwrap()
}

fn path(view: &mut View) -> &mut (Option<PathState>, bool) {
    view.paths.get_mut(&REMOTE.parse().unwrap()).unwrap()
}

#[test]
fn each_fault_of_the_underlay_has_its_code_and_the_command_that_mends_it() {
    let one = |code: &str, fix: &str| vec![(code.to_owned(), fix.to_owned())];
    assert_eq!(judged(|_| ()), []);
    let down = |view: &mut View| {
        view.links.get_mut(&2).unwrap().is_up = false;
        path(view).1 = false;
    };
    assert_eq!(judged(down), one("link_down", "sudo ip link set dev e0 up"));
    let inside = |view: &mut View| view.links.get_mut(&9).unwrap().is_up = false;
    assert_eq!(judged(inside), one("interface_down", "sudo ip link set dev sg0 up"));
    let renamed = |view: &mut View| {
        let link = view.links.get_mut(&9).unwrap();
        (link.is_up, link.name) = (false, "vpn0".to_owned());
    };
    assert_eq!(judged(renamed), one("interface_down", "sudo ip link set dev vpn0 up"));
    let gone = |view: &mut View| local(view).is_here = false;
    assert_eq!(judged(gone), one("address_gone", "sudo ip addr add 198.18.0.1/24 dev e0"));
    let routed = |view: &mut View| {
        *path(view) = (Some(PathState { gateway: "198.18.0.9".parse().ok(), ..path(view).0.unwrap() }), false);
    };
    assert_eq!(judged(routed), one("no_route", "sudo ip route add 198.18.0.2 via 198.18.0.9 dev e0"));
    let failed = |view: &mut View| path(view).0.as_mut().unwrap().has_failed = true;
    assert_eq!(judged(failed)[0].0, "neighbour_gone");
    let narrow = |view: &mut View| view.links.get_mut(&2).unwrap().mtu = 1400;
    assert_eq!(judged(narrow), one("mtu", "sudo ip link set dev sg0 mtu 1364"));
    let tx = |view: &mut View| view.links.get_mut(&2).unwrap().tx = Some(false);
    assert_eq!(judged(tx), one("underlay_tx_off", "sudo ethtool -K e0 tx on"));
    let tso = |view: &mut View| {
        let link = view.links.get_mut(&9).unwrap();
        (link.tso, link.gso) = (Some(false), Some(false));
    };
    assert_eq!(judged(tso), one("offload_off", "sudo ethtool -K sg0 tso on gso on"));
}

#[test]
fn a_route_into_the_tunnel_itself_is_named_with_the_way_of_before() {
    let looped = |view: &mut View| {
        view.loops.insert(REMOTE.parse().unwrap(), 9);
    };
    let routed = |view: &mut View| {
        looped(view);
        path(view).0 = Some(PathState { gateway: "198.18.0.9".parse().ok(), ..path(view).0.unwrap() });
        view.links.get_mut(&2).unwrap().name = "wan0".to_owned();
    };
    let by_ipv6 = |view: &mut View| {
        looped(view);
        path(view).0 = Some(PathState { gateway: "fe80::9".parse().ok(), ..path(view).0.unwrap() });
    };
    let from_the_start = |view: &mut View| {
        looped(view);
        path(view).0 = None;
    };
    let one = |fix: &str| vec![("route_loop".to_owned(), format!("sudo ip route replace 198.18.0.2 {fix}"))];
    assert_eq!(judged(looped), one("dev e0"));
    assert_eq!(judged(routed), one("via 198.18.0.9 dev wan0"));
    assert_eq!(judged(by_ipv6), one("via inet6 fe80::9 dev e0"));
    assert_eq!(judged(from_the_start), one("via ROUTER dev e0"));
    let (mut evidence, now) = (Evidence { view: view(), ..Evidence::default() }, Instant::now());
    looped(&mut evidence.view);
    let mut flow = Flow::default();
    (flow.probe, flow.last_reply) = (Some(Verdict::Answers), Some(now));
    assert_eq!(judge(&monitored(), &flow, &evidence, now), [], "a rule for its port leads its datagrams out");
}

#[test]
fn what_is_named_of_a_link_is_its_present_name_and_of_an_address_the_link_that_had_it() {
    let renamed = |view: &mut View| view.links.get_mut(&2).unwrap().name = "wan0".to_owned();
    let gone = |view: &mut View| {
        renamed(view);
        view.links.insert(3, LinkView { name: "dummy0".to_owned(), ..view.links[&2].clone() });
        *local(view) = Local { link: 3, is_here: false, ..*local(view) };
    };
    let one = |code: &str, fix: &str| vec![(code.to_owned(), fix.to_owned())];
    assert_eq!(judged(gone), one("address_gone", "sudo ip addr add 198.18.0.1/24 dev dummy0"));
    let mut evidence = Evidence { view: view(), ..Evidence::default() };
    renamed(&mut evidence.view);
    let (remote, now) = (REMOTE.parse().unwrap(), Instant::now());
    let refused = Refused { kind: Refusal::Unreachable, from: LOCAL.parse().ok(), at: now };
    evidence.refused.insert(remote, refused);
    for (zone, on) in [(None, ""), (Some(2), " dev wan0")] {
        let monitored = Monitored { zone, ..monitored() };
        let found = judge(&monitored, &Flow::default(), &evidence, now).remove(0);
        assert_eq!(found.what, "198.18.0.2 does not answer on wan0");
        assert_eq!(found.fix.unwrap(), format!("ip neigh show dev wan0; ip route get 198.18.0.2{on}"));
    }
}

#[test]
fn packets_that_this_host_itself_refuses_are_named_until_one_leaves_or_long_after_the_last() {
    let (begin, mut evidence) = (Instant::now(), Evidence { view: view(), ..Evidence::default() });
    let mut codes = |left: u64, denied: u64, seconds: u64| {
        let now = begin + Duration::from_secs(seconds);
        evidence.outgoing.update(left, denied, now);
        let found = judge(&monitored(), &Flow::default(), &evidence, now);
        found.into_iter().map(|found| (found.code, found.fix.unwrap())).collect::<Vec<_>>()
    };
    let filtered = vec![("filtered".to_owned(), "sudo nft list ruleset; ip rule".to_owned())];
    assert_eq!(codes(0, 1, 0), [], "one may be a stray");
    assert_eq!(codes(0, 2, 1), filtered);
    assert_eq!(codes(0, 2, 60), filtered);
    assert_eq!(codes(0, 2, 61), [], "nothing was refused for a minute");
    assert_eq!(codes(0, 3, 62), [], "a streak begins anew");
    assert_eq!(codes(0, 4, 63), filtered);
    assert_eq!(codes(1, 9, 64), [], "one has left");
    assert_eq!(codes(1, 11, 65), filtered);
}

#[test]
fn a_tunnel_with_a_peer_table_has_the_problems_of_its_interface_its_link_and_its_address() {
    let table = Monitored { remotes: Vec::new(), link: Some(2), ..monitored() };
    let judged = |change: fn(&mut View)| {
        let mut evidence = Evidence { view: View { paths: HashMap::new(), ..view() }, ..Evidence::default() };
        change(&mut evidence.view);
        let found = judge(&table, &Flow::default(), &evidence, Instant::now());
        found.into_iter().map(|found| (found.code, found.what, found.why.unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(judged(|_| ()), []);
    let is_one = |found: &[(String, String, String)], words: [&str; 3]| match found {
        [(code, what, why)] => code == words[0] && what.contains(words[1]) && why.contains(words[2]),
        _ => false,
    };
    let found = judged(|view| view.links.get_mut(&9).unwrap().is_up = false);
    assert!(is_one(&found, ["interface_down", "sg0", "own interface"]), "{found:?}");
    let found = judged(|view| view.links.get_mut(&2).unwrap().is_up = false);
    assert!(is_one(&found, ["link_down", "e0", "it has the local address"]), "{found:?}");
    let found = judged(|view| view.links.get_mut(&2).unwrap().is_gone = true);
    assert!(is_one(&found, ["link_gone", "e0", "it had the local address"]), "{found:?}");
    let found = judged(|view| view.links.get_mut(&2).unwrap().has_carrier = false);
    assert!(is_one(&found, ["no_carrier", "e0", "cable"]), "{found:?}");
    let found = judged(|view| local(view).is_here = false);
    assert!(is_one(&found, ["address_gone", LOCAL, "listens on it"]), "{found:?}");
    // The address is now that of a link that was made anew.
    let anew = |view: &mut View| {
        view.links.insert(12, view.links[&2].clone());
        view.links.insert(2, LinkView { is_gone: true, ..view.links[&2].clone() });
        local(view).link = 12;
    };
    assert_eq!(judged(anew), []);
}

#[test]
fn an_offload_of_the_underlay_that_is_off_is_named_where_the_form_and_its_path_use_it() {
    let gue = monitored();
    let zero = Monitored { sends_trains: false, ..monitored() };
    let bare = Monitored { kind: "gre".into(), ports: None, sends_trains: false, ..monitored() };
    let judged = |monitored: &Monitored, by_kernel: bool, change: fn(&mut LinkView)| {
        let by_kernel = ByKernel { sends: by_kernel, receives: by_kernel };
        let mut evidence = Evidence { view: view(), by_kernel, ..Evidence::default() };
        change(evidence.view.links.get_mut(&2).unwrap());
        let found = judge(monitored, &Flow::default(), &evidence, Instant::now());
        found.into_iter().map(|found| (found.code, found.fix.unwrap_or_default())).collect::<Vec<_>>()
    };
    let one = |word: &str| vec![(format!("underlay_{word}_off"), format!("sudo ethtool -K e0 {word} on"))];
    let tx = |link: &mut LinkView| (link.tx, link.tso) = (Some(false), Some(false));
    let tso = |link: &mut LinkView| link.tso = Some(false);
    let gro = |link: &mut LinkView| link.gro = Some(false);
    for form in [&gue, &zero, &bare] {
        assert_eq!(judged(form, true, tx), one("tx"), "{}", form.kind);
        assert_eq!(judged(form, true, tso), one("tso"), "{}", form.kind);
        // The daemon cuts trains itself.
        assert_eq!(judged(form, false, tso), [], "{}", form.kind);
    }
    assert_eq!(judged(&gue, false, tx), one("tx"));
    for form in [&zero, &bare] {
        assert_eq!(judged(form, false, tx), [], "no checksum of {} is left to the link", form.kind);
    }
    assert_eq!([&gue, &zero].map(|form| judged(form, false, gro)), [one("gro"), one("gro")]);
    assert_eq!(judged(&bare, true, gro), one("gro"));
    assert_eq!(judged(&bare, false, gro), []);
    // A link that never had one is no slower than before, and one whose `tx` is fixed has `None`.
    let never = |link: &mut LinkView| {
        let plain = LinkView { had_tso: false, had_gro: false, ..link.clone() };
        *link = LinkView { tx: None, tso: Some(false), gro: Some(false), ..plain };
    };
    for (form, by_kernel) in [(&gue, false), (&zero, false), (&bare, true)] {
        assert_eq!(judged(form, by_kernel, never), [], "{}", form.kind);
    }
}

#[test]
fn a_refusal_counts_until_packets_have_left_for_a_while_without_another() {
    let begin = Instant::now();
    let mut evidence = Evidence { view: view(), ..Evidence::default() };
    let remote = REMOTE.parse().unwrap();
    evidence.refused.insert(remote, Refused { kind: Refusal::Port, from: Some(remote), at: begin });
    let mut flow = Flow::default();
    let mut codes = |sent: u64, seconds: u64| {
        let now = begin + Duration::from_secs(seconds);
        flow.update(Counts { sent, ..Counts::default() }, now);
        judge(&monitored(), &flow, &evidence, now).into_iter().map(|found| found.what).collect::<Vec<_>>()
    };
    assert_eq!(codes(1, 0), ["198.18.0.2 refuses UDP 6080"]);
    assert_eq!(codes(2, 1), ["198.18.0.2 refuses UDP 6080"]);
    assert_eq!(codes(3, 40), ["198.18.0.2 refuses UDP 6080"], "it may have left right after the look before");
    assert_eq!(codes(3, 60), ["198.18.0.2 refuses UDP 6080"], "nothing was sent since");
    assert_eq!(codes(4, 61), ["unanswered 61 s"]);
    let mut flow = Flow::default();
    flow.update(Counts { sent: 1, ..Counts::default() }, begin);
    assert_eq!(judge(&monitored(), &flow, &evidence, begin).len(), 1);
    flow.last_reply = Some(begin + Duration::from_millis(1));
    assert_eq!(judge(&monitored(), &flow, &evidence, begin + Duration::from_millis(2)), []);
}

#[test]
fn everything_dropped_names_the_reason_its_sentence_and_the_words_to_compare() {
    let evidence = Evidence { view: view(), ..Evidence::default() };
    let (now, mut flow) = (Instant::now(), Flow::default());
    flow.update(Counts { refused: 3, why: Some("gre_mismatch"), ..Counts::default() }, now);
    let found = judge(&monitored(), &flow, &evidence, now);
    assert_eq!(found[0].what, "everything from 198.18.0.2 is dropped: gre mismatch");
    let why = found[0].why.as_deref().unwrap();
    assert!(why.contains("or the key is another.") && why.contains("`key`"), "{why}");
    assert!(!found[0].notice);
}

#[test]
fn probes_without_an_answer_are_a_problem_unless_something_explains_them_and_answers_end_a_notice() {
    let (begin, mut flow) = (Instant::now(), Flow::default());
    for second in 0..12 {
        flow.update(Counts { sent: second + 1, ..Counts::default() }, begin + Duration::from_secs(second));
    }
    let mut evidence = Evidence { view: view(), ..Evidence::default() };
    let now = begin + Duration::from_secs(11);
    let codes = |flow: &Flow, evidence: &Evidence| {
        judge(&monitored(), flow, evidence, now).into_iter().map(|found| found.code).collect::<Vec<_>>()
    };
    assert_eq!(codes(&flow, &evidence), ["unanswered"]);
    flow.probe = Some(Verdict::Answers);
    assert_eq!(codes(&flow, &evidence), [""; 0], "the other end is there");
    flow.probe = Some(Verdict::Silent {
        span: Duration::from_secs(3),
        has_replied: true,
        quiet: Duration::from_secs(1),
        sends_requests: false,
    });
    assert_eq!(codes(&flow, &evidence), ["probe_unanswered"]);
    evidence.view.links.get_mut(&9).unwrap().tso = Some(false);
    assert_eq!(codes(&flow, &evidence), ["probe_unanswered", "offload_off"], "that does not explain it");
    evidence.view.links.get_mut(&2).unwrap().is_up = false;
    assert_eq!(codes(&flow, &evidence), ["link_down", "offload_off"]);
}

#[test]
fn packets_from_before_the_silence_are_no_sign_of_life_although_their_count_was_read_later() {
    let (begin, mut flow) = (Instant::now(), Flow::default());
    let mut why = |received: u64, ms: u64| {
        let now = begin + Duration::from_millis(ms);
        flow.update(Counts { received, ..Counts::default() }, now);
        let (span, quiet) = (Duration::from_millis(2400), Duration::from_millis(1150));
        flow.probe = Some(Verdict::Silent { span, has_replied: true, quiet, sends_requests: false });
        judge(&monitored(), &flow, &Evidence { view: view(), ..Evidence::default() }, now).remove(0).why.unwrap()
    };
    why(1, 0);
    // The last one may have arrived at any time since the first update.
    why(2, 1300);
    assert!(why(2, 2400).contains("silently drops packets"));
    assert!(why(3, 2900).contains("packets from it arrive"), "after 2.4 s");
}

#[test]
fn silence_is_a_notice_and_only_where_nothing_else_explains_it() {
    let (begin, mut flow) = (Instant::now(), Flow::default());
    for second in 0..12 {
        flow.update(Counts { sent: second + 1, ..Counts::default() }, begin + Duration::from_secs(second));
    }
    let mut evidence = Evidence { view: view(), ..Evidence::default() };
    let now = begin + Duration::from_secs(11);
    let found = judge(&monitored(), &flow, &evidence, now);
    assert_eq!((found.len(), found[0].what.as_str(), found[0].notice), (1, "unanswered 11 s", true));
    evidence.view.links.get_mut(&2).unwrap().is_up = false;
    let found = judge(&monitored(), &flow, &evidence, now);
    assert_eq!((found.len(), found[0].code.as_str()), (1, "link_down"));
}
