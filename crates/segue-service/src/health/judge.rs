//! The judgement of one tunnel: its problems, the likeliest cause first, each with a command as remedy.

use std::net::IpAddr;
use std::time::Instant;

use segue_control::model::Complaint;

use super::evidence::{ByKernel, Evidence, LinkView, Local, Monitored, Refusal, Refused, View};
use super::flow::Flow;
use super::probe::Verdict;
use crate::reasons;

/// Returns the problems of a tunnel.
pub(super) fn judge(monitored: &Monitored, flow: &Flow, evidence: &Evidence, now: Instant) -> Vec<Complaint> {
    let mut found = Vec::new();
    found.extend(interface(monitored, evidence));
    let problems = path_problems(monitored, flow, evidence);
    let has_path = problems.is_empty();
    found.extend(problems);
    if has_path {
        found.extend(denied(monitored, evidence, now));
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

/// Returns the problem that nothing is known of what becomes of the links, routes and addresses.
pub(crate) fn unwatched(why: String) -> Complaint {
    let what = "links, routes and addresses not watched".to_owned();
    complaint("unwatched", what, why, "segue help unwatched".to_owned())
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

/// Returns the problems of the paths to the remotes: link, local address, route, neighbour. That a route leads back
/// into the tunnel is not believed while probes are answered: rules of routing may tell the tunnel's datagrams, by port
/// or mark, from what the kernel was asked for.
fn path_problems(monitored: &Monitored, flow: &Flow, evidence: &Evidence) -> Vec<Complaint> {
    let view = &evidence.view;
    let of_table = view.owner(monitored).and_then(|index| view.links.get(&index));
    if let Some(link) = of_table {
        let role = |is_here: bool| format!("it {} the local address", if is_here { "has" } else { "had" });
        let trouble = link_trouble(link, role).or_else(|| address_trouble(monitored, view));
        return trouble.into_iter().collect();
    }
    let leaves = flow.probe == Some(Verdict::Answers) && flow.last_reply.is_some();
    let mut found: Vec<Complaint> = Vec::new();
    for remote in &monitored.remotes {
        let Some((last, has_route)) = view.paths.get(remote) else { continue };
        let link = last.and_then(|path| view.links.get(&path.link));
        let trouble = link
            .and_then(|link| link_trouble(link, |is_here| carries(*remote, is_here)))
            .or_else(|| address_trouble(monitored, view))
            .or_else(|| {
                view.loops.get(remote).filter(|_| !leaves).map(|into| route_loop(monitored, *remote, *into, view))
            })
            .or_else(|| (!has_route).then(|| no_route(monitored, *remote, view)))
            .or_else(|| {
                let path = last.filter(|path| path.has_failed)?;
                let next = path.gateway.unwrap_or(*remote);
                let dev = underlay(monitored, *remote, view);
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

/// Returns the problem of the local address.
fn address_trouble(monitored: &Monitored, view: &View) -> Option<Complaint> {
    let local = monitored.local;
    let Local { link, len, is_here, .. } = view.locals.get(&local)?;
    let dev = view.links.get(link).map_or(&monitored.underlay, |link| &link.name);
    (!is_here).then(|| {
        complaint(
            "address_gone",
            format!("{local} is no address of this host"),
            "the tunnel sends from it and listens on it".to_owned(),
            format!("sudo ip addr add {local}/{len} dev {dev}"),
        )
    })
}

/// Returns the present name of the link to a remote, or the last one.
fn underlay<'a>(monitored: &'a Monitored, remote: IpAddr, view: &'a View) -> &'a str {
    let path = view.paths.get(&remote).and_then(|(path, _)| *path);
    path.and_then(|path| view.links.get(&path.link)).map_or(&monitored.underlay, |link| &link.name)
}

/// Returns the last router and link to a remote, as words of `ip route`.
fn next_hop(monitored: &Monitored, remote: IpAddr, view: &View) -> String {
    let dev = underlay(monitored, remote, view);
    let Some(path) = view.paths.get(&remote).and_then(|(path, _)| *path) else {
        return format!("via ROUTER dev {dev}");
    };
    match path.gateway {
        Some(gateway) if gateway.is_ipv4() == remote.is_ipv4() => format!("via {gateway} dev {dev}"),
        Some(gateway) => format!("via inet6 {gateway} dev {dev}"),
        None => format!("dev {dev}"),
    }
}

/// Returns the problem of a remote whose route leads back into the tunnel, by the interface `into`.
fn route_loop(monitored: &Monitored, remote: IpAddr, into: u32, view: &View) -> Complaint {
    let name = view.links.get(&into).map_or(&monitored.name, |link| &link.name);
    complaint(
        "route_loop",
        format!("the route to {remote} leads into {name}"),
        "what the tunnel sends comes back to it: no packet leaves this host".to_owned(),
        format!("sudo ip route replace {remote} {}", next_hop(monitored, remote, view)),
    )
}

fn no_route(monitored: &Monitored, remote: IpAddr, view: &View) -> Complaint {
    complaint(
        "no_route",
        format!("no route to {remote}"),
        format!("the kernel has no route from {} to it any more", monitored.local),
        format!("sudo ip route add {remote} {}", next_hop(monitored, remote, view)),
    )
}

/// Returns the problem of an instance all of whose packets this host itself refuses.
fn denied(monitored: &Monitored, evidence: &Evidence, now: Instant) -> Option<Complaint> {
    // What the kernel sends to the peers of a table is not counted here.
    let at = evidence.outgoing.denied().filter(|_| !monitored.remotes.is_empty())?;
    Some(complaint(
        "filtered",
        format!("a filter of this host refuses packets from {}", monitored.local),
        format!("the kernel did not permit to send them (EPERM), the last one {}", ago(at, now)),
        "sudo nft list ruleset; ip rule".to_owned(),
    ))
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
    let dev = underlay(monitored, remote, &evidence.view);
    // A link-local address has no meaning without its link.
    let on = monitored.zone.map(|_| format!(" dev {dev}")).unwrap_or_default();
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
            format!("{remote} does not answer on {dev}"),
            format!("this host's kernel found no neighbour for it {when}; {received}"),
            format!("ip neigh show dev {dev}; ip route get {remote}{on}"),
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
mod tests;
