"""Answers of the members of an etcd cluster, and hosts that flanneld reports to a hook, for tools/fuzz-seeds."""
import base64
import json
import struct

LIST, CONFIG, LEASE, CREATE, WATCH, FOLLOW, OWN_CONFIG = range(7)
LOGIN, MEMBERS, UDP, BEFORE = 8, 16, 32, 64
DOCUMENT, FAILURE, CHUNKS, RAW = range(4)

encode = lambda text: base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()
HEADER = {"cluster_id": "1", "revision": "9"}


def answer(document, kind=DOCUMENT):
    data = document if isinstance(document, bytes) else json.dumps(document, separators=(",", ":")).encode()
    return struct.pack(">BH", kind, len(data)) + data


def entry(key, value, created=3, lease="7"):
    return {"key": encode(key), "create_revision": str(created), "mod_revision": str(created), "version": "1", "value": encode(value), "lease": lease}


def lease(address="198.18.0.2", backend="vxlan", mac="02:00:00:00:00:02", vni=7, offer=None, **more):
    value = {"PublicIP": address, "PublicIPv6": None}
    if backend is not None:
        value["BackendType"] = backend
    if backend == "vxlan":
        value["BackendData"] = {"VNI": vni, "VtepMAC": mac} | ({} if offer is None else {"segue": offer})
    return json.dumps(value | more)


def leases():
    """Entries of the registry, right and wrong in every way."""
    key = lambda name: f"/n/subnets/{name}"
    offer = {"v": 1, "encap": "gue", "port": 6080, "remcsum": True}
    yield "right", [entry(key(f"198.19.{n}.0-24"), lease(f"198.18.0.{n}", mac=f"02:00:00:00:00:0{n}", offer=offer if n % 2 else None), n) for n in range(1, 9)]
    yield "udp", [entry(key(f"198.19.{n}.0-24"), lease(f"198.18.0.{n}", backend=backend), n) for n, backend in enumerate(("udp", None, "", "host-gw"), 1)]
    yield "keys", [entry(name, lease()) for name in (key("198.19.1.0-24"), key("198.19.1.0_24"), key("198.19.1.7-24"), key("198.19.1.0-24&2001:db8:1::-64"), key("198.19.1.0-24&2001:db8:1::1-64"),
                                                    key("198.19.1.0-33"), key("198.19.1.0-024"), key("198.20.1.0-24"), key("0.0.0.0-0"), key("\xff"), "/n/subnets", "/n/subnetsb/198.19.1.0-24", key("a" * 300))]
    values = [lease(), "", "[]", "7", "{" + '"PublicIP":"198.18.0.2"' * 200, lease("127.0.0.1"), lease("198.19.0.1"), lease("198.18.0.9"), lease("198.18.0.10"), lease("a"), lease(None), lease(7), lease(BackendType=7),
              lease(BackendData=None), lease(BackendData=[]), lease(vni=8), lease(vni="8"), lease(vni=None), lease(mac="a"), lease(mac="01:00:00:00:00:01"), lease(mac="02:00:00:00:00:09"), lease(mac=7), lease(publicip="198.18.0.3"),
              lease(BackendData={"VNI": 7, "vni": 7}), lease(backend="none"), lease(backend="ipip"), lease(offer=7), lease(offer={}), lease(offer={"v": 2}), lease(offer={"v": 1}), lease(offer={"v": 1, "encap": "fou"}),
              lease(offer={"v": 1, "encap": "gue", "port": 0}), lease(offer={"v": 1, "encap": "gue", "port": 70000}), lease(offer=offer | {"remcsum": 1}), lease() + " " * 4096]
    for start in range(0, len(values), 12):
        yield f"values-{start}", [entry(key(f"198.19.{1 + n}.0-24"), value, 5) for n, value in enumerate(values[start:start + 12])]
    yield "nested", [entry(key(name), lease(f"198.18.0.{20 + n}"), n) for n, name in enumerate(("198.19.0.0-21", "198.19.1.0-24", "198.19.1.128-25", "198.19.9.0-24", "198.19.9.128-25", "198.19.8.0-22"))]
    yield "own", [entry(key("198.19.3.0-24"), lease("198.18.0.9"), 5), entry(key("198.19.4.0-24"), lease("198.18.0.9"), 3), entry(key("198.19.4.0-26"), lease("198.18.0.9"), 1), entry(key("198.19.0.0-24"), lease("198.18.0.9"), 1)]
    yield "exhausted", [entry(key("198.19.0.0-21"), "a"), entry(key("198.19.8.0-21"), "a")]


