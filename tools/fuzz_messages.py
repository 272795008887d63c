"""Messages of the control socket, of a handover, of USB/IP, of netlink and of the adapter's transfers for
tools/fuzz-seeds, beside those that are made there: answers of a service, refusals, and each kind of error."""
import json
import struct

PEER = '{"prefix":"198.19.1.0/24","remote":"198.18.0.2"}'
COUNTERS = '"sent_packets":1,"sent_bytes":2,"received_packets":3,"received_bytes":4'
RELOADED = ('{"reloaded":{"file":"segue.toml","unchanged":["a"],"knobs":["b"],"handed_over":["c"],"tunnels":{"changed":["sg0"],'
            '"added":["sg1"],"removed":["sg2"]},"restarted":["d"],"started":["e"],"stopped":["f"],'
            '"absent":[{"name":"g","reason":"no device"}],"unanswered":[{"name":"h","address":"198.18.0.2","reason":"none"}]}}')
UPGRADED = ('{"upgraded":{"file":"segue.toml","before":"0.1.0","version":"0.2.0","is_new":true,"handed_over":["a"],'
            '"restarted":["b"],"kept":["c"],"failed":["d"]}}')
CONTROL = {
    "service": '{"get":"service"}',
    "reload": '{"reload":{}}',
    "upgrade": '{"upgrade":{}}',
    "topic": '{"get":"weather"}',
    "set_nothing": '{"set":7}',
    "state": '{"service":{"file":"/etc/segue.toml","pid":7,"instances":["sg0"],"absent":["sg1"]}}',
    "reloaded": RELOADED,
    "reloaded_plain": '{"reloaded":{"file":"segue.toml"}}',
    "upgraded": UPGRADED,
    "same_program": '{"upgraded":{"file":"segue.toml","version":"0.1.0"}}',
    "refused": '{"refused":{"text":"segue.toml:1: no","error":{"kind":"usage"}}}',
    "unknown_kind": '{"error":{"kind":"new","message":"m","names_instance":true}}',
    "sync": '{"peers":{"sync":{"generation":1,"peers":[' + PEER + ']}}}',
    "sync_wrong": '{"peers":{"sync":{"peers":[{"remote":1}]}}}',
    "add": '{"peers":{"add":[' + PEER + ']}}',
    "del": '{"peers":{"del":[{"prefix":"198.19.1.0/24"},{"match":"02:00:00:00:00:01"},{"flood":"198.18.0.2"}]}}',
    "keep": '{"peers":{"keep":"peers.json is no table"}}',
    "listed": '{"peers":{"generation":1,"peers":[' + PEER[:-1] + "," + COUNTERS + '}],"refused_peers":[{"number":2,"key":"","why":"w"}]}}',
    "no_table": '{"peers":null}',
    "synced": '{"synced":{"generation":1,"added":1,"replaced":0,"removed":0,"unchanged":0,"refused":1,"refused_peers":[{"number":1,"key":"k","why":"w"}]}}',
}

STATIONS = ('{"peers":[{"match":"00:00:00:00:00:00","remote":"198.18.0.2"},{"match":"01:00:5e:00:00:01","remote":"198.18.0.3"},'
            '{"prefix":"0.0.0.0/0","match":"02:00:00:00:00:01","remote":"::1"},{"remote":"::2"},{"remote":2},{"prefix":"x","remote":"::3"}]}')


def record(kind, name=b"", has_fd=False, number=0):
    """A record of a handover with the two bytes that say its length and whether a descriptor is with it."""
    return bytes([0, has_fd]) + kind + struct.pack(">I", number) + name.ljust(19, b"\0")


HANDOVER = {
    "all": record(b"i", b"sg0", True) + record(b"r", b"", True) + record(b"s", b"", True) + record(b"p", b"", True) + record(b"."),
    "long_name": record(b"i", b"an-interface-name", True) + record(b"."),
    "twice": record(b"i", b"sg0", True) * 2 + record(b"p", b"", True) * 2 + record(b"."),
    "too_many": record(b"r", b"", True) * 6 + record(b"."),
    "request": record(b"?") + record(b"n", b"sg0", False, 7),
    "kind": record(b"x"),
    "without": record(b"i", b"sg0") + record(b"."),
}


