//! The codes of the problems that HEALTH names: the meaning, the likely cause and the remedy of each.

/// A kind of problem, as [`Complaint::code`](crate::model::Complaint::code) names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCode {
    /// The code, which never changes.
    pub name: &'static str,
    /// The description of the problem, a sentence.
    pub sentence: &'static str,
    /// The likely cause, a sentence.
    pub cause: &'static str,
    /// The remedy: a sentence, or a command.
    pub cure: &'static str,
}

const fn code(name: &'static str, sentence: &'static str, cause: &'static str, cure: &'static str) -> HealthCode {
    HealthCode { name, sentence, cause, cure }
}

/// Every code, in the order of the documentation.
pub const CODES: &[HealthCode] = &[
    code(
        "down",
        "The instance could not be started, or has ended.",
        "The message after `down` says it: a port that another program has, an address or interface that is not \
         there, a host name without an address.",
        "The command that is shown; the service starts the instance again until it comes up.",
    ),
    code(
        "stuck",
        "No packet moves: the packet loop does not finish its round.",
        "A fault of segue.",
        "No action is needed: the supervisor ends the process, and the service starts it again.",
    ),
    code(
        "process_stopped",
        "A signal stopped a process that opens an adapter again, or connects or talks to a guest's front end.",
        "Another process has sent it SIGSTOP or SIGTSTP.",
        "No action is needed: the supervisor continues it.",
    ),
    code(
        "process_ended",
        "A process that opens an adapter again, or connects or talks to a guest's front end, has ended.",
        "A fault of segue, a signal from another process, or the kernel had no memory left.",
        "No action is needed where the reason says that the service starts the instance again; otherwise start it \
         again.",
    ),
    code(
        "unwatched",
        "The links, routes and addresses that tunnels need cannot be read: HEALTH sees no change of them.",
        "Very many changes at once, or a kernel without memory.",
        "No action is needed if it ends by itself; where the reason is one of the start, start the tunnels again.",
    ),
    code(
        "interface_down",
        "The own interface of the tunnel or of the USB adapter is down.",
        "It was set down.",
        "sudo ip link set dev IFNAME up",
    ),
    code(
        "link_down",
        "An interface by which the packets leave or arrive is down.",
        "It was set down.",
        "sudo ip link set dev IFNAME up",
    ),
    code(
        "no_carrier",
        "The underlay's link, or the USB adapter, has no carrier.",
        "Its cable is unplugged, or the port at its other end is down.",
        "Plug the cable in, or set that port up.",
    ),
    code(
        "link_gone",
        "The underlay's link does not exist any more.",
        "It was deleted, renamed into another namespace, or its driver was unloaded.",
        "Create it again: ip -br link shows the links.",
    ),
    code(
        "address_gone",
        "This host no longer has the tunnel's local address.",
        "It was removed, or a DHCP lease has changed it.",
        "sudo ip addr add ADDRESS dev IFNAME, or another `local`.",
    ),
    code(
        "no_route",
        "The kernel has no route to the other end.",
        "The route was removed, or went with its interface.",
        "sudo ip route add ADDRESS dev IFNAME",
    ),
    code(
        "route_loop",
        "The route to the other end leads back into the tunnel.",
        "A route by the tunnel's interface covers the address of the other end, such as a default route.",
        "sudo ip route replace ADDRESS via ROUTER dev IFNAME, with the router and the link of before.",
    ),
    code(
        "neighbour_gone",
        "The other end, or the next router, does not answer ARP or neighbour discovery.",
        "That host is down, or is not on this link.",
        "Start that host; ip neigh show lists the neighbours.",
    ),
    code(
        "refused",
        "The other end answers with an ICMP error: no tunnel listens there on this port, or with this protocol.",
        "No segue runs there, or with another `port`, `encap` or `mode`.",
        "On the other end: segue stat, and start the tunnel.",
    ),
    code(
        "filtered",
        "A filter of this host, on the path or at the other end refuses the packets.",
        "A firewall does not let them pass.",
        "On the host that refuses them: sudo nft list ruleset, and accept the tunnel's port or protocol.",
    ),
    code(
        "unreachable",
        "A router reports by an ICMP error that it has no route to the other end.",
        "A route is missing there, or a link further on is down.",
        "ip route get ADDRESS and tracepath -n ADDRESS show how far packets get.",
    ),
    code(
        "all_dropped",
        "Everything that arrives from the other end is dropped.",
        "The two ends differ in `key`, `mode`, `id` or `encap`: the reason of the drops says in which.",
        "The same words at both ends; segue help REASON explains the reason.",
    ),
    code(
        "mtu",
        "The path has become narrower than the interface allows for.",
        "A link or route on the path has a smaller MTU than at the start.",
        "sudo ip link set dev IFNAME mtu BYTES",
    ),
    code(
        "peers_refused",
        "Peers of the table are refused and the others are in force, or a file was refused and the table before stays.",
        "A wrong entry of the file or of the program that makes the table.",
        "Correct the entry that segue stat -j names, then segue reload.",
    ),
    code(
        "fleet_ended",
        "The fleet agent of the tunnel has ended without a signal: its peers stay as they are.",
        "The error that is shown, a fault of segue, or the kernel had no memory left.",
        "Mend what is shown and start it again, or remove IFNAME.fleet.json, beside its socket, if it is no longer wanted.",
    ),
    code(
        "fleet_stale",
        "The fleet agent has not reached its registry for a minute, a signal has stopped it, or it writes its state no more, or flanneld's hooks have found none of theirs for a minute: the tunnel's peers stay as they are.",
        "etcd does not run, the path to it is interrupted, or it refuses the agent's user or certificate; the agent hangs; or the directory of control sockets is another one.",
        "The reason is shown; etcdctl endpoint health, with the agent's options, asks the same member. For hooks, restart flanneld.",
    ),
    code(
        "fleet_table",
        "The tunnel has not taken the fleet agent's table for a minute.",
        "The tunnel was ended, or the agent may not use its control socket.",
        "segue stat, and the tunnel and the agent as the same user.",
    ),
    code(
        "fleet_lease",
        "The fleet agent has not renewed its lease for half of its time to live, or not made it again for a minute \
         after it was gone; other hosts forget this one without it.",
        "etcd refuses what the agent writes, or is not reached.",
        "The reason is shown; the agent's user needs permission to write below PREFIX/subnets/.",
    ),
    code(
        "fleet_file",
        "The fleet agent cannot write the file `subnet.env`, from which other programs take this host's subnet.",
        "Its directory is missing, is another user's, or has no room.",
        "Make room there, or start the agent again, which makes the directory, or with another --subnet-file.",
    ),
    code(
        "underlay_tx_off",
        "The checksum offload of the underlay's link is off, and the tunnel uses it.",
        "It was switched off, often to see correct checksums in a capture.",
        "sudo ethtool -K IFNAME tx on",
    ),
    code(
        "underlay_tso_off",
        "The underlay's TCP segmentation offload was switched off since the start, and the kernel carries the tunnel.",
        "It was switched off.",
        "sudo ethtool -K IFNAME tso on",
    ),
    code(
        "underlay_gro_off",
        "The underlay's receive offload was switched off since the start, which joined the tunnel's packets.",
        "It was switched off.",
        "sudo ethtool -K IFNAME gro on",
    ),
    code(
        "offload_off",
        "An offload of the tunnel's own interface is off: local programs send packet by packet.",
        "It was switched off.",
        "sudo ethtool -K IFNAME tx on tso on gso on",
    ),
    code(
        "offload_refused",
        "The kernel has refused an offload that segue asked for; the work is done in software.",
        "An older kernel, or a link without the offload.",
        "segue doctor says what is missing.",
    ),
    code(
        "drops",
        "More than one packet in a hundred of the last seconds was dropped.",
        "The reason that is named with it.",
        "segue stat --why shows the reasons, and segue help REASON explains one.",
    ),
    code(
        "too_big",
        "Packets were larger than the path takes, and were dropped.",
        "The MTU of the interface is larger than the path allows for.",
        "sudo ip link set dev IFNAME mtu BYTES",
    ),
    code(
        "outer_csum",
        "The kernel dropped datagrams with a wrong outer UDP checksum, or with none where one is needed.",
        "A broken card or path, or an end that sends no outer checksums to one that wants them.",
        "The same `encap-csum` at both ends, or `udp6zerocsumrx`.",
    ),
    code(
        "probe_unanswered",
        "The other end does not answer the probes.",
        "It is down, runs no segue with `probe`, or it or a device on the path silently drops packets.",
        "On the other end: segue stat --why, and the same `probe`.",
    ),
    code(
        "unanswered",
        "A notice: packets have been sent for ten seconds or more, and nothing was received since.",
        "One-way traffic, or an end that sends nothing or silently drops the packets.",
        "On the other end: segue stat --why; with `probe` at both ends HEALTH tells the two apart.",
    ),
    code(
        "kernel_forwards",
        "The kernel forwards packets between the interfaces of the gateway too, so that they may pass twice.",
        "Forwarding is on for these interfaces.",
        "sudo sysctl -w net.ipv4.conf.IFNAME.forwarding=0, and net.ipv6 likewise.",
    ),
    code(
        "stale_routes",
        "The tables of the kernel cannot be read; packets follow those that were read last.",
        "Too many changes at once, or a kernel without memory.",
        "No action is needed if it ends by itself; otherwise start the gateway again.",
    ),
    code(
        "routes_not_used",
        "Routes of the kernel are left out of the gateway's table.",
        "Router advertisements, which any station can send, or more routes than a router takes over.",
        "--accept-ra uses those of router advertisements.",
    ),
    code(
        "address_local",
        "This host has the outside address of the NAT itself.",
        "It was added to an interface after the gateway had started.",
        "sudo ip addr del ADDRESS dev IFNAME, or another outside address.",
    ),
    code(
        "address_conflict",
        "Another host has the outside address of the NAT too.",
        "It was configured there, or a DHCP server has assigned it.",
        "tcpdump -eni IFNAME arp shows the link address of that host: give it another address, or the NAT.",
    ),
    code(
        "guest_gone",
        "No guest is connected to a `vhost:` port.",
        "The virtual machine does not run, or uses another socket.",
        "Start it with the options that segue doctor prints.",
    ),
    code(
        "driver_not_ready",
        "A guest is connected to a `vhost:` port and has not started its driver.",
        "The guest is still booting, or has no virtio-net driver.",
        "Wait for it, or load the driver in the guest.",
    ),
    code(
        "ring_stalled",
        "A guest offers no receive buffers, and packets for it are dropped.",
        "The guest hangs, or is stopped.",
        "Continue the guest, or start it again.",
    ),
    code(
        "adapter_gone",
        "The USB adapter is not there, or does not answer.",
        "It was unplugged, hangs, or another device is in its place.",
        "Plug it in again, and start segue again where the reason says so; segue lan78xx list shows the adapters.",
    ),
    code(
        "adapter_mtu",
        "The USB adapter does not take the MTU of its interface, and has another one.",
        "It is below 68, above 9000, or one that the chip cannot receive at the speed of the bus.",
        "sudo ip link set dev IFNAME mtu BYTES, with the MTU that the reason names.",
    ),
];

/// Returns the code with this name.
pub fn find(name: &str) -> Option<&'static HealthCode> {
    CODES.iter().find(|code| code.name == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_code_is_there_once_and_has_a_sentence_of_one_line() {
        let names: BTreeSet<&str> = CODES.iter().map(|code| code.name).collect();
        assert_eq!(names.len(), CODES.len());
        for code in CODES {
            assert!(code.name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'_')), "{}", code.name);
            for text in [code.sentence, code.cause, code.cure] {
                assert!(
                    !text.is_empty() && !text.contains(['\n', '|']) && !text.contains("  "),
                    "{}: {text}",
                    code.name
                );
            }
            assert!(code.sentence.ends_with('.') && code.cause.ends_with('.'), "{}", code.name);
            assert_eq!(find(code.name), Some(code));
        }
        assert_eq!(find("nothing"), None);
    }
}
