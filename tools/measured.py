"""Shared parts of the measurements of tools/figures.d: rows of `segue bench` and `segue lab`, and a line for each
figure."""
import glob
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

SEGUE = os.environ.get("SEGUE_BIN", "target/release/segue")
TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# The commit beside which later programs are measured: the last one of release 0.1.
OLD_COMMIT = "d2d84e5"
# Rounds that an aim by the 90 % interval of the rounds' ratios needs: that of few rounds reaches nearly everything.
LEAST_ROUNDS = 15
# When this measurement began. The build of an earlier program does not count.
BEGIN = time.monotonic()
# A measurement that is ended by a time limit removes what it has made.
signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))


def built_beside(name):
    """A program of integrations/beside, just built."""
    out = os.path.join(os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(TOP, "target"))), "beside")
    manifest = os.path.join(TOP, "integrations/beside/Cargo.toml")
    command = ["cargo", "build", "--quiet", "--release", "--locked", "--manifest-path", manifest, "--target-dir", out]
    subprocess.run([*command, "--bin", name], check=True)
    return os.path.join(out, "release", name)


def of_commit(commit):
    """The released program of an earlier commit: the one that SEGUE_OLD names, or it is built below target, from the
    sources that git has, with the compiler of this one. A second call finds it built."""
    if given := os.environ.get("SEGUE_OLD"):
        return os.path.abspath(given)
    target = os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(TOP, "target")))
    made = os.path.join(target, "of-commit", commit)
    program = os.path.join(made, "release/segue")
    if not os.path.exists(program):
        start, source = time.monotonic(), os.path.join(made, "source")
        os.makedirs(source, exist_ok=True)
        archive = subprocess.run(["git", "archive", commit], cwd=TOP, stdout=subprocess.PIPE, check=False)
        if archive.returncode:
            sys.exit(f"the history here has no commit {commit}: git fetch --unshallow, or name its program by SEGUE_OLD")
        subprocess.run(["tar", "-x", "-C", source], input=archive.stdout, check=True)
        print(f"building the program of {commit} in {os.path.relpath(made)}", file=sys.stderr, flush=True)
        words = ["cargo", "build", "--quiet", "--release", "--locked", "-p", "segue-cli", "--target-dir", made]
        subprocess.run(words, cwd=source, check=True)
        global BEGIN
        BEGIN += time.monotonic() - start
    return program


def time_left():
    """Seconds until LIMIT minutes (11) since the start are over."""
    return BEGIN + 60 * float(os.environ.get("LIMIT", "11")) - time.monotonic()


def rounds(runs):
    """Yields the numbers of so many rounds, or of as many, at least one, as LIMIT minutes (11) since the start leave
    room for. A further round is taken to last as long as the longest one so far."""
    longest = 0.0
    for number in range(runs):
        start = time.monotonic()
        if number and time_left() < longest:
            print(f"{number} of {runs} rounds in {(start - BEGIN) / 60:.1f} minutes: no time for more", flush=True)
            return
        yield number
        longest = max(longest, time.monotonic() - start)


