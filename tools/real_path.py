"""A path of limited rate between two interfaces, and loads over it, each a process of its own;
tools/figures.d/real-paths starts them in the network namespaces of its hosts.

    real_path.py relay LEFT RIGHT MBIT RTT JITTER LOSS REORDER SEED    both times in ms, both shares in per cent; it
                                                                       prints `ready`, then relays
    real_path.py serve                                                 counts what comes, on port 5203
    real_path.py bulk ADDRESS CONTROL SECONDS COUNT                    connections at once: their rate, and the mean of
                                                                       the senders' estimates, as JSON
    real_path.py short ADDRESS CONTROL COUNT AT_ONCE BYTES             duration of each of many connections, as JSON

The relay has a queue of one bandwidth-delay product for each direction (64 kB at least), and drops what comes beyond.
Loss and reordering concern what goes from left to right, delay and jitter both directions; jitter alone changes no
order. A frame that is reordered is overtaken by four others. CONTROL is the congestion control."""
import heapq
import json
import random
import select
import socket
import struct
import sys
import threading
import time

PORT = 5203
# Of <linux/if_packet.h> and <asm-generic/socket.h>.
SOL_PACKET, PACKET_IGNORE_OUTGOING, ETH_P_ALL, SO_RCVBUFFORCE = 263, 23, 3, 33
# Longest frame of a link with an MTU of 1500: a longer one is a train, which no wire carries.
LONGEST = 1518
# Frames that are taken from one interface at a time.
TURN = 64
PATIENCE = 120


def interface(name):
    """Returns a socket for all frames that an interface receives."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    end.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    end.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
    end.bind((name, ETH_P_ALL))
    end.setblocking(False)
    return end


def relay(left, right, mbit, rtt, jitter, loss, reorder, seed):
    """Forwards frames between two interfaces until it is killed."""
    chance = random.Random(int(seed))
    ends = [interface(left), interface(right)]
    rtt, jitter, loss, reorder = float(rtt) / 1e3, float(jitter) / 1e3, float(loss) / 100, float(reorder) / 100
    each_byte = 8 / (float(mbit) * 1e6)
    # How long a frame may wait for the wire.
    longest_wait = max((64 << 10) * each_byte, rtt)
    # When the wire is free, and when the last frame in order arrives, in each direction.
    free, last = [0.0, 0.0], [0.0, 0.0]
    waiting, number = [], 0
    print("ready", flush=True)
    while True:
        delay = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 1.0
        readable, _, _ = select.select(ends, [], [], delay)
        now = time.monotonic()
        for end in readable:
            way = ends.index(end)
            for _ in range(TURN):
                try:
                    frame = end.recv(1 << 16)
                except BlockingIOError:
                    break
                if len(frame) > LONGEST:
                    sys.exit(f"a train of {len(frame)} bytes is on the wire")
                is_data = way == 0 and frame[12:14] == b"\x08\x00"
                begin = max(now, free[way])
                if is_data and chance.random() < loss or begin - now > longest_wait:
                    continue
                free[way] = begin + len(frame) * each_byte
                due = free[way] + rtt / 2
                if is_data and chance.random() < reorder:
                    due += 4.5 * LONGEST * each_byte
                else:
                    due = last[way] = max(due + jitter * chance.random(), last[way])
                number += 1
                heapq.heappush(waiting, (due, number, way, frame))
        while waiting and waiting[0][0] <= now:
            _, _, way, frame = heapq.heappop(waiting)
            try:
                ends[1 - way].send(frame)
            except OSError:
                # The queue of the interface is full, which is a loss like any other.
                pass


def answer(connection):
    """Counts the bytes of a connection up to its end, and sends back their number and the time that they took."""
    room, count, begin, end = bytearray(1 << 18), 0, None, 0.0
    while got := connection.recv_into(room):
        end = time.monotonic()
        begin = end if begin is None else begin
        count += got
    connection.sendall(struct.pack("!Qd", count, end - (end if begin is None else begin)))
    connection.close()


def serve():
    listener = socket.create_server(("", PORT), backlog=256)
    while True:
        threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()


def connect(address, control):
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # Before the first segment: a connection that has begun with another one may keep its pacing.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
    connection.settimeout(PATIENCE)
    connection.connect((address, PORT))
    return connection


def finish(connection):
    """Ends sending. Returns how many bytes arrived, and in what time."""
    connection.shutdown(socket.SHUT_WR)
    said = b""
    while len(said) < 16:
        part = connection.recv(16 - len(said))
        if not part:
            sys.exit("the other end gave up")
        said += part
    connection.close()
    return struct.unpack("!Qd", said)


def flow(address, control, seconds, found):
    """Sends for some time over one connection; adds to `found` what arrived, in what time, and the sender's
    estimates."""
    connection, data = connect(address, control), bytes(1 << 16)
    # A slow path must not have seconds of data to send when the time is over.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 1 << 17)
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        connection.sendall(data)
    # `struct tcp_info` of Linux.
    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    count, took = finish(connection)
    word = lambda at: struct.unpack_from("=I", info, at)[0]
    found.append({
        "mbps": count * 8e-6 / max(took, 1e-6), "rtt_ms": word(68) / 1e3, "reordering": word(88),
        "again": word(100) / max(word(156), 1), "pacing_mbps": struct.unpack_from("=Q", info, 104)[0] * 8e-6,
        "delivery_mbps": struct.unpack_from("=Q", info, 160)[0] * 8e-6,
    })


def bulk(address, control, seconds, flows):
    found = []
    at_once(int(flows), lambda: flow(address, control, seconds, found))
    if len(found) != int(flows):
        sys.exit(f"only {len(found)} of {flows} connections got through")
    mean = {name: sum(one[name] for one in found) / len(found) for name in found[0]}
    print(json.dumps({**mean, "mbps": mean["mbps"] * len(found)}))


def at_once(count, work):
    """Runs `work` so many times at once."""
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def short(address, control, count, threads, size):
    took, data = [], bytes(int(size))

    def some(number):
        for _ in range(number):
            begin = time.monotonic()
            connection = connect(address, control)
            connection.sendall(data)
            finish(connection)
            took.append((time.monotonic() - begin) * 1e3)

    at_once(int(threads), lambda: some(int(count) // int(threads)))
    if len(took) != int(threads) * (int(count) // int(threads)):
        sys.exit(f"only {len(took)} of {count} connections got through")
    print(json.dumps(sorted(took)))


if __name__ == "__main__":
    {"relay": relay, "serve": serve, "bulk": bulk, "short": short}[sys.argv[1]](*sys.argv[2:])
