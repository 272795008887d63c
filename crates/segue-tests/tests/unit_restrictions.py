#!/usr/bin/python3
"""unit_restrictions UNIT PROGRAM CONFIG: runs the command of a systemd unit under the unit's restrictions, made by
hand.

Runs as root in mount namespaces of its own (unshare --mount). Of the unit it applies the capability sets, the system
call filter, the address families, ProtectSystem=strict with ReadWritePaths, ProtectHome, PrivateTmp, ProtectKernel*,
ProtectControlGroups, the device list, RestrictNamespaces, LockPersonality, MemoryDenyWriteExecute and NoNewPrivileges,
and a user that is not root. A setting that it does not know is an error, so that a new one is not overlooked.
"""
import ctypes
import errno
import json
import os
import subprocess
import sys

import seccomp

UID = 61234
MOUNT_FLAGS = {"ro": 1, "nosuid": 2, "nodev": 4, "noexec": 8, "remount": 32, "bind": 4096, "rec": 16384, "private": 1 << 18}
# Settings that need no action here, and why.
ELSEWHERE = {
    # Read below, or of the service manager alone.
    "Type", "NotifyAccess", "ExecStart", "ExecReload", "Restart", "RestartSec", "RestartPreventExitStatus", "WatchdogSec",
    "User", "Group", "Environment", "LimitNOFILE", "UMask", "SystemCallErrorNumber", "SystemCallArchitectures",
    "ProtectProc", "ProcSubset", "RemoveIPC",  # of other processes
    "AppArmorProfile",  # of a security module that this machine may lack; tests of the profile are in unit.rs
    "ProtectClock", "ProtectHostname", "ProtectKernelModules", "ProtectKernelLogs", "RestrictRealtime",
    "RestrictSUIDSGID",  # capabilities and system calls that the program lacks by the sets below
}
libc = ctypes.CDLL(None, use_errno=True)


def settings(path):
    """Returns the [Service] section: a list of values for each key."""
    found, inside = {}, False
    for line in open(path, encoding="utf-8"):
        line = line.strip()
        if line.startswith("["):
            inside = line == "[Service]"
        elif inside and line and not line.startswith("#"):
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found


def mount(source, target, kind, flags, data=""):
    bits = 0
    for flag in flags.split():
        bits |= MOUNT_FLAGS[flag]
    args = [None if a is None else a.encode() for a in (source, target, kind)]
    if libc.mount(*args, ctypes.c_ulong(bits), data.encode()) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)


def mounts():
    with open("/proc/self/mountinfo", encoding="utf-8") as f:
        return [line.split()[4].replace("\\040", " ") for line in f]


def read_only(path):
    try:
        mount(None, path, None, "remount bind ro nosuid" if path != "/" else "remount bind ro")
    except OSError as error:
        # A mount that another one hides, or one of the container's that does not allow it.
        if error.errno not in (errno.EINVAL, errno.EPERM, errno.EACCES, errno.ENOENT):
            raise


def file_system(unit, program, config, state):
    """Sets up the file system as the unit sees it, and returns the paths of the program and of the configuration in
    it."""
    mount(None, "/", None, "rec private")
    writable = " ".join(unit.get("ReadWritePaths", [])).split()
    os.makedirs("/run/segue", exist_ok=True)
    files = {"segue": program, "segue.toml": config, "unit.py": os.path.abspath(__file__)}
    content = {name: open(path, "rb").read() for name, path in files.items()}
    content["unit.json"] = json.dumps(state).encode()
    mount("tmpfs", "/mnt", "tmpfs", "nodev", "mode=755")
    for name, data in content.items():
        with open("/mnt/" + name, "wb") as f:
            f.write(data)
        os.chmod("/mnt/" + name, 0o755)
    for path in writable:
        mount("tmpfs", path, "tmpfs", "nosuid nodev", f"mode=755,uid={UID},gid={UID}")
    # DevicePolicy=closed with DeviceAllow: the pseudo devices, and the listed ones.
    mount("tmpfs", "/root", "tmpfs", "nosuid", "mode=755")
    devices = ["null", "zero", "full", "random", "urandom"]
    devices += [value.split()[0].removeprefix("/dev/") for value in unit["DeviceAllow"]]
    for name in devices:
        to = "/root/" + name
        os.makedirs(os.path.dirname(to), exist_ok=True)
        status = os.stat("/dev/" + name)
        os.mknod(to, 0o666 | 0o020000, status.st_rdev)
        os.chmod(to, 0o666)
    mount("/root", "/dev", None, "bind")
    mount("tmpfs", "/dev/shm" if os.path.isdir("/dev/shm") else "/tmp", "tmpfs", "nosuid nodev", "mode=1777")
    for path in ("/root", "/home"):  # ProtectHome=yes
        mount("tmpfs", path, "tmpfs", "ro nosuid nodev", "mode=000")
    mount("tmpfs", "/tmp", "tmpfs", "nosuid nodev", "mode=1777")  # PrivateTmp=yes
    mount("proc", "/proc", "proc", "nosuid nodev noexec")
    for path in ("/proc/sys", "/proc/irq", "/proc/bus"):  # ProtectKernelTunables=yes
        if os.path.isdir(path):
            mount(path, path, None, "bind")
    kept = ("/tmp", "/dev", *writable)
    for path in mounts():
        if path != "/proc" and not path.startswith("/dev/") and path not in kept:
            read_only(path)  # ProtectSystem=strict, ProtectControlGroups=yes
    return "/mnt/segue", "/mnt/segue.toml"


