//! The judgement of one tunnel: its problems, the likeliest cause first, each with a command as remedy.

use std::net::IpAddr;
use std::time::Instant;

use segue_control::model::Complaint;

use super::evidence::{ByKernel, Evidence, LinkView, Monitored, Refusal, Refused};
use super::flow::Flow;
use super::probe::Verdict;
use crate::reasons;

/// Returns the problems of a tunnel.
pub(super) fn judge(monitored: &Monitored, flow: &Flow, evidence: &Evidence, now: Instant) -> Vec<Complaint> {
    let mut found = Vec::new();
    found.extend(interface(monitored, evidence));
    let problems = path_problems(monitored, evidence);
    let has_path = problems.is_empty();
    found.extend(problems);
    if has_path {
        found.extend(monitored.remotes.iter().filter_map(|remote| refusal(monitored, *remote, flow, evidence, now)));
    }
    found.extend(flow.refuses_everything(now).map(|why| refused_here(monitored, why)));
    if found.is_empty() {
        found.extend(silent(monitored, flow, now));
    }
    found.extend(mtu(monitored, evidence));
    found.extend(offloads(monitored, evidence));
    if found.is_empty() && flow.probe != Some(Verdict::Answers) {
        found.extend(unanswered(monitored, flow));
    }
    found
}

fn complaint(code: &str, what: String, why: String, fix: String) -> Complaint {
    Complaint { code: code.to_owned(), what, why: Some(why), fix: Some(fix), ..Complaint::default() }
}

/// Returns a problem where the tunnel's own interface is down.
fn interface(monitored: &Monitored, evidence: &Evidence) -> Option<Complaint> {
    let link = evidence.view.links.get(&monitored.index)?;
    let is_down = !link.is_up && !link.is_gone;
    is_down.then(|| {
        let name = &link.name;
        let was = if *name == monitored.name { String::new() } else { format!(", {} at the start,", monitored.name) };
        let why = format!("the tunnel's own interface{was} is down");
        complaint("interface_down", format!("{name} is down"), why, format!("sudo ip link set dev {name} up"))
    })
}

/// Returns the problems of the paths to the remotes: link, local address, route, neighbour.
fn path_problems(monitored: &Monitored, evidence: &Evidence) -> Vec<Complaint> {
    let view = &evidence.view;
    let of_table = view.owner(monitored).and_then(|index| view.links.get(&index));
    if let Some(link) = of_table {
        let role = |is_here: bool| format!("it {} the local address", if is_here { "has" } else { "had" });
        let trouble = link_trouble(link, role).or_else(|| address_trouble(monitored, &link.name, evidence));
        return trouble.into_iter().collect();
    }
    let mut found: Vec<Complaint> = Vec::new();
    for remote in &monitored.remotes {
        let Some((last, has_route)) = view.paths.get(remote) else { continue };
        let link = last.and_then(|path| view.links.get(&path.link));
        let trouble = link
            .and_then(|link| link_trouble(link, |is_here| carries(*remote, is_here)))
            .or_else(|| address_trouble(monitored, &monitored.underlay, evidence))
            .or_else(|| (!has_route).then(|| no_route(monitored, *remote, evidence)))
            .or_else(|| {
                let path = last.filter(|path| path.has_failed)?;
                let next = path.gateway.unwrap_or(*remote);
                let dev = link.map_or(monitored.underlay.as_str(), |link| link.name.as_str());
                let protocol = if next.is_ipv4() { "ARP" } else { "neighbour discovery" };
                Some(complaint(
                    "neighbour_gone",
                    format!("{next} does not answer on {dev}"),
                    format!("{protocol} gets no answer: that host is down, or not on this link"),
                    format!("ip neigh show dev {dev}; ping -I {dev} {next}"),
                ))
            });
        found.extend(trouble.filter(|new| !found.contains(new)));
    }
    found
}

/// Returns what a link does, or did while it was there, for packets to `remote`.
fn carries(remote: IpAddr, is_here: bool) -> String {
    format!("packets to {remote} {} by it", if is_here { "leave" } else { "left" })
}

/// Returns the problem of a link; `role` says what it does, or did while it was there.
fn link_trouble(link: &LinkView, role: impl Fn(bool) -> String) -> Option<Complaint> {
    let name = &link.name;
    if link.is_gone {
        let what = format!("{name} is gone");
        return Some(complaint("link_gone", what, role(false), "ip -br link".to_owned()));
    }
    if !link.is_up {
        let why = role(true);
        return Some(complaint("link_down", format!("{name} is down"), why, format!("sudo ip link set dev {name} up")));
    }
    (!link.has_carrier).then(|| {
        let why = format!("{}: its cable, or the port at the other end, is down", role(true));
        complaint("no_carrier", format!("{name} has no carrier"), why, format!("ip -br link show dev {name}"))
    })
}