def device(speed, identity=(0x0424, 0x7800), interfaces=1):
    head = b"/sys/devices/segue/usb1/1-1".ljust(256, b"\0") + b"1-1".ljust(32, b"\0") + struct.pack(">III", 1, 2, speed)
    return head + struct.pack(">HHH", *identity, 0) + bytes([255, 255, 255, 1, 1, interfaces])


def reply(number, status, data=b""):
    return struct.pack(">IIIIIiIIII", 3, number, 0, 0, 0, status, len(data), 0, 0, 0) + bytes(8) + data


def submit(number, endpoint, length, data=b"", incoming=1, setup=bytes(8)):
    return struct.pack(">IIIIIIIIII", 1, number, 0x10002, incoming, endpoint, 0, length, 0, 0xFFFFFFFF, 0) + setup + data


LIST, IMPORT = bytes([0] * 5 + [2]), bytes([0] * 5 + [4])
answer = lambda code, status=0, version=0x0111: struct.pack(">HHI", version, code, status)
USBIP_CLIENT = {
    "statuses": bytes([1, 1, 0, 0, 0, 0]) + reply(1, -108) + reply(2, -75) + reply(3, -110) + reply(4, -12) + reply(5, -71),
    "statuses_more": bytes([1, 1, 0, 0, 0, 1]) + reply(1, -2) + reply(2, -19) + reply(3, -121) + reply(4, -1) + reply(5, -32) + reply(6, 0),
    "command": bytes([1, 1, 0, 0, 0, 0]) + struct.pack(">I", 9) + reply(1, 0)[4:],
    "record_full": bytes(6) + device(2),
    "record_super": bytes(6) + device(5),
    "list": LIST + answer(5) + struct.pack(">I", 2) + device(3) + bytes(4) + device(2, (1, 2), 3) + bytes(12),
    "list_none": LIST + answer(5) + bytes(4),
    "list_refused": LIST + answer(5, 1),
    "list_many": LIST + answer(5) + b"\xff" * 4 + device(3),
    "list_no_text": LIST + answer(5) + struct.pack(">I", 1) + b"\xff" * 312,
    "import": IMPORT + answer(3) + device(3) + reply(1, 0),
    "import_stalls": IMPORT + answer(3) + device(5) + reply(1, -32),
    "import_speed": IMPORT + answer(3) + device(1),
    "import_cut": IMPORT + answer(3) + device(3)[:100],
    "import_refused": IMPORT + answer(3, 1),
    "import_version": IMPORT + answer(3, 0, 0x0106) + device(3),
    "import_answer": IMPORT + answer(5) + device(3),
    "list_late": bytes([0] * 5 + [2 | 8]) + answer(5) + struct.pack(">I", 1) + device(3) + bytes(4),
} | {
    f"import_{name}": bytes([0] * 5 + [4 | how]) + answer(3) + device(3, identity) + more
    for name, how, identity, more in (
        ("late", 8, (0x0424, 0x7800), reply(1, 0)), ("guarded", 8 | 16, (0x0424, 0x7800), reply(1, 0)), ("stopped", 16 | 32, (0x0424, 0x7800), reply(1, 0)),
        ("too_late", 16 | 64, (0x0424, 0x7800), reply(1, 0)), ("silent", 8, (0x0424, 0x7800), b""), ("wanted", 128, (0x0424, 0x7800), reply(1, 0)),
        ("other", 128, (1, 2), reply(1, 0)),
    )
}

