"""Writes or lists keys of etcd byte for byte, also those that are not UTF-8: python3 fleet_keys.py URL put|history.

`put` reads a JSON list of pairs from its standard input, key and value, in which each character stands for the byte of
its number, and puts them one by one. `history PREFIX LAST` prints what was ever done to keys that begin with PREFIX, up
to the put of the key LAST, in the same form: `PUT` or `DELETE`, key and value.
"""
import base64
import json
import sys
import urllib.request

url, action, *rest = sys.argv[1:]


def call(path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=60)


def coded(text):
    return base64.b64encode(text.encode("latin-1")).decode()


def plain(code):
    return base64.b64decode(code).decode("latin-1")


if action == "put":
    for key, value in json.load(sys.stdin):
        call("/v3/kv/put", {"key": coded(key), "value": coded(value)}).read()
else:
    prefix, last = rest
    # All keys that begin so: up to the first one behind them.
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    watch = {"create_request": {"key": coded(prefix), "range_end": coded(end), "start_revision": "1"}}
    events = []
    for line in call("/v3/watch", watch):
        for event in json.loads(line)["result"].get("events", []):
            pair = event["kv"]
            events.append((event.get("type", "PUT"), plain(pair["key"]), plain(pair.get("value", ""))))
        if events and events[-1][1] == last:
            break
    print(json.dumps(events))
