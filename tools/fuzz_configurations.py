"""Configuration files of `segue run` for tools/fuzz-seeds: each rule about a table, kept and broken."""

TO4, TO6 = 'remote = "198.18.0.2"', 'remote = "2001:db8::2"'
GUE, VXLAN, TABLE = 'encap = "gue"', 'mode = "vxlan"\nid = 1', 'peers = "none"\nlocal = "198.18.0.1"'


def document(kind, tables):
    """A file with one table of this kind for each text, which has its keys; an interface is called by its number."""
    dev = (lambda number, keys: "" if "dev = " in keys or kind not in ("tunnel", "lan78xx") else f'dev = "d{number}"\n')
    return "".join(f"[[{kind}]]\n{dev(number, keys)}{keys}\n" for number, keys in enumerate(tables))


def port(number, *keys):
    """Keys of a tunnel with a UDP port of its own, so that it shares no instance with others."""
    return "\n".join((*keys, f"port = {number}"))


# What the parser of keywords, and the plan of a tunnel, refuse: one rule in each table.
REFUSED = [
    f"{TO4}\n{GUE}\nencap-csum = false\nencap-remcsum = true",
    f"{TO4}\n{VXLAN}\nudpcsum = false\nremcsumtx = true",
    f"{TO6}\n{VXLAN}\nudp6zerocsumtx = true\nremcsumtx = true",
    f'{TO4}\ndev = "vhost:"',
    f'{TO4}\ndev = "vhost:/run/vm1.sock"',
    f'{TO4}\n{VXLAN}\ndev = "vhost:/run/vm1.sock"\naddr = "198.19.0.1/30"',
    f'{TO4}\n{VXLAN}\ndev = "vhost:/run/vm1.sock"\nworkers = 2',
    f'{TO4}\nlisten = "vxlan"',
    f"{TABLE}\n{GUE}",
    f'{TABLE}\nmode = "sit"',
    'peers = "none"',
    f'{TABLE}\nlisten = "gue"\nid = 5',
    f'{TABLE}\nlisten = "vxlan"\nmode = "eth"\nlladdr = "02:00:00:00:00:01"',
    f'{TABLE}\nlisten = "gue,fou"\nmode = "eth"',
    f'{TABLE}\nlisten = "vxlan"\nlladdr = "01:00:00:00:00:01"',
    f"{TABLE}\nworkers = 2",
    f"{TO4}\n{VXLAN}\nsrcport = [5, 6]\nworkers = 4",
    f"{TO4}\n{VXLAN}\nsrcport = [6, 5]",
    f"{TO4}\n{VXLAN}\nsrcport = [5, 6]\nencap-sport = 7",
    f"{TO4}\n{VXLAN}\n{GUE}",
    f"{TO4}\nencap-dport = 5",
    f'{TO4}\nmode = "vxlan"',
    f'{TO4}\n{VXLAN}\nfdb = ["02:00:00:00:00:01,2001:db8::3"]',
    f'{TO4}\n{VXLAN}\nfdb = ["01:00:00:00:00:01,198.18.0.3"]',
    f'{TO6}\n{VXLAN}\nfdb = ["02:00:00:00:00:01,fe80::3"]',
    f'{TO4}\nmode = "eth"',
    *[f'{TO4}\nmode = "{mode}"' for mode in ("ip6tnl", "ipip6", "ip6ip6", "ip6gre", "ip6gretap")],
    f'{TO4}\nlocal = "2001:db8::1"',
    f'{TO4}\nlocal = "224.0.0.1"',
    f'{TO4}\nlocal = "198.18.0.2"',
    'remote = "224.0.0.1"',
    f'{TO6}\nlocal = "fe80::1%eth0"',
    'remote = "fe80::2%eth0"\nlocal = "2001:db8::1"',
    'remote = "fe80::2"',
    'remote = "fe80::2%eth0"\nlocal = "fe80::1%eth1"',
    f'{TO4}\nencap = "fou"',
    f'{TO4}\nmode = "ipip"\naddr = "2001:db8::1/64"',
    f'{TO4}\naddr = "255.255.255.255/32"',
    f'{TO4}\naddr = ["198.19.0.1/30", "198.19.0.1/30"]',
    f'{TO4}\nmtu = 1000\naddr = "2001:db8::1/64"',
    f"{TO4}\ntos = 0\ndsfield = 1",
    f"{TO4}\nkey = 1\nikey = 2",
    f"{TO4}\nid = 1",
    "",
    f'{TO4}\ndev = "also"',
]
# Values that no keyword or option takes.
VALUES = [
    f'{TO4}\nmode = "gree"',
    f'{TO4}\nmode = "wireguard"',
    f'{TO4}\nttl = "inherrit"',
    f'{TO4}\ntos = "0x"',
    f"{TO4}\nttl = [1, 2]",
    f"{TO4}\nsrcport = 5",
    f"{TO4}\nsrcport = [0, 5]",
    f"{TO4}\nencap-remcsum = 3",
    'remote = "198.18.0.2/30"',
    'remote = "fe80::2%"',
    'remote = "2001:db8::2%eth0"',
    f'{TO4}\nlocal = "host"',
    *[f'{TO4}\naddr = "{prefix}"' for prefix in ("198.19.0.1", "2001:db8::1", "x/30", "2001:db8::1/129", "198.19.0.1/+3")],
    *[f'{TO4}\nfdb = "{entry},198.18.0.3"' for entry in ("02:00:00:00:00", "02:00:00:00:00:01:02", "02:00:00:00:00:+1")],
    f'{TO4}\nfdb = "02:00:00:00:00:01"',
    f'{TABLE}\nlladdr = "02:00"',
    f'{TABLE}\nlisten = "vxlam"',
    f'{TABLE}\nlisten = "wireguard"',
    f'{TABLE}\nlisten = "gue:0"',
    f'{TABLE}\nlisten = "gue,gue:5"',
    'peers = ""',
    f"{TO4}\nmtu = 1500.5",
    f"{TO4}\nmtu = 2026-11-26",
    f"{TO4}\nmtu = {{ a = 1 }}",
    f"{TO4}\nnet.inet.tcp.gso = [1]",
    f'{TO4}\ntrace-size = "x"',
    f'{TO4}\ntrace = ["a", "b"]',
    f"{TO4}\nweak-sandbox = 1",
]
# Tunnels of every kind; each has a port of its own, or an address.
ACCEPTED = [
    port(7000, TO4, GUE, 'fastpath = "on"', 'profile = "strict"', 'gso = "off"', "workers = 2", 'ttl = "auto"'),
    port(7001, TO4, GUE, 'fastpath = "auto"', 'workers = "auto"', 'ttl = "inherit"', "weak-sandbox = false"),
    port(7002, TO6, VXLAN, "udp6zerocsumtx = true", 'df = "set"', "ttl = 0", "learning = false", 'workers = "auto"'),
    port(7003, TO4, 'mode = "geneve"\nid = 2', 'df = "unset"', 'dev = "vhost:/run/vm1.sock,name=vm1"', 'workers = "auto"'),
    port(7004, TO4, 'mode = "gretap"', GUE, "csum = true", "ttl = 0", 'local = "0.0.0.0"', "net.inet.tcp.gso = true"),
    port(7005, 'remote = "fe80::2%eth0"', 'local = "fe80::1%eth0"', 'encap = "fou"', "encap-dport = 5555", "encap-sport = 5"),
    *[f'remote = "2001:db8::{number}2"\nlocal = "2001:db8::{number}"\nmode = "{mode}"'
      for number, mode in enumerate(("ipip6", "ip6ip6", "ip6tnl", "ip6gre", "ip6gretap"), 1)],
    f'{TABLE}\nlisten = "vxlan:7100,gue:7101,fou:7102"\nid = 5\nlladdr = "02:00:00:00:00:01"\nremcsumrx = true\nencap-csum = false',
    'peers = "/tmp/peers.json"\nlocal = "2001:db8::9"\nmode = "eth"\nlisten = "gue:7103"\nencap-remcsum = true\nworkers = "auto"',
    port(7006, 'remote = "peer.example"', GUE, 'trace = "remote"'),
    port(7007, 'remote = "peer.example"', GUE, 'local = "2001:db8::1"'),
]
# Tunnels whose names have no address, and that have another error as well.
NAMES = ['remote = "peer.example"\nmode = "vxlan"', 'remote = "peer.example"\nlocal = "2001:db8::1"\nid = 1']
# Tunnels on one port that clash, and a trace that is not of the first one.
CLASH = [port(7000, TO4, GUE, "key = 1"), port(7000, TO4, GUE, "key = 1"), port(7001, TO4, GUE), port(7001, TO4, GUE, "key = 2", 'trace = "a"')]
GATEWAYS = [
    'in = "a"\nout = "b"\nname = "one"\nno-lro = false\nmore = "c"',
    'in = "c"\nout = "b"\nmore = ["a"]\nname = "two"',
    'name = "ends"',
    'in = [1]\nout = { a = 1 }\nmore = [[1]]',
    'in = "d"\nout = "e"\nname = "a/b"',
    'in = "f"\nout = "tap:"',
    'in = "g"\nout = "h"\nno-lro = 1\nname = ["a"]\nforward = [[1]]\nworkers = 65',
]
ADAPTERS = ['usb = "usbip://"', 'usb = "model"\nchip = "lan9999"\nmac = "ff:ff:ff:ff:ff:ff"', 'usb = "1-2"\nmtu = 70000']