ATTACH = struct.pack(">HHI", 0x0111, 0x8003, 0) + b"1-1".ljust(32, b"\0")
USBIP_SERVER = {
    "other": b"\x1f" + ATTACH.replace(b"1-1", b"9-9"),
    "controls": b"\x1f" + ATTACH + submit(1, 0, 4, b"", 1, bytes([0xC0, 0x77, 0, 0, 0, 0, 4, 0]))
                + submit(2, 0, 4, b"abcd", 0, bytes([0x40, 0xA0, 0, 0, 0x10, 0, 4, 0])) + submit(3, 0, 4, b"", 1, bytes([0x40, 0xA0, 0, 0, 0, 0, 4, 0]))
                + submit(4, 0, 0, b"", 0, bytes([0, 9, 1, 0, 0, 0, 0, 0])),
    "direction": b"\x1f" + ATTACH + submit(1, 1, 4, b"", 2),
    "endpoint": b"\x1f" + ATTACH + submit(1, 16, 4),
    "length": b"\x1f" + ATTACH + submit(1, 1, 0x7FFFFFFF),
    "twice": b"\x1f" + ATTACH + submit(1, 1, 512) * 2,
    "many": b"\xff" + ATTACH + b"".join(submit(n, 1, 1 << 20) for n in range(40)),
    "command": b"\x1f" + ATTACH + struct.pack(">I", 9) + bytes(44),
    "list_high": b"\x1f" + struct.pack(">HHI", 0x0111, 0x8005, 0) + b"\x81",
    "list_full": b"\x1f" + struct.pack(">HHI", 0x0111, 0x8005, 0) + b"\x82",
    "taken": b"\x1f" + ATTACH + b"\x84",
    "unplugged": b"\x30" + ATTACH + submit(1, 1, 512) + submit(2, 3, 4) + submit(3, 2, 8, bytes(8), 0) + b"\x98",
    "memory": b"\x30" + ATTACH + b"".join(submit(n, 1, 16 << 20) for n in range(5)),
    "unlink": b"\x01" + ATTACH + submit(1, 1, 512) + struct.pack(">IIIIII", 2, 2, 0x10002, 0, 0, 1) + bytes(24),
}


def netlink(kind, body, number=7):
    return struct.pack("=IHHII", 16 + len(body), kind, 2, number, 0) + body + bytes(-len(body) % 4)


def attribute(kind, value):
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


word = lambda value: struct.pack("=I", value)
hop = lambda number, *more: netlink(104, struct.pack("=BBBBI", 2, 0, 0, 0, 0) + attribute(1, word(number)) + b"".join(more))
NETLINK = {
    "nexthop_encap": hop(8, attribute(5, word(3)), attribute(7, struct.pack("=H", 1))),
    "nexthop_six": hop(8, attribute(6, bytes(15) + b"\1")) + hop(9, attribute(6, b"abc")) + hop(9),
    "nexthop_groups": hop(1, attribute(5, word(7))) + hop(2, attribute(5, word(3)))
                      + hop(3, attribute(2, struct.pack("=IBBHIBBH", 1, 0, 0, 0, 2, 0, 0, 0))) + netlink(3, word(0)),
    "nexthop_error": netlink(2, struct.pack("=i", -95) + bytes(16)),
    "other_number": hop(8)[:8] + word(6) + hop(8)[12:],
}


def received(frame, flags=0, length=None, csum=0, tag=0):
    length = len(frame) + 4 if length is None else length
    whole = struct.pack("<IHHH", flags | length, tag, csum, 0) + frame + bytes(4)
    return whole + bytes(-len(whole) % 4)


FRAME = bytes.fromhex("020000000002020000000001" + "0800") + bytes(50)
RED = 1 << 22
ERRORS = {"fcs": 1 << 16, "dribble": 1 << 17, "soft": 1 << 30, "ip": 1 << 31, "unexplained": 0}
LSO, ALL, TAGS = 1 << 27, 1 << 22 | 1 << 25 | 1 << 26 | 1 << 28 | 1 << 29, (1 << 23, 1 << 24)
command = lambda a, b=0: b"\0" + struct.pack("<II", a, b) + bytes(40)
FRAMING = {name: b"\0" + received(FRAME) + received(FRAME, RED | bit) + received(FRAME) for name, bit in ERRORS.items()} | {
    "runt": b"\0" + received(FRAME[:10]) + received(FRAME),
    "giant": b"\0" + received(FRAME + bytes(9200)),
    "no_fcs": b"\0" + received(FRAME, 0, 3),
    "past_end": b"\0" + received(FRAME, 0, 0x3FFF),
    "short": b"\0" + bytes(9),
    "tagged": b"\1" + received(FRAME, 1 << 23 | 1 << 27, None, 0xBEEF, 0x2005),
    "command": command(ALL | 64),
    "command_lso": command(LSO | 64, 1448 << 16),
    "command_insert": command(TAGS[1] | 64, 5),
    "command_replace": command(TAGS[0] | 64, 5),
    "command_both": command(TAGS[0] | TAGS[1] | 64, 5),
    "command_empty": command(ALL),
}