def llvm(tool):
    """The newest of the llvm tools, of the compiler or of the system."""
    sysroot = subprocess.run(["rustc", "--print", "sysroot"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    found = glob.glob(f"{sysroot}/lib/rustlib/*/bin/{tool}")
    found += [path for path in (shutil.which(f"{tool}-{version}") for version in range(30, 18, -1)) if path]
    if not found:
        sys.exit(f"no {tool}: rustup component add llvm-tools, or apt-get install llvm-19")
    return found[0]


def rows(*words):
    """The rows of a table of the program as (case, median of each metric); the command is printed."""
    print(f"command: segue {' '.join(words)}", flush=True)
    ran = subprocess.run([SEGUE, *words, "-j", "--progress", "never"], stdout=subprocess.PIPE, text=True, check=False)
    if ran.returncode:
        sys.exit(f"segue {' '.join(words)}: exit {ran.returncode}")
    found = []
    for row in json.loads(ran.stdout)["rows"]:
        found.append((row["case"], {name: metric["median"] for name, metric in row["metrics"].items()}))
    return found


def row(found, **case):
    """The metrics of the one row whose case has these labels."""
    fits = [metrics for labels, metrics in found if all(labels.get(k) == v for k, v in case.items())]
    if len(fits) != 1:
        sys.exit(f"{len(fits)} rows have {case}")
    return fits[0]


def tested(programs, **variables):
    """Runs test programs of segue-tests on SEGUE, each test by itself, with these variables; prints the command.
    Returns what they print, whether all passed, and the lines of the tests that were skipped."""
    command = f"cargo test -p segue-tests {programs} --locked --no-fail-fast -- --nocapture --test-threads 1"
    print("command:", *[f"{name}={value}" for name, value in variables.items()], command, flush=True)
    with tempfile.NamedTemporaryFile("r") as skips:
        environment = {**os.environ, **variables, "SEGUE_BIN": os.path.abspath(SEGUE), "SEGUE_SKIPS": skips.name}
        ran = subprocess.run(command.split(), env=environment, stdout=subprocess.PIPE, text=True, check=False)
        return ran.stdout, ran.returncode == 0, sorted(set(skips.read().splitlines()))


class Figures:
    """Prints each figure beside its aim, and ends with 1 where one was missed."""

    def __init__(self):
        self.missed = 0

    def at_least(self, what, value, aim):
        self.say(what, value, f"at least {aim}", value >= aim)

    def at_most(self, what, value, aim):
        self.say(what, value, f"at most {aim}", value <= aim)

    def reaches(self, what, value, aim, is_met, count):
        """Prints a figure whose interval has to reach the aim, of so many rounds: fewer than LEAST_ROUNDS miss it."""
        if count < LEAST_ROUNDS:
            aim = f"{aim}, in at least {LEAST_ROUNDS} rounds, not {count}"
        self.say(what, value, aim, is_met and count >= LEAST_ROUNDS)

    def say(self, what, value, aim, is_met):
        self.missed += not is_met
        print(f"figure: {what} {value:.3g} (aim: {aim}){'' if is_met else ' MISSED'}", flush=True)

    def no_skips(self, skipped):
        """Prints the lines of skipped tests, which are as good as missed."""
        self.at_most("tests that were skipped, whole or in part:", len(skipped), 0)
        for line in skipped:
            print(f"skipped: {line}")

    def end(self):
        sys.exit(int(bool(self.missed)))


def tree(pid):
    """A process and all that it started."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [pid] + [one for child in file.read().split() for one in tree(int(child))]


FORMS = ['mode = "gre"\nencap = "gue"', 'mode = "ipip"\nencap = "gue"', 'mode = "sit"\nencap = "gue"',
         'mode = "gretap"\nencap = "gue"', 'mode = "gre"\nencap = "fou"', 'mode = "vxlan"\nid = 7',
         'mode = "geneve"\nid = 7', 'mode = "ipip"\nencap = "fou"']


def section(at, remote, kinds):
    """The beginning of the section of tunnel number `at` in a configuration, which further keys may follow. The tunnels
    have `kinds` forms in turn, each with a port of its own."""
    form = at % kinds
    port = "dstport" if "id =" in FORMS[form] else "encap-dport"
    return (f'[[tunnel]]\ndev = "m{at}"\nlocal = "198.18.0.1"\nremote = "{remote}"\n{FORMS[form]}\n'
            f"{port} = {7000 + form}\n")


def rows_of(table):
    """The tunnels of `Many` that have a row in a table of `segue stat`; what it says below the table begins with NAME
    and a colon."""
    return [name for name in (line.split(" ", 1)[0] for line in table.splitlines()) if re.fullmatch(r"m\d+", name)]


class Many:
    """`segue run` with `count` tunnels in `kinds` instances, of as many forms, in a network namespace of its own (needs
    root); `took` is the seconds of the start. A context manager, at whose end all of it is gone."""

    def __init__(self, program, kinds, count=1000):
        self.program, self.kinds, self.count = program, kinds, count
        self.namespace = f"segue-figures-{os.getpid()}"
        self.inside = ["ip", "netns", "exec", self.namespace]
        self.service = None
        self.folder = tempfile.TemporaryDirectory()

    def __enter__(self):
        def run(*words):
            subprocess.run(words, check=True)

        run("ip", "netns", "add", self.namespace)
        try:
            # An idle tunnel has nothing to send: with IPv6 the kernel sends router solicitations into each.
            run(*self.inside, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1")
            run("ip", "-n", self.namespace, "link", "set", "lo", "up")
            run("ip", "-n", self.namespace, "addr", "add", "198.18.0.1/15", "dev", "lo")
            self.env = {**os.environ, "SEGUE_RUNTIME_DIR": f"{self.folder.name}/run"}
            os.mkdir(f"{self.folder.name}/run")
            self.write(64)
            begin = time.monotonic()
            self.service = self.start("run", "-j", "-c", f"{self.folder.name}/c.toml")
            self.took = self.until("ready") - begin
            return self
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        if self.service and self.service.poll() is None:
            self.service.kill()
            self.service.wait()
        subprocess.run(["ip", "netns", "del", self.namespace], check=False)
        self.folder.cleanup()

    def start(self, *words):
        """Starts a command of the program beside the tunnels."""
        return subprocess.Popen([*self.inside, self.program, *words], env=self.env, text=True, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def write(self, change):
        """Writes the file; `change` is the TTL of the first tunnel."""
        with open(f"{self.folder.name}/c.toml", "w", encoding="ascii") as file:
            for at in range(self.count):
                remote = f"198.18.{1 + at // 250}.{1 + at % 250}"
                file.write(section(at, remote, self.kinds) + f"ttl = {change if at == 0 else 64}\n\n")

    def until(self, event):
        """Waits for an event, and returns the time."""
        for line in self.service.stdout:
            found = json.loads(line)
            if found.get("event") == event:
                return time.monotonic()
            if found.get("event") == "reload_refused":
                sys.exit(f"segue run refuses its file: {found.get('reason')}")
        sys.exit(f"segue run ended before the event {event}")

    def stat(self, *words):
        """Seconds of one `segue stat`. Its table, which it prints without further words, must have a row for each
        tunnel."""
        begin = time.monotonic()
        said = subprocess.run([*self.inside, self.program, "stat", *words], env=self.env, check=True, stdout=subprocess.PIPE,
                              text=True).stdout
        took = time.monotonic() - begin
        if not words and (found := sorted(rows_of(said))) != sorted(f"m{at}" for at in range(self.count)):
            sys.exit(f"segue stat has {len(found)} rows, of {len(set(found))} of {self.count} tunnels")
        return took


def used(*pids):
    """Processor seconds of processes and all that they started."""
    total = 0
    for pid in (one for top in pids for one in tree(top)):
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            total += sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13]))
    return total / os.sysconf("SC_CLK_TCK")


def memory(pid):
    """Resident memory of a process and all that it started, MiB. What they share, as the program itself, counts once
    (`Pss`, proc_pid_smaps(5))."""
    total = 0
    for one in tree(pid):
        with open(f"/proc/{one}/smaps_rollup", encoding="ascii") as file:
            total += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return total / 1024


def thousand(program, kinds, count=1000):
    """Seconds that `count` tunnels of `segue run` in `kinds` instances, of as many forms, take to start, for `segue
    stat`, to reload with one changed key and to end; MiB of memory, and per cent of a core when idle. Needs root: it
    makes a network namespace."""
    with Many(program, kinds, count) as many:
        took = {"start": many.took}
        time.sleep(2)
        before = used(many.service.pid)
        time.sleep(10)
        took["idle"] = (used(many.service.pid) - before) * 10
        took["memory"] = memory(many.service.pid)
        took["stat"] = many.stat("-j")
        many.write(63)
        begin = time.monotonic()
        many.service.send_signal(signal.SIGHUP)
        took["reload"] = many.until("reloaded") - begin
        begin = time.monotonic()
        many.service.send_signal(signal.SIGTERM)
        many.service.communicate()
        took["stop"] = time.monotonic() - begin
        return took


median = statistics.median