CONFIGURATIONS = {
    "rules": document("tunnel", REFUSED[: len(REFUSED) // 2]),
    "more_rules": document("tunnel", REFUSED[len(REFUSED) // 2 :]),
    "values": document("tunnel", VALUES),
    "accepted": document("tunnel", ACCEPTED),
    "names": document("tunnel", NAMES),
    "clash": document("tunnel", CLASH),
    "gateway_rules": document("gateway", GATEWAYS),
    "adapter_rules": document("lan78xx", ADAPTERS),
    "metrics_empty": "[metrics]\nevery = 5\n",
    "metrics_passed": '[metrics]\nlisten = ["127.0.0.1", "fd:metrics"]\n',
    "metrics_list": '[[metrics]]\nlisten = "127.0.0.1"\nnet.x = 1\n',
    "no_list": "tunnel = 3\ngateway = [1]\nlan78xx = {}\nmetrics = 1\n",
    "many_keys": "[[tunnel]]\n" + "".join(f"zz{number} = 1\n" for number in range(60)),
    "many_tables": document("tunnel", ["x = 1"] * 60),
    "many_values": "[[gateway]]\n" + 'in = "a"\nout = "b"\nforward = [' + ", ".join(['"x"'] * 60) + "]\n",
    "knobs": document("tunnel", [f"{TO4}\nnet = 1", f"{TO4}\n[tunnel.net.inet]\ntcp.gso = 0\nicmp = {{ b = 1, a = 2 }}"]),
    "big_number": document("tunnel", [f"{TO4}\nmtu = 99999999999999999999999999999999999999999999"]),
    "not_utf8": "[[tunnel]]\ndev = \"\udcff\"\n",
}