# Answers of a device: 0xfd and the bytes that are put in the place of the right ones, 0xfe half of them, 0xff an error.
REGISTERS = {
    "zeros": b"\xfd\0\0\0\0" * 60,
    "ones": b"\0" * 8 + b"\xfd\xff\xff\xff\xff" * 200,
    "half": b"\0" * 20 + b"\xfe" * 40,
    "stall_at_once": b"\xff" * 4,
    "stall_sometimes": (b"\0" * 13 + b"\xff") * 60,
    "stall_late": b"\0" * 400 + b"\xff" * 200,
    "odd_late": b"\0" * 300 + b"\xfd\x5a\xa5\x5a\xa5" * 200,
}

EVENTS = {
    "up": '{"event":"up","notes":["one","two"],"plan":{"dev":"sg0"},"schema":"segue.tunnel/1","t":"2026-11-27T00:00:00Z"}',
    "down": '{"after_s":2.5,"event":"down","instance":{"ports":{}},"sequences":{"sg0":4294967295,"sg1":0}}',
    "set": '{"changed":[{"name":"k","before":1,"value":"auto"},{"name":"l","before":0,"value":-1}],"event":"set"}',
    "failure": '{"error":{"kind":"system","message":"m","why":null,"hint":"h","os_error":1,"later":[]}}',
    "later": '{"event":"of_later","changed":7,"handover":null,"instance_name":"\\u0000x","n":[1e300,0.1,-5,18446744073709551615]}',
    "order": '{"zeta":true,"event":"x","handover":[{}],"alpha":{"b":[],"a":""},"zz":false}',
    "dense": '{"event":"set","changed":[{"name":"","before":0,"value":[' + ",".join(["{}"] * 300) + ']}]}',
    "twice": '{"event":"x","event":"y"}', "number": '{"event":7}', "huge": '{"event":"x","later":1e999}',
    "text": "a warning of a library", "cut": '{"event":', "list": '["down"]', "behind": '{"event":"x"} {}', "spaces": ' {"event" : "up"}',
    "deep": '{"event":"x","a":' + "[" * 140 + "]" * 140 + "}", "wrong": '{"event":"up","notes":{}}', "empty": "",
}

MESSAGES = [("event", name, text.encode()) for name, text in EVENTS.items()] + [("event", "bytes", b'{"event":"x","text":"\xff"}')]
MESSAGES += [("control", name, text.encode()) for name, text in CONTROL.items()] + [("peers", "stations", STATIONS.encode())]
for target, seeds in (("handover", HANDOVER), ("usbip_client", USBIP_CLIENT), ("usbip_server", USBIP_SERVER), ("netlink", NETLINK),
                      ("framing", FRAMING), ("registers", REGISTERS)):
    MESSAGES += [(target, name, data) for name, data in seeds.items()]


def requests():
    """Heads of HTTP requests, in one piece and in many."""
    lines = {"metrics": "GET /metrics HTTP/1.1\r\nHost: a\r\n", "open": "GET /metrics?x=/healthz HTTP/1.1\r\nHost: a:1\r\naccept: text/plain, application/openmetrics-text; q=1\r\nAccept: b\r\n",
             "health": "HEAD /healthz HTTP/1.0\r\n", "index": "GET / HTTP/1.1\r\nnothing\r\n", "missing": "GET http://a/metrics HTTP/1.1\r\n", "method": "POST /metrics HTTP/1.1\r\n",
             "version": "GET /metrics HTTP/2\r\n", "short": "GET\r\n", "empty": ""}
    for name, text in lines.items():
        yield name, b"\0" + text.encode() + b"\r\n"
        text = text.replace("\r\n", "\n").encode() + b"\n"
        yield name + "-pieces", b"".join(b"\1" + text[at:at + 8] for at in range(0, len(text), 8))
    yield "bytes", b"\0GET /\xff\xfe HTTP/1.1\r\nAccept: \xff\r\n\r\n"
    for size in (8192, 8193, 9000):
        text = b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 2000
        yield f"long-{size}", b"".join(b"\0" + text[at:min(at + 2048, size)] for at in range(0, size, 2048))
        yield f"long-{size}-ends", b"".join(b"\0" + text[at:min(at + 2048, size)] for at in range(0, size, 2048)) + b"\r\n\r\n"