/// Returns the problem of the local address, which was one of the link `dev`.
fn address_trouble(monitored: &Monitored, dev: &str, evidence: &Evidence) -> Option<Complaint> {
    let (len, is_here) = evidence.view.locals.get(&monitored.local)?;
    let local = monitored.local;
    let prefix = len.map_or_else(|| local.to_string(), |len| format!("{local}/{len}"));
    (!is_here).then(|| {
        complaint(
            "address_gone",
            format!("{local} is no address of this host"),
            "the tunnel sends from it and listens on it".to_owned(),
            format!("sudo ip addr add {prefix} dev {dev}"),
        )
    })
}

fn no_route(monitored: &Monitored, remote: IpAddr, evidence: &Evidence) -> Complaint {
    let last = evidence.view.paths.get(&remote).and_then(|(path, _)| *path);
    let dev = last.and_then(|path| evidence.view.links.get(&path.link)).map_or(&monitored.underlay, |link| &link.name);
    let via = last.and_then(|path| path.gateway).map(|gateway| format!(" via {gateway}")).unwrap_or_default();
    complaint(
        "no_route",
        format!("no route to {remote}"),
        format!("the kernel has no route from {} to it any more", monitored.local),
        format!("sudo ip route add {remote}{via} dev {dev}"),
    )
}

/// Returns a problem where the remote end, or a router or filter on the path, answers with ICMP errors.
fn refusal(monitored: &Monitored, remote: IpAddr, flow: &Flow, evidence: &Evidence, now: Instant) -> Option<Complaint> {
    let refused = evidence.refused.get(&remote).filter(|refused| refused.counts_for(monitored, flow))?;
    let Refused { kind, from, at } = *refused;
    let received = match flow.last_received {
        Some(at) => format!("last packet received {}", ago(at, now)),
        None => "nothing was received yet".to_owned(),
    };
    let when = ago(at, now);
    let sender = from.filter(|from| *from != remote).map_or_else(|| "it".to_owned(), |from| from.to_string());
    Some(match (kind, monitored.ports) {
        (Refusal::Port, Some((_, dport))) => complaint(
            "refused",
            format!("{remote} refuses UDP {dport}"),
            format!("ICMP port unreachable {when}; {received}: no tunnel listens there on that port"),
            format!("on {remote}: segue stat; sudo ss -ulpn sport = :{dport}"),
        ),
        (Refusal::Port | Refusal::Protocol, _) => complaint(
            "refused",
            format!("{remote} refuses {}", monitored.kind),
            format!("ICMP protocol unreachable {when}; {received}: no tunnel of this mode listens there"),
            format!("on {remote}: segue stat; ip -d tunnel show"),
        ),
        (Refusal::Filtered, _) => complaint(
            "filtered",
            format!("a filter refuses packets to {remote}"),
            format!(
                "ICMP from {}, {when}; {received}",
                from.map_or_else(|| "there".to_owned(), |from| from.to_string())
            ),
            format!("on {}: sudo nft list ruleset", from.unwrap_or(remote)),
        ),
        (Refusal::Unreachable, _) if from == Some(monitored.local) => complaint(
            "neighbour_gone",
            format!("{remote} does not answer on {}", monitored.underlay),
            format!("this host's kernel found no neighbour for it {when}; {received}"),
            format!("ip neigh show dev {}; ip route get {remote}", monitored.underlay),
        ),
        (Refusal::Unreachable, _) => complaint(
            "unreachable",
            format!("{remote} is unreachable"),
            format!("{sender} reported it by ICMP {when}; {received}"),
            format!("ip route get {remote}; tracepath -n {remote}"),
        ),
    })
}

/// Returns the problem of a tunnel that refuses everything that arrives.
fn refused_here(monitored: &Monitored, why: &'static str) -> Complaint {
    let from = monitored.remotes.first().map_or_else(|| "the other end".to_owned(), IpAddr::to_string);
    let sentence = reasons::sentence("drops", why).unwrap_or_default();
    let (cause, words) = cause(why);
    complaint(
        "all_dropped",
        format!("everything from {from} is dropped: {}", why.replace('_', " ")),
        format!("{sentence} Likely: {cause}."),
        format!("the same {words} at both ends: segue tunnel dev {} ...; segue help {why}", monitored.name),
    )
}

