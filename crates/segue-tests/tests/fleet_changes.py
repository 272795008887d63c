"""Changes leases in etcd at a pace: python3 fleet_changes.py COUNT A_SECOND MEMBER,...

Puts leases of 50 subnets from 198.19.101.0/24 on one after the other, each time with another VTEP, and deletes every
third one again. A member that does not answer is left for the next one. Prints `half` when half of the changes are
made.
"""
import base64
import json
import sys
import time
import urllib.error
import urllib.request

count, pace, members = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3].split(",")


def call(path, body):
    data = json.dumps(body).encode()
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            request = urllib.request.Request(members[0] + path, data, {"Content-Type": "application/json"})
            urllib.request.urlopen(request, timeout=5).read()
            return
        except (OSError, urllib.error.URLError):
            members.append(members.pop(0))
            time.sleep(0.05)
    sys.exit("no member takes a change")


begin = time.monotonic()
for number in range(count):
    if number == count // 2:
        print("half", flush=True)
    subnet = 101 + number % 50
    key = base64.b64encode(f"/coreos.com/network/subnets/198.19.{subnet}.0-24".encode()).decode()
    mac = f"5a:65:bd:00:{number >> 8 & 255:02x}:{number & 255:02x}"
    value = {"PublicIP": f"198.18.1.{subnet}", "PublicIPv6": None, "BackendType": "vxlan",
             "BackendData": {"VNI": 1, "VtepMAC": mac}}
    if number % 3 == 2:
        call("/v3/kv/deleterange", {"key": key})
    else:
        text = json.dumps(value, separators=(",", ":"))
        call("/v3/kv/put", {"key": key, "value": base64.b64encode(text.encode()).decode()})
    time.sleep(max(0.0, begin + (number + 1) / pace - time.monotonic()))