def cni_calls():
    """Calls of a container runtime: right ones, and each variable and field wrong."""
    commands = {"add": 0, "del": 1, "check": 2, "status": 3, "gc": 4, "version": 5, "none": 6, "hidden": 7}
    net = {"cniVersion": "1.1.0", "name": "fleet", "type": "segue-cni", "ipam": {"type": "host-local", "subnet": "198.19.1.0/24"}}
    local = net | {"ipam": {"type": "host-local"}}
    env = {"container": "c1", "namespace": "/run/netns/a", "interface": "eth0", "subnet": "FLANNEL_NETWORK=198.19.0.0/16\nFLANNEL_SUBNET=198.19.1.1/24\n"}

    def call(how, config, **more):
        texts = [text.encode() for text in (env | more).values()]
        return bytes([how]) + b"".join(bytes([len(text)]) + text for text in texts) + (config if isinstance(config, bytes) else json.dumps(config).encode())

    for name, command in commands.items():
        yield name, call(command, net)
        yield f"{name}-local", call(command, local)
        yield f"{name}-no-file", call(command | 8, local)
        for variable in ("container", "namespace", "interface", "subnet"):
            yield f"{name}-no-{variable}", call(command, local, **{variable: ""})
    for name, config in {"empty": b"", "list": [], "deep": b"[" * 200, "version": net | {"cniVersion": "2.0.0"}, "old": net | {"cniVersion": "0.4.0"}, "name": net | {"name": "../a"}, "no-name": net | {"name": 7}, "dev": net | {"dev": "sg0"},
                         "dev-empty": net | {"dev": ""}, "dev-path": net | {"dev": "a/b"}, "dev-number": net | {"dev": 7}, "ipam": net | {"ipam": 7}, "ipam-path": net | {"ipam": {"type": "../sh"}}, "other-ipam": net | {"ipam": {"type": "dhcp"}},
                         "file": local | {"subnetFile": "/a"}, "mtu": net | {"dev": "lo", "mtu": 1400}, "mtu-zero": net | {"dev": "lo", "mtu": 0}, "mtu-none": net | {"dev": "lo"}, "mtu-small": net | {"dev": "lo", "mtu": 60}, "mtu-text": net | {"dev": "lo", "mtu": "a"},
                         "small-values": b"[" + b'{"a":1},' * 6000 + b"7]", "hidden": net | {"cniVersion": "\x1b[2J"}}.items():
        yield f"config-{name}", call(0, config)
    for name, ips in {"one": [{"address": "198.19.1.5/24"}], "gateway": [{"address": "198.19.1.5/24", "gateway": "198.19.1.1"}], "none": [], "six": [{"address": "2001:db8::1/64"}], "loopback": [{"address": "127.0.0.1/8"}], "no-prefix": [{"address": "198.19.1.5"}],
                      "wrong-gateway": [{"address": "198.19.1.5/24", "gateway": "224.0.0.1"}], "gateway-number": [{"address": "198.19.1.5/24", "gateway": 7}], "error": 7}.items():
        yield f"result-{name}", call(0, {"ips": ips, "code": 7 if name == "error" else None})
    for name, subnet in {"no-line": "a=b", "no-prefix": "FLANNEL_SUBNET=198.19.1.1", "six": "FLANNEL_SUBNET=2001:db8::1/64"}.items():
        yield f"subnet-{name}", call(0, local, subnet=subnet)
    yield "interface-long", call(0, net, interface="a" * 16)
    yield "interface-dots", call(0, net, interface="..")
    yield "container-path", call(0, net, container="../a")
