#!/usr/bin/env python3
"""An IPAM plugin with the calls and documents of host-local: addresses of ipam.ranges, one file each in ipam.dataDir,
else in the folder of the network that host-local uses.

With ipam.give and ipam.gateway it answers with those addresses instead, with ipam.more with these addresses of the same
gateway as well, and with ipam.times with one address several times, which lets the caller fail after it.
"""
import ipaddress
import json
import os
import sys

command = os.environ["CNI_COMMAND"]
config = json.load(sys.stdin)
ipam = config["ipam"]
folder = ipam.get("dataDir", f"/var/lib/cni/networks/{config['name']}")
os.makedirs(folder, exist_ok=True)
owner = "{CNI_CONTAINERID} {CNI_IFNAME}".format_map({"CNI_CONTAINERID": "", "CNI_IFNAME": "", **os.environ})


def reserved():
    return {name: open(os.path.join(folder, name), encoding="utf-8").read() for name in os.listdir(folder)}


def fail(code, text):
    print(json.dumps({"cniVersion": config["cniVersion"], "code": code, "msg": text}))
    sys.exit(1)


if command == "ADD":
    subnet = ipaddress.ip_network(ipam["ranges"][0][0]["subnet"])
    free = [str(address) for address in list(subnet.hosts())[1:] if str(address) not in reserved()]
    with open(os.path.join(folder, free[0]), "x", encoding="utf-8") as file:
        file.write(owner)
    given = ipam.get("give", f"{free[0]}/{subnet.prefixlen}")
    ips = [{"address": given, "gateway": ipam.get("gateway", str(next(subnet.hosts())))}] * ipam.get("times", 1)
    ips += [{**ips[0], "address": address} for address in ipam.get("more", [])]
    print(json.dumps({"cniVersion": config["cniVersion"], "ips": ips, "dns": {}}))
elif command == "DEL":
    for name in [name for name, holder in reserved().items() if holder == owner]:
        os.remove(os.path.join(folder, name))
elif command == "CHECK":
    if owner not in reserved().values():
        fail(100, "no address is reserved")
elif command == "GC":
    kept = [f"{one['containerID']} {one['ifname']}" for one in config["cni.dev/valid-attachments"]]
    for name in [name for name, holder in reserved().items() if holder not in kept]:
        os.remove(os.path.join(folder, name))
elif command != "STATUS":
    fail(4, f"unknown CNI_COMMAND: {command}")
