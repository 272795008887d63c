//! The hand-written part of the help: usage line, examples and closing text of each command.

/// The hand-written part of a command's help: usage line, examples and closing text.
pub(crate) struct Page {
    pub(crate) name: &'static str,
    pub(crate) usage: &'static str,
    pub(crate) examples: &'static [(&'static str, &'static str)],
    pub(crate) more: &'static str,
}

/// The command of the first tunnel, as in README.
pub(super) const FIRST_TUNNEL: &str = "segue tunnel dev sg0 remote 198.18.0.2 addr 198.19.0.1/24";

/// Help pages in the order of the commands.
pub(super) const PAGES: &[Page] = &[
    Page {
        name: "tunnel",
        usage: "segue tunnel dev NAME remote ADDR [WORD...] [also ...] [OPTION]...",
        examples: &[
            (FIRST_TUNNEL, "GRE right in IP, carried by the kernel where it can"),
            (
                "segue tunnel dev sg0 remote 198.18.0.2 encap gue encap-remcsum \\\n      addr 198.19.0.1/24 --check",
                "in UDP, checksums left to the other end; what would be done, and the MTU",
            ),
            (
                "segue tunnel dev sg0 mode vxlan id 42 remote 198.18.0.2 dstport 4789",
                "Ethernet to a VXLAN device of Linux, or to another segue",
            ),
        ],
        more: "\
Words have no dashes and come in any order. encap-csum is on by default, unlike
in iproute2: without the outer checksum the kernel neither segments nor merges
datagrams, and every packet costs a system call.

`also` begins another tunnel on the same port, with one socket for all of them:
  segue tunnel dev a remote 198.18.0.2 encap gue key 1 \\
        also dev b remote 198.18.0.2 encap gue key 2
Remote, GRE key, network identifier and mode tell them apart.

Signals: SIGINT and SIGTERM end the tunnel (the second SIGINT at once), SIGUSR1
writes the counters to stderr, SIGHUP does nothing: a terminal that closes does
not end it. Exit status: 0 done, 1 failed, 2 used wrongly.

Files: the control socket NAME.sock, in /run/segue or /run/segue-root for root,
else in $XDG_RUNTIME_DIR/segue or /tmp/segue-UID; SEGUE_RUNTIME_DIR overrides.
",
    },
    Page {
        name: "gateway",
        usage: "segue gateway IN OUT [PORT]... [OPTION]...",
        examples: &[
            ("segue gateway eth0 tap:lro0", "eth0 bridged to a TAP of this host, which gets trains"),
            ("segue gateway eth0 tap:lro0@red --tap-mtu 9000 --fragment", "in the namespace red, whole datagrams"),
            ("segue gateway vhost:/run/segue/vm1.vhost eth0", "a virtual machine, without a TAP"),
        ],
        more: "\
In both directions, frames of one flow are merged into trains. Trains go whole
to a port that accepts them and are cut for one that does not. Frames that are
not merged leave unchanged, byte for byte.

The host's own stack sees the frames of an interface too, and would answer for
its addresses. So IN and OUT must have none, and be no port of a bridge or bond:
  ip link set dev eth0 addrgenmode none && ip addr flush dev eth0
which ends what uses them, such as an SSH session to this host.
Put an address for this host on a TAP. The TAP is deleted when the gateway ends.
vhost:PATH is the network device of a guest, which connects to the socket PATH;
its options are in docs/virtual-machines.md. More than two ports are a bridge.
With --hold-us the gateway may not sleep while it waits for the next packet.

Profiles: strict merges what can be cut into the same packets again, linux what
Linux merges (its rules changed in linux:6.18 and linux:7.0) and padded frames,
without their padding, which Linux leaves alone; lro what a receiver with LRO
does: it keeps the stream, not the packets. ACK aggregation is part of lro; with
--no-lro only ACKs are merged. Duplicate ACKs, window updates, SACK and ECN are
never swallowed; segue stat counts the ACKs that were.

Received frames stay where the kernel put them (one copy, its own) and are not
copied again: in pages of the size of --page, many to a page, or each in a
buffer of its own (frame). Frames longer than a page span several pages.

With --route, IN and OUT are interfaces with addresses, the kernel must not
forward between them, and packets follow the kernel's routes. The address of
--nat must belong to no host. IPv6 routes from router advertisements are not
used without --accept-ra. More in docs/gateway.md.

Signals, exit status and control socket: as with segue tunnel.
",
    },
    Page {
        name: "stat",
        usage: "segue stat [NAME] [OPTION]...",
        examples: &[
            ("segue stat", "one line for each running instance"),
            ("segue stat sg0 --why", "problems, why trains ended, and what would help"),
            ("segue stat --watch 1", "rates of each second"),
        ],
        more: "\
HEALTH is ok while traffic passes or no problem is detected. segue listens
to ICMP errors, links, routes, neighbours and its own drops, and sends nothing:
10 s of sending without an answer are a notice, `unanswered`. With --health,
exit 1 when anything is not well or nothing runs; --strict counts notices too.
HEARD is the time since the last packet from the remote. With --watch, -j prints
one object a line. Units are SI: kB is 1000 bytes; k, M and G are 10^3 to 10^9.
segue help REASON explains a reason, as segue help gre_mismatch, and segue help
CODE a problem of HEALTH, as segue help link_down.
The kernel counts the drops outer_csum: datagrams with a wrong outer checksum,
or none where one is needed, for any socket of the tunnel's network namespace.
",
    },
    Page {
        name: "top",
        usage: "segue top [FILTER] [OPTION]...",
        examples: &[
            ("segue top", "a line for each tunnel, with rates of each second"),
            ("segue top blue --interval 5", "lines that contain blue, every five seconds"),
        ],
        more: "\
Keys: q ends, Enter shows the details of a line, with problems, remedies and the
reasons of its counters; s sorts by name, rx, tx, drops or health, r the other
way round; / filters, p pauses, ? lists the keys. Colours are those of the
terminal's own palette and say nothing that the words do not: NO_COLOR and
--color never leave them out. Without a terminal, and with -j, it prints what
segue stat --watch prints.
",
    },
    Page {
        name: "metrics",
        usage: "segue metrics [--listen WHERE]... [--textfile FILE.prom] [OPTION]...",
        examples: &[
            ("segue metrics | grep drops", "on stdout, once"),
            ("segue metrics --listen 127.0.0.1", "http://127.0.0.1:9780/metrics, until Ctrl-C"),
            ("segue metrics --textfile /var/lib/prometheus/node-exporter/segue.prom", "for node_exporter"),
        ],
        more: "\
The counters are those of segue stat, of all running instances of this user;
root sees all. A counter that is 0 is left out. HELP has the sentence of each
reason. A client that accepts OpenMetrics gets it, all others the text format
of Prometheus. /healthz answers 200, or 503 with a line for each problem.

There is no password and no encryption: listen on a loopback address or on a
unix socket, which its owner and group may use. fd:NAME is a socket of systemd
(FileDescriptorName=). The file is removed when the command ends.
segue run serves them too, with [metrics] in its file. More in docs/metrics.md.
",
    },
    Page {
        name: "nat",
        usage: "segue nat [NAME] [OPTION]...",
        examples: &[("segue nat gw0", "the mappings of gw0"), ("segue nat -j", "those of all gateways")],
        more: "\
A mapping is an inside port and the outside port that replaces it. Static ones
come from --forward. idle s is the time since the last packet: UDP mappings
expire after 300 s, ICMP after 60 s, TCP after 7440 s when open, else 240 s.
Only packets from inside keep a mapping.
Counts are packets; a train counts as one.
",
    },
    Page {
        name: "peer",
        usage: "segue peer ACTION NAME [PREFIX...|PREFIX WORD...|FILE] [OPTION]...",
        examples: &[
            ("segue peer add sg0 198.19.2.0/24 remote 198.18.0.2 encap gue", "what is for 198.19.2.0/24 goes there"),
            ("segue peer sync sg0 peers.json", "the whole table at once; - reads stdin"),
            ("segue peer list sg0 -j", "the table with its counters"),
        ],
        more: crate::peer::MORE,
    },
    Page {
        name: "stop",
        usage: "segue stop NAME... [OPTION]...",
        examples: &[
            ("segue stop sg0", "end sg0 as Ctrl-C does, and wait until it has gone"),
            ("segue stop sg0 eth0-eth1", "a tunnel and a gateway"),
        ],
        more: "\
Exit 1 when there is no such instance, when it is not this user's, or when it
has not ended after 10 s. An instance of segue run would be started again: take
it out of the file and reload instead. Tunnels that share a port end together.
",
    },
    Page {
        name: "set",
        usage: "segue set INSTANCE [KNOB [VALUE]]... [OPTION]...",
        examples: &[
            ("segue set sg0", "every knob with its value"),
            ("segue set gw0 net.gso.dev.eth1.enable_gso 0", "trains for eth1 are cut on entry"),
            ("segue set sg0 gro off", "the names of ethtool -K: gro, gso, tso, tx"),
        ],
        more: "\
A change applies from the next packet on and loses no packet. Of several, all or
none are set. IFNAME is the name of a port:

  net.inet.tcp.gso, net.inet.udp.gso   0 cuts trains of that transport on entry
  net.gso.dev.IFNAME.enable_gso        0 cuts those for IFNAME on entry; 1 in
                                       front of it, if it takes none
  net.gso.dev.IFNAME.max_burst         largest train handed to IFNAME, bytes
  net.gso.dev.IFNAME.tso               0 sends it none even if it takes them
  net.inet.tcp.gro, net.inet.udp.gro   0 merges nothing of that transport
  net.gro.dev.IFNAME.enable_gro        0 merges nothing received there
  net.gro.dev.IFNAME.profile, .max_burst, .max_packets, .hold_us
  net.inet.tcp.ack                     0 aggregates no ACKs
  net.ack.dev.IFNAME.enable_ack        1 aggregates ACKs received there; needs
                                       profile lro; limit: .max_burst
  net.remcsum.dev.IFNAME.enable_remcsum  leave checksums to the receiver
  net.route.groups                     0 looks up the route of every packet
  net.route.source_check               sources taken: off, strict, loose, inside
  net.nat.max_mappings, .max_mappings_per_host   limits of the NAT
  net.napi.dev.IFNAME.weight           most packets of one poll of IFNAME
  net.napi.budget, .busy_poll_us, .defer_wakeups, .flush_timeout_us, and
  net.fq.dev.IFNAME.enable_fq, queues by flow of tunnels: docs/run.md
  net.gso.stats, and as well for gro, ack, remcsum, napi   read only

gro, gso, tso and tx take on and off, and set enable_gro, enable_gso, tso and
enable_remcsum of every port that has it.
A tunnel joins under the name of its interface and sends under the name udp.
The file of segue run and the option --set take the same names.
",
    },
    Page {
        name: "run",
        usage: "segue run -c FILE [OPTION]...",
        examples: &[
            ("segue run -c segue.toml --check", "what would run, or file, line and column of what is wrong"),
            ("segue run -c segue.toml", "all of it until Ctrl-C; segue reload reads it again"),
        ],
        more: "\
The file is TOML:

  [[tunnel]]                    # any number; keys are the words
  dev = \"sg0\"
  remote = \"198.18.0.2\"
  encap = \"gue\"
  encap-remcsum = true          # switches are true or false
  addr = [\"198.19.0.1/30\"]      # what may be given several times is a list
  net.inet.udp.gso = 0          # knobs as in segue set

  [[gateway]]                   # in, out, and the options without dashes
  in = \"eth1\"
  out = \"tap:lro0\"
  hold-us = 50

Each instance has a process of its own. segue reload, or SIGHUP, reads the file
again: unchanged instances continue, changed knobs are set, the rest is stopped
or started; unchanged tunnels that share a port lose no packets. If the file is
wrong or an instance does not start, what runs stays as it is. An instance that
ends by itself is started again. More in docs/run.md.

Signals: SIGINT and SIGTERM end all, SIGUSR1 writes all counters. systemd is
told of readiness and reloads (Type=notify). Exit status: 0 done, 1 failed, 2
used wrongly.
",
    },
    Page {
        name: "fleet",
        usage: "segue fleet etcd --endpoints URL[,URL]... --iface DEV [OPTION]...",
        examples: &[
            (
                "segue fleet etcd --endpoints https://198.18.0.1:2379 \\\n      --cacert ca.pem --iface eth0 --dev sg0",
                "sg0 is one more node of flannel",
            ),
            ("segue fleet etcd --help", "all options"),
        ],
        more: "\
etcd: leases a subnet in flannel's registry, and keeps the peers of a tunnel
equal to the leases of the other hosts, until SIGTERM. While etcd is out of
reach, the table stays. The tunnel is started before, or later, with:
  segue tunnel dev sg0 peers none local ADDR listen vxlan:8472 ...
It runs the program segue-fleet, from the directory of segue or libexec. More in
docs/fleet.md.
",
    },
    Page {
        name: "reload",
        usage: "segue reload [SERVICE|FILE] [OPTION]...",
        examples: &[
            ("segue reload", "the only service of this host reads its file again"),
            ("segue reload /etc/segue/blue.toml", "the service of that file, or its name"),
            ("segue reload --upgrade", "after the program was replaced: no packet is lost"),
        ],
        more: "\
The command waits until all of the file is in force, and says what was done. If
the file is wrong or an instance does not start, it prints the errors and exits
with 1, and what runs stays as it is. SIGHUP to segue run does the same, without
an answer. A service has the name of its file, without .toml; its socket is
NAME.service beside the control sockets, for its owner and root.

--upgrade: after a new program has replaced the running one (a package does this
itself), the service executes it in its own process, and each tunnel continues
in a new process that takes over its interface and sockets. Gateways, adapters,
and tunnels with a trace or a guest keep the program that they have until they
are restarted; the answer names them.
",
    },
    Page {
        name: "doctor",
        usage: "segue doctor [LINK]... [OPTION]...",
        examples: &[
            ("segue doctor", "a table with a remedy for what is missing"),
            ("segue doctor eth1", "the same, with the offloads of that link"),
            ("segue doctor -j", "the same for programs and bug reports"),
        ],
        more: "\
Nothing of the host is changed: devices are tried in a network namespace of
their own where the kernel allows one. Exit 1 when a tunnel cannot run here.
Without LINK, the offloads of up to 8 links that are up are checked.
",
    },
    Page {
        name: "lab",
        usage: "segue lab [OPTION]...",
        examples: &[
            ("segue lab", "the demonstration: one table, about a minute"),
            ("segue lab --link veth --family 6 --runs 5", "another link, IPv6 only, more runs"),
            ("segue lab --keep", "two hosts to inspect"),
        ],
        more: "\
Two network namespaces and a link of 1500 bytes between them; rows are measured
in turn. It needs iperf3, and root or a user namespace. Nothing is left behind;
if a lab is killed with SIGKILL, the next one removes what is left: a control
group and the processes in it.
",
    },
    Page {
        name: "bench",
        usage: "segue bench NAME|all|compare OLD NEW|report FILE... [OPTION]...",
        examples: &[
            ("segue bench lro", "receiving: one table, about five minutes"),
            ("segue bench gso --rows \"tcp6 quota=50\"", "some rows of one protocol"),
            ("segue bench compare old.json new.json", "what changed beyond the spread"),
        ],
        more: "\
all runs each, and writes segue-report.html and segue-report.json. compare exits
1 where a case became worse; report makes the page of files that -j has printed.

lro     receiving: LRO, the kernel with and without GRO
ack     sending: ACK aggregation
gso     sending: late segmentation, fragments, NAT on trains
rco     tunnels with and without remote checksum offload
tunnel  segue, kernel VXLAN, wireguard-go, fastd, no tunnel; rates without loss
napi    the LAN78xx driver's two forms, in a model

Hosts in network namespaces, the one under test on a processor of its own; rows
are measured in turn, medians shown. It needs root, iperf3, tc, two cores, and a
machine that does nothing else; napi is a model and needs none of it. What the
figures mean is in docs/bench.md.
",
    },
    Page {
        name: "pcap",
        usage: "segue pcap merge|split|decap|verify|stat IN [OUT] [OPTION]...",
        examples: &[
            ("segue pcap stat in.pcap", "what it contains, and how much would merge"),
            ("segue pcap split big.pcap wire.pcap", "what was on the wire, for replay and analysis"),
            ("segue pcap merge in.pcap out.pcapng", "trains, as GRO makes them"),
        ],
        more: "\
pcap and pcapng, of any size, from and to pipes (-). Each command has its own
help: segue pcap merge --help. Exit status: 0 done, 1 failed, bad packets found
or the file is cut, 2 used wrongly, 130 interrupted.
",
    },
    Page {
        name: "lan78xx",
        usage: "segue lan78xx list|up|model [OPTION]...",
        examples: &[
            ("segue lan78xx model --wire tap:cable0", "an adapter for any driver, over USB/IP"),
            ("segue lan78xx up --usb usbip://127.0.0.1/1-1", "an adapter as the interface lan0"),
        ],
        more: "Each command has its own help. More in docs/lan78xx.md.\n",
    },
    Page {
        name: "schema",
        usage: "segue schema stat|set|nat|peer|lab|bench|pcap|lan78xx",
        examples: &[
            ("segue schema stat -p", "the schema of segue.stat/1"),
            ("segue schema lab", "of segue.bench/1"),
            ("segue schema pcap", "of all that segue pcap -j prints"),
        ],
        more: "",
    },
    Page {
        name: "completions",
        usage: "segue completions bash|zsh|fish",
        examples: &[
            ("segue completions bash > /etc/bash_completion.d/segue", "for all users, as root"),
            ("segue completions fish > ~/.config/fish/completions/segue.fish", "for this user"),
        ],
        more: "\
The script asks this program what may come next: commands, options and their
values, the words of a tunnel, names of running instances, knobs, interfaces.
",
    },
    Page {
        name: "help",
        usage: "segue help [COMMAND [SUBCOMMAND]]",
        examples: &[("segue help tunnel", "the same as segue tunnel --help"), ("segue help", "all commands")],
        more: "",
    },
];

/// The examples of the whole program.
pub(crate) const EXAMPLES: &[(&str, &str)] = &[
    ("segue lab", "two hosts, a tunnel between them, one table"),
    (FIRST_TUNNEL, "a tunnel until Ctrl-C; the other end has the addresses turned round"),
    ("segue stat sg0 --why", "what it does, and why"),
];