/// Returns the likely cause of a refused datagram, and the words of the command line that have to agree.
fn cause(why: &str) -> (&'static str, &'static str) {
    match why {
        "gre_mismatch" => ("the `key`, `csum` or `seq` of the two ends differ", "`key`, `csum` and `seq`"),
        "vni" => ("the `id` of the two ends differ", "`id`"),
        "remcsum_unwanted" => ("the other end uses remote checksums, and this one has no `remcsumrx`", "`remcsumrx`"),
        "outer_csum_absent" => ("the other end sends no outer checksums", "`encap-csum` or `udp6zerocsumrx`"),
        "gre_csum" | "outer_csum" | "outer_ip_csum" => ("a broken card or path", "`csum`"),
        "ecn" => ("a router on the path marks congestion in packets that cannot carry it", "`tos`"),
        "outer_fragment" => ("the path fragments: the `mtu` is too large", "`mtu`"),
        _ => ("the `mode` or the `encap` of the two ends differ", "`mode` and `encap`"),
    }
}

/// Returns a problem where the path MTU has become too small for the interface's MTU.
fn mtu(monitored: &Monitored, evidence: &Evidence) -> Option<Complaint> {
    let view = &evidence.view;
    let own = view.links.get(&monitored.index);
    let inside = own.filter(|link| link.mtu > 0).map_or(monitored.mtu, |link| link.mtu);
    // An interface may be renamed while it is used.
    let name = own.map_or(&monitored.name, |link| &link.name);
    let narrowest = monitored.remotes.iter().filter_map(|remote| {
        let path = view.paths.get(remote).and_then(|(path, has_route)| path.filter(|_| *has_route))?;
        let link = view.links.get(&path.link).filter(|link| !link.is_gone)?;
        let mtu = path.mtu.unwrap_or(link.mtu).min(link.mtu);
        Some((mtu, link.name.as_str(), *remote, mtu < link.mtu))
    });
    let (path, dev, remote, is_route) = narrowest.min_by_key(|path| path.0)?;
    let is_narrower = path < monitored.path_mtu && inside + monitored.overhead > path;
    is_narrower.then(|| {
        let place = if is_route { format!("the route to {remote}") } else { dev.to_owned() };
        let fits = path.saturating_sub(monitored.overhead);
        complaint(
            "mtu",
            format!("{place} takes {path} bytes, {name} needs {}", inside + monitored.overhead),
            format!(
                "packets above {fits} bytes are fragmented or dropped; at the start it took {}",
                monitored.path_mtu
            ),
            format!("sudo ip link set dev {name} mtu {fits}"),
        )
    })
}

/// Returns the problems of offloads that were switched off: on the underlay, and on the interface.
fn offloads(monitored: &Monitored, evidence: &Evidence) -> Vec<Complaint> {
    let view = &evidence.view;
    let mut found: Vec<Complaint> = Vec::new();
    let paths = monitored.remotes.iter().filter_map(|remote| view.paths.get(remote)).filter_map(|(path, _)| *path);
    for link in paths.filter_map(|path| view.links.get(&path.link)) {
        for new in underlay_offloads(monitored, evidence.by_kernel, link) {
            if !found.contains(&new) {
                found.push(new);
            }
        }
    }
    if let Some(link) = view.links.get(&monitored.index).filter(|_| monitored.takes_trains) {
        let off: Vec<&str> = [("tx", link.tx), ("tso", link.tso), ("gso", link.gso)]
            .into_iter()
            .filter_map(|(word, on)| (on == Some(false)).then_some(word))
            .collect();
        if !off.is_empty() {
            let name = &link.name;
            let on: Vec<String> = off.iter().map(|word| format!("{word} on")).collect();
            found.push(complaint(
                "offload_off",
                format!("{name} has {} off", off.join(", ")),
                "local programs then send each packet by itself: about half of the throughput of TCP".to_owned(),
                format!("sudo ethtool -K {name} {}", on.join(" ")),
            ));
        }
    }
    found
}

/// Returns the problems of a link that a tunnel's packets leave and arrive by: the offloads that are off although the
/// tunnel uses them. The daemon computes inner checksums itself, and cuts what it does not hand over in trains, so that
/// forms without trains use none of them.
fn underlay_offloads(monitored: &Monitored, by_kernel: ByKernel, link: &LinkView) -> Vec<Complaint> {
    let name = &link.name;
    let mut found = Vec::new();
    let mut report = |code: &str, word: &str, cost: &str| {
        let fix = format!("sudo ethtool -K {name} {word} on");
        found.push(complaint(code, format!("{name} has {word} off"), cost.to_owned(), fix));
    };
    let is_tx_off = link.tx == Some(false);
    if is_tx_off && by_kernel.sends {
        report("underlay_tx_off", "tx", TX_OFF_IN_KERNEL);
    } else if is_tx_off && monitored.sends_trains {
        report("underlay_tx_off", "tx", tx_off_cost());
    }
    // Links are slow without these two only where they had them; without `tx` Linux switches `tso` off as well.
    if by_kernel.sends && !is_tx_off && link.had_tso && link.tso == Some(false) {
        report("underlay_tso_off", "tso", "the kernel then cuts every train before the link, which could");
    }
    // UDP_GRO of the daemon's sockets, and GRE or IP in IP for the in-kernel path.
    let is_joined = monitored.ports.is_some() != by_kernel.receives;
    if monitored.joins && is_joined && link.had_gro && link.gro == Some(false) {
        report("underlay_gro_off", "gro", "each packet is then received by itself, instead of joined in a train");
    }
    found
}