def etcd_answers():
    """An input of the target `etcd` for each call, with every kind of answer."""
    page = lambda entries, more=False: {"header": HEADER, "kvs": entries, "more": more, "count": str(len(entries))}
    started = lambda *calls: bytes(calls)
    events = lambda entries: [{"kv": one} for one in entries] + [{"type": "DELETE", "kv": {"key": one["key"], "mod_revision": "12"}} for one in entries[:3]]
    message = lambda **result: json.dumps({"result": {"header": HEADER} | result}, separators=(",", ":")).encode() + b"\n"
    for name, entries in leases():
        entries = sorted(entries, key=lambda one: base64.b64decode(one["key"]))
        backend = UDP if name == "udp" else 0
        yield f"list-{name}", started(LIST | backend) + answer(page(entries))
        yield f"pages-{name}", started(LIST | backend | BEFORE) + answer(page(entries[:2], True)) + answer(page(entries[2:]))
        watched = message(created=True) + message(events=events(entries))
        yield f"watch-{name}", started(WATCH | backend) + answer(watched, CHUNKS)
        yield f"follow-{name}", started(FOLLOW | backend) + answer(page(entries)) + answer(message(created=True) + message(events=events(entries)[1:]), CHUNKS) + answer(page(entries[1:]))
    one = [entry("/n/subnets/198.19.1.0-24", lease())]
    for name, answers in {
        "endless": [answer(page([], True))], "order": [answer(page(one, True)), answer(page(one))], "nothing": [], "no-json": [answer(b"<html>")], "cut": [answer(b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{", RAW)],
        "raw": [answer(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}", RAW)], "status": [answer(b"", FAILURE)], "refused": [answer({"error": "no \x1b[2J rights", "code": 7}, FAILURE)], "message": [answer({"message": "a" * 300, "code": "3"}, FAILURE)],
        "unavailable": [answer({"error": "etcdserver: leader changed", "code": 14}, FAILURE), answer(page(one))], "compacted": [answer({"error": {"grpc_code": 11, "message": "required revision has been compacted"}})],
        "error": [answer({"error": "a", "code": 5})], "redirect": [answer(b"HTTP/1.1 302 Found\r\nLocation: http://a/\r\nContent-Length: 0\r\n\r\n", RAW)], "garbage": [answer(bytes(range(256)), RAW)], "no-list": [answer({"kvs": 7, "header": []})], "types": [answer({"more": [7, {}], "ID": 1.5, "token": None, "code": -7, "message": {"a": 7}, "succeeded": 1 << 63, "kvs": None})],
        "own-mac": [answer(page([entry("/n/subnets/198.19.1.0-24", lease(mac="02:00:00:00:00:09"))]))],
        "small-values": [answer(b'{"kvs":[' + b'{"a":1},' * 6000 + b'{"a":1}]}')],
    }.items():
        for call in (LIST, LIST | MEMBERS):
            yield f"{name}-{call}", started(call) + b"".join(answers)
    token = answer({"header": HEADER, "token": "t"})
    old = answer({"error": "etcdserver: invalid auth token", "code": 16}, FAILURE)
    for name, answers in {"token": [token, answer(page(one))], "old": [token, old, token, answer(page(one))], "older": [token, old, token, old], "none": [answer({})], "no-json": [answer(b"a")], "refused": [answer({"error": "a", "code": 3}, FAILURE)],
                          "gone": [answer({"error": "a", "code": 14}, FAILURE), token, answer(page(one))]}.items():
        yield f"login-{name}", started(LIST | LOGIN | MEMBERS) + b"".join(answers)
    for name, answers in {
        "canceled": [message(canceled=True, cancel_reason="a")], "compact": [message(canceled=True, compact_revision="7")], "diverged": [message(created=True, header={"cluster_id": "2", "revision": "9"})],
        "behind": [message(created=True, header={"cluster_id": "1", "revision": "3"})], "error": [b'{"error":{"grpc_code":14,"message":"a"}}\n'], "no-json": [b"a\n"], "no-line": [b"{}"], "empty": [message(), message(events=[{}, 7])]}.items():
        yield f"watch-{name}", started(WATCH) + answer(b"".join(answers), CHUNKS)
    yield "watch-at-once", started(WATCH) + answer(message(created=True) + message(events=events(one)))
    yield "lease", started(LEASE) + answer({"ID": "77", "TTL": "60"}) + answer(b'{"result":{"ID":"77","TTL":"60"}}\n{"result":{}}\n') + answer({})
    yield "lease-gone", started(LEASE) + answer({"ID": 77}) + answer({"result": {}}) + answer({"error": "a", "code": 5}, FAILURE)
    yield "lease-none", started(LEASE) + answer({"ID": "many"})
    for name, first in (("made", True), ("exists", False)):
        yield f"create-{name}", started(CREATE) + answer({"header": HEADER, "succeeded": first}) + answer({"header": HEADER, "succeeded": True})
    net = {"Network": "198.19.0.0/16"}
    configs = [net, {}, [], 7, {"Network": 7}, {"Network": "198.19.0.0"}, net | {"SubnetLen": 26, "SubnetMin": "198.19.1.0", "SubnetMax": "198.19.2.0"}, net | {"SubnetLen": 17}, net | {"SubnetLen": -1}, {"Network": "198.19.0.0/30"}, {"Network": "198.19.0.0/24"},
               {"Network": "0.0.0.0/0"}, net | {"SubnetMin": "198.18.0.0"}, net | {"SubnetMin": "198.19.0.1"}, net | {"SubnetMin": "a"}, net | {"SubnetMin": "198.19.9.0", "SubnetMax": "198.19.8.0"}, net | {"EnableIPv6": True}, net | {"EnableIPv4": False},
               net | {"EnableIPv4": True, "EnableIPv6": None}, net | {"EnableIPv6": 7}] + [
                   net | {"backend": backend} for backend in (None, 7, {}, {"Type": ""}, {"Type": 7}, {"Type": "udp", "Port": 7}, {"Type": "udp", "Port": 70000}, {"Type": "vxlan"}, {"Type": "vxlan", "VNI": 1 << 24}, {"Type": "vxlan", "VNI": None, "Port": "7"},
                                                              {"Type": "vxlan", "VNI": 9, "GBP": True, "DirectRouting": True}, {"Type": "vxlan", "GBP": 1}, {"Type": "extension"}, {"Type": "host-gw"})]
    for number, config in enumerate(configs):
        yield f"config-{number}", started(CONFIG) + answer(page([entry("/n/config", json.dumps(config))]))
    yield "config-none", started(CONFIG) + answer(page([]))
    yield "config-no-json", started(CONFIG) + answer(page([entry("/n/config", "{")]))
    for config in (net, {"Network": "198.19.0.0/20", "SubnetLen": 24, "Backend": {"Type": "vxlan", "VNI": 7}}):
        yield f"own-config-{len(config)}", started(OWN_CONFIG) + answer(page([entry("/n/config", json.dumps(config))])) + answer(page(one))


NO_PRE, GUE_REMCSUM, VXLAN, GUE = range(4)
EARLY, WIDE = 4, 8


def hosts_of_flanneld():
    """An input of the target `hook` for each way in which a host can be right or wrong."""
    def host(subnet, address, data):
        subnet, address, data = (text if isinstance(text, bytes) else text.encode() for text in (subnet, address, data))
        return struct.pack(">BBH", len(subnet), len(address), len(data)) + subnet + address + data

    gue, remcsum = '{"mode":"gue","port":6080}', '{"mode":"gue","port":6080,"remcsum":true}'
    vxlan = lambda mac="02:00:00:00:00:02", vni=7: json.dumps({"mode": "vxlan", "port": 8472, "vni": vni, "mac": mac}, separators=(",", ":"))
    right = ("198.19.3.0/24", "198.18.0.3")
    for how in range(16):
        everything = host(*right, gue) + host("198.19.4.0/24", "198.18.0.4", remcsum) + host("198.19.5.0/24", "198.18.0.5", vxlan())
        yield f"right-{how}", bytes([how]) + everything + host(*right, remcsum)
        yield f"overlap-{how}", bytes([how]) + b"".join(host(subnet, "198.18.0.9", gue) for subnet in (
            "198.19.130.0/24", "198.19.130.0/25", "198.19.200.64/26", "198.19.200.0/24", "198.19.128.0/17", "198.19.3.0/25", "198.19.3.128/26", "198.19.3.0/24", "198.19.2.0/23"))
    for name, subnet, address in (("no-length", "198.19.3.0", right[1]), ("sign", "198.19.3.0/+4", right[1]), ("zero", "198.19.3.0/024", right[1]), ("long", "198.19.3.0/33", right[1]), ("host-bits", "198.19.3.7/24", right[1]),
                                  ("six", "2001:db8:1::/64", right[1]), ("network", "198.19.0.0/16", right[1]), ("all", "0.0.0.0/0", right[1]), ("outside", "198.20.3.0/24", right[1]), ("own", "198.19.1.0/25", right[1]),
                                  ("text", b"\xff\x1b[2J", right[1]), ("empty", "", ""), ("address-six", right[0], "2001:db8::3"), ("address-zero", right[0], "198.18.0.03"), ("address-none", right[0], "0.0.0.0"),
                                  ("loopback", right[0], "127.0.0.1"), ("broadcast", right[0], "255.255.255.255"), ("inside", right[0], "198.19.7.7"), ("own-address", right[0], "198.18.0.1"), ("address-text", right[0], "a" * 200)):
        for how in (GUE, GUE | EARLY):
            yield f"{name}-{how}", bytes([how]) + host(subnet, address, gue)
    for name, data in {
        "empty": "", "list": '["gue",6080]', "no-json": "{", "number": "7", "mode": '{"mode":"teleport","port":1}', "port-zero": '{"mode":"gue","port":0}', "port-large": '{"mode":"gue","port":65536}', "port-text": '{"mode":"gue","port":"6080"}',
        "port-twice": '{"mode":"gue","port":1,"port":2}', "port-none": '{"mode":"gue"}', "remcsum-number": '{"mode":"gue","port":1,"remcsum":1}', "more": '{"mode":"gue","port":1,"new":[{"a":[]}]}', "gue-mac": '{"mode":"gue","port":1,"vni":9,"mac":"02:00:00:00:00:03"}',
        "fou": '{"mode":"fou","port":1,"remcsum":true}', "geneve": '{"mode":"geneve","port":1,"vni":7}', "vni-large": '{"mode":"vxlan","port":1,"vni":16777216,"mac":"02:00:00:00:00:02"}', "vni-negative": '{"mode":"vxlan","port":1,"vni":-1}', "vni-other": vxlan(vni=8),
        "vni-none": '{"mode":"vxlan","port":1,"mac":"02:00:00:00:00:02"}', "mac-none": '{"mode":"vxlan","port":1}', "mac-zero": vxlan("00:00:00:00:00:00"), "mac-group": vxlan("01:00:00:00:00:01"), "mac-own": vxlan("02:00:00:00:00:01"), "mac-text": vxlan("a"),
        "long": gue + " " * 5000, "space": " \n" + gue, "nested": "{" + '"a":[' * 300}.items():
        for how in (GUE_REMCSUM, VXLAN):
            yield f"data-{name}-{how}", bytes([how]) + host(*right, data)
    yield "none", b""
    yield "cut", bytes([GUE]) + host(*right, gue)[:20]
