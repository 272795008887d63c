"""Shared parts of the measurements of the in-kernel path: rows of `segue bench tunnel` in paired rounds, each beside
the kernel's VXLAN, with the 90 % interval of its ratio."""
import json
import math
import os
import statistics
import subprocess
import sys
import time

from measured import SEGUE, Figures

RUNS = int(os.environ.get("RUNS", "7"))
LIMIT = float(os.environ.get("LIMIT", "11"))
# The 95 % quantile of Student's t for that many degrees of freedom, from 1 on.
STUDENT = (6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83, 1.81, 1.80, 1.78, 1.77, 1.76)
# The forms by the path that are compared, by the families inside and outside, as the rows have them.
FORMS = {"IPv4": ("fastpath-ipip", "fastpath-gre", "fastpath-gue", "fastpath-vxlan"),
         "IPv6-in-IPv4": ("fastpath-sit", "fastpath-gre", "fastpath-gue", "fastpath-vxlan"),
         "IPv6": ("fastpath-gre",)}
FLOWS = (1, 4, 64)


def once(words, seconds):
    """The rows of one round, of one sample each; None if it failed, which the program says itself. A round that is cut
    short removes its hosts; where that is for the time, TimeoutExpired is raised."""
    with subprocess.Popen([SEGUE, *words, "-j", "--progress", "never"], stdout=subprocess.PIPE, text=True) as ran:
        try:
            said, _ = ran.communicate(timeout=max(seconds, 1))
        except BaseException:
            ran.terminate()
            ran.communicate()
            raise
    if ran.returncode:
        print(f"a round failed: exit {ran.returncode} {said.strip()}", flush=True)
        return None
    table = json.loads(said)
    for row in table.get("skipped", []):
        print(f"left out: {row['name']}: {row['reason']}", flush=True)
    return table["rows"]


def rounds(rows):
    """Returns the metrics of each row, by its labels, as a sample for each round: RUNS rounds, or as many as LIMIT
    minutes leave room for. One of them may fail."""
    words = ["bench", "tunnel", "--runs", "1", *(word for row in rows for word in ("--rows", row))]
    print(f"command: segue {' '.join(words)}", flush=True)
    print(f"congestion control of every row: reno; {RUNS} rounds of this, at most {LIMIT:g} minutes", flush=True)
    begin, longest, found, done, failed = time.monotonic(), 0.0, {}, 0, 0
    while done < RUNS and failed < 2:
        start = time.monotonic()
        left = begin + 60 * LIMIT - start
        if done + failed and left < longest:
            break
        try:
            table = once(words, left)
        except subprocess.TimeoutExpired:
            break
        longest = max(longest, time.monotonic() - start)
        if table is None:
            failed += 1
            continue
        for row in table:
            case = row["case"]
            key = (case["tunnel"], case["link"], case["family"], case.get("load", "tcp-1"))
            for name, metric in row["metrics"].items():
                found.setdefault(key, {}).setdefault(name, {})[done] = metric["samples"][0]
        done += 1
    minutes = (time.monotonic() - begin) / 60
    if not done:
        sys.exit(f"segue bench tunnel: no round was done after {minutes:.1f} minutes")
    print(f"{done} of {RUNS} rounds in {minutes:.1f} minutes", flush=True)
    if failed > 1:
        sys.exit("segue bench tunnel: two rounds have failed")
    return found


def interval(ratios):
    """The geometric mean of ratios, and the ends of its 90 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    middle = statistics.mean(logs)
    half = math.inf
    if len(logs) > 1:
        half = STUDENT[min(len(logs) - 2, len(STUDENT) - 1)] * statistics.stdev(logs) / math.sqrt(len(logs))
    return [math.exp(at) for at in (middle, middle - half, middle + half)]


class Rows:
    """The ratios of rows on one kind of link, each beside its aim."""

    def __init__(self, link, found):
        self.link, self.found, self.figures = link, found, Figures()
        self.means = {}

    def beside(self, tunnel, family, load, aim, bases=("vxlan",), slack=1.0):
        """Compares a row with the fastest of `bases` in the same round: throughput beside its aim, if it has one, and
        CPU. It misses where the whole interval lies below the aim times `slack`."""
        key = (tunnel, self.link, family, load)
        mine, others = self.found.get(key, {}), [self.found.get((name, *key[1:]), {}) for name in bases]
        gain, cost = ("gbps", "cpu_s_per_gb") if not load.startswith("rr") else (
            "transactions_per_s", "cpu_us_per_transaction")
        for metric in (gain, cost):
            row = f"{tunnel}, link {self.link}, {load}/{family}: {metric}"
            ratios = []
            for turn, value in mine.get(metric, {}).items():
                known = [other for other in others if turn in other.get(gain, {})]
                best = max(known, key=lambda other, turn=turn: other[gain][turn], default={})
                beside = best.get(metric, {}).get(turn, 0)
                # A busy machine may leave a row of a short round without a packet, or without processor time.
                if value > 0 and beside > 0:
                    ratios.append(value / beside)
            if not ratios:
                self.figures.say(row, math.nan, "a measurement", False)
                continue
            middle, low, high = interval(ratios)
            what = f"{row}, times {' or '.join(bases)} [{low:.2f}, {high:.2f}]"
            if metric == gain and aim is not None:
                self.figures.say(what, middle, f"at least {aim}", high >= slack * aim)
            else:
                print(f"{what} {middle:.3g}", flush=True)
            kind = "VXLAN" if tunnel == "fastpath-vxlan" else "IPIP, SIT, GRE and GUE"
            self.means.setdefault((kind, metric), []).append(middle)

    def mean(self):
        """The geometric mean of all rows so far: throughput at least that of VXLAN, and CPU at most."""
        for (kind, metric), values in sorted(self.means.items()):
            middle = math.exp(statistics.mean(map(math.log, values)))
            what = f"{kind}, link {self.link}, geometric mean of {metric}, times vxlan"
            (self.figures.at_least if metric == "gbps" else self.figures.at_most)(what, middle, 1.0)