/// The cost of switching transmit checksum offload off for a tunnel that the in-kernel path carries.
pub(crate) const TX_OFF_IN_KERNEL: &str =
    "the kernel then computes every inner checksum, and cuts every train before the link";

/// Returns the cost of switching transmit checksum offload off, in words.
pub(crate) fn tx_off_cost() -> &'static str {
    "the kernel then computes every outer checksum, and before Linux 6.11 it takes no trains of datagrams \
     (UDP_SEGMENT): about a third of the throughput"
}

/// Returns the command that switches transmit checksum offload on.
pub(crate) fn tx_on(link: &str) -> String {
    format!("sudo ethtool -K {link} tx on")
}

/// Returns the problem of a tunnel whose probes are not answered.
fn silent(monitored: &Monitored, flow: &Flow, now: Instant) -> Option<Complaint> {
    let Some(Verdict::Silent { span, has_replied, quiet, sends_requests }) = flow.probe else { return None };
    let remote = monitored.remotes.first()?;
    let hears = flow.received_since(now - quiet);
    let cause = match (sends_requests, hears, has_replied) {
        (true, ..) => "its own probes arrive, so that packets to it are lost, or it drops them",
        (_, true, _) => "packets from it arrive, so that its `probe` is off, or packets to it are lost",
        (.., true) => "it is down, or it or a device on the path silently drops packets",
        (.., false) => "it is down, runs no segue with `probe`, or silently drops packets",
    };
    let (what, span) = (format!("{remote} does not answer probes"), span.as_secs());
    let (_, dport) = monitored.ports?;
    Some(complaint(
        "probe_unanswered",
        what,
        format!("no answer for {span} s: {cause}"),
        format!("on {remote}: segue stat --why; sudo tcpdump -ni any udp port {dport}"),
    ))
}

/// Returns a notice on a tunnel without answers.
fn unanswered(monitored: &Monitored, flow: &Flow) -> Option<Complaint> {
    let (span, count) = flow.unanswered()?;
    let remote = monitored.remotes.first()?;
    let port = monitored.ports.map(|(own, _)| format!(", or sends to another UDP port than {own}")).unwrap_or_default();
    let mut notice = complaint(
        "unanswered",
        format!("unanswered {} s", span.as_secs()),
        format!(
            "{count} packets were sent to {remote} and nothing was received since: one-way traffic, or the other end is \
             silent, drops them{port}"
        ),
        format!("on {remote}: segue stat --why"),
    );
    notice.notice = true;
    Some(notice)
}

/// Returns how long ago a time was, in human-readable form.
fn ago(at: Instant, now: Instant) -> String {
    format!("{} ago", segue_control::units::short_duration(now.saturating_duration_since(at).as_secs()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::time::Duration;

    use super::super::evidence::{PathState, View};
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
            locals: [(LOCAL.parse().unwrap(), (Some(24), true))].into(),
            owners: HashMap::new(),
        }
    }

    fn judged(change: impl FnOnce(&mut View)) -> Vec<(String, String)> {
        let mut evidence = Evidence { view: view(), ..Evidence::default() };
        change(&mut evidence.view);
        let found = judge(&monitored(), &Flow::default(), &evidence, Instant::now());
        found.into_iter().map(|complaint| (complaint.code, complaint.fix.unwrap())).collect()
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
        let gone = |view: &mut View| view.locals.get_mut(&LOCAL.parse().unwrap()).unwrap().1 = false;
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
        let found = judged(|view| view.locals.get_mut(&LOCAL.parse().unwrap()).unwrap().1 = false);
        assert!(is_one(&found, ["address_gone", LOCAL, "listens on it"]), "{found:?}");
        // The address is now that of a link that was made anew.
        let anew = |view: &mut View| {
            view.links.insert(12, view.links[&2].clone());
            view.links.insert(2, LinkView { is_gone: true, ..view.links[&2].clone() });
            view.owners.insert(LOCAL.parse().unwrap(), 12);
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
        assert_eq!(codes(2, 60), ["198.18.0.2 refuses UDP 6080"], "nothing was sent since");
        assert_eq!(codes(3, 61), ["unanswered 61 s"]);
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
}