def syscalls(words):
    """Returns the system calls in a list of SystemCallFilter=, its groups expanded."""
    names = set()
    for word in words:
        if not word.startswith("@"):
            names.add(word)
            continue
        text = subprocess.run(["systemd-analyze", "syscall-filter", word], check=True, stdout=subprocess.PIPE, text=True).stdout
        names |= syscalls([line.strip() for line in text.splitlines()[1:] if line.strip() and not line.strip().startswith("#")])
    return names


def allowed_calls(unit):
    """Returns the system calls that the lines SystemCallFilter= allow."""
    allowed = syscalls(["@default"])
    for line in unit["SystemCallFilter"]:
        if line.startswith("~"):
            allowed -= syscalls(line[1:].split())
        else:
            allowed |= syscalls(line.split())
    assert unit["SystemCallErrorNumber"] == ["EPERM"] and unit["SystemCallArchitectures"] == ["native"]
    return sorted(allowed)


def load_filter(unit, allowed):
    rules = seccomp.SyscallFilter(defaction=seccomp.ERRNO(errno.EPERM))
    number = lambda name: seccomp.resolve_syscall(seccomp.Arch(), name)
    special = set()
    if unit["MemoryDenyWriteExecute"] == ["yes"]:
        special |= {"mmap", "mprotect"}
        rules.add_rule(seccomp.ALLOW, "mmap", seccomp.Arg(2, seccomp.MASKED_EQ, 4, 0))
        rules.add_rule(seccomp.ALLOW, "mmap", seccomp.Arg(2, seccomp.MASKED_EQ, 6, 4))
        rules.add_rule(seccomp.ALLOW, "mprotect", seccomp.Arg(2, seccomp.MASKED_EQ, 4, 0))
    if unit["RestrictNamespaces"] == ["yes"]:
        # setns of any type, and clone or unshare with a flag of a namespace; clone3 hides its flags.
        special |= {"unshare", "setns", "clone", "clone3"}
        rules.add_rule(seccomp.ALLOW, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, 0x7E020000, 0))
        rules.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
    if unit["LockPersonality"] == ["yes"]:
        special.add("personality")
    special |= {"socket"}
    families = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16, "AF_PACKET": 17}
    for family in " ".join(unit["RestrictAddressFamilies"]).split():
        rules.add_rule(seccomp.ALLOW, "socket", seccomp.Arg(0, seccomp.EQ, families[family]))
    for name in set(allowed) - special:
        if number(name) >= 0:
            rules.add_rule(seccomp.ALLOW, name)
    rules.load()


def main(path, program, config):
    unit = settings(path)
    known = ELSEWHERE | {
        "AmbientCapabilities", "CapabilityBoundingSet", "DevicePolicy", "DeviceAllow", "ReadWritePaths", "ProtectSystem",
        "ProtectHome", "PrivateTmp", "ProtectKernelTunables", "ProtectControlGroups", "RestrictNamespaces", "LockPersonality",
        "MemoryDenyWriteExecute", "NoNewPrivileges", "RestrictAddressFamilies", "SystemCallFilter", "RestrictFileSystems",
    }
    unknown = set(unit) - known
    assert not unknown, f"settings that this test does not make: {unknown}"
    assert unit["ProtectSystem"] == ["strict"] and unit["NoNewPrivileges"] == ["yes"] and unit["DevicePolicy"] == ["closed"]
    command = unit["ExecStart"][0].split()
    assert command[0] == "/usr/bin/segue", command
    capabilities = " ".join(unit["CapabilityBoundingSet"]).split()
    assert sorted(capabilities) == sorted(" ".join(unit["AmbientCapabilities"]).split())
    allowed = allowed_calls(unit)
    program, config = file_system(unit, program, config, {"unit": unit, "allowed": allowed})
    for line in unit["Environment"]:
        name, value = line.split("=", 1)
        os.environ[name] = value
    os.umask(int(unit["UMask"][0], 8))
    wanted = ",".join("+" + name.removeprefix("CAP_").lower() for name in capabilities)
    line = [program] + [config if word.startswith("/etc/segue/") else word for word in command[1:]]
    # setpriv sets user and capabilities, and runs this file again, which loads the filter and becomes the program.
    os.execvp("setpriv", [
        "setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", f"--bounding-set=-all,{wanted}",
        f"--inh-caps=-all,{wanted}", f"--ambient-caps=-all,{wanted}", "--no-new-privs",
        "/usr/bin/python3", "/mnt/unit.py", "--load", *line,
    ])


def load(*line):
    with open("/mnt/unit.json", encoding="utf-8") as f:
        state = json.load(f)
    load_filter(state["unit"], state["allowed"])
    os.execv(line[0], line)


if __name__ == "__main__":
    if sys.argv[1] == "--load":
        load(*sys.argv[2:])
    main(*sys.argv[1:])
