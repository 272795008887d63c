#!/usr/bin/python3
"""apparmor_paths PROFILE TRACE [FROM=TO]...: prints each path of a trace that an AppArmor profile does not permit.

PROFILE is a file with one profile; what it includes is read from /etc/apparmor.d. `strace -ff -y -o TRACE` has written
the trace, a file TRACE.PID for each thread. A path that begins with FROM is taken as TO. One line is printed for each
path, with the permissions that are missing: r, w (also to create, rename and remove), k (lock), x (execute). AppArmor
checks only what the other rules permit, so that calls that failed are left out.

Exit: 0 all are permitted, 1 some are not, 2 the trace has no path.
"""
import glob
import os
import re
import sys

FOLDER = "/etc/apparmor.d"
VARIABLE = re.compile(r"^\s*(@\{\w+\})\s*(\+?=)\s*(.*)$")
INCLUDE = re.compile(r"^\s*#?include\s+(if\s+exists\s+)?<([^>]+)>")
RULE = re.compile(r'^\s*(?:owner\s+)?"?((?:/|@\{)[^\s"]*)"?\s+([a-zA-Z]+)\s*,')
FIRST = r"\((?:AT_FDCWD|\d+)(?:<(?P<at>[^>]*)>)?, "
PATH = r'"(?P<path>[^"]*)"'
SECOND = r'"(?P<second>[^"]*)"'
DONE = r"\s+= (?:0x[0-9a-f]+|\d+)(?:<(?P<real>/[^>]*)>(?:\(deleted\))?)?(?:\(deleted\))?$"
CALLS = [
    (re.compile(r"open\(" + PATH + r", (?P<flags>[A-Z_|0-9]+).*\)" + DONE), None),
    (re.compile("openat" + FIRST + PATH + r", (?P<flags>[A-Z_|0-9]+).*\)" + DONE), None),
    (re.compile(r"execve\(" + PATH + r".*\)" + DONE), "x"),
    (re.compile(r"(?:connect|bind)\(.*sun_path=" + PATH + r".*\)" + DONE), "w"),
    (re.compile(r"(?:unlink|truncate|chmod|chown|lchown)\(" + PATH + r".*\)" + DONE), "w"),
    (re.compile("(?:unlinkat|fchmodat|fchownat|mknodat)" + FIRST + PATH + r".*\)" + DONE), "w"),
    (re.compile(r"(?:mkdir|rmdir)\(" + PATH + r".*\)" + DONE), "folder"),
    (re.compile("mkdirat" + FIRST + PATH + r".*\)" + DONE), "folder"),
    (re.compile(r"rename\(" + PATH + ", " + SECOND + r".*\)" + DONE), "w"),
    (re.compile("renameat2?" + FIRST + PATH + r", (?:AT_FDCWD|\d+)(?:<[^>]*>)?, " + SECOND + r".*\)" + DONE), "w"),
    (re.compile(r"flock\(\d+<" + "(?P<path>/[^>]*)" + r">.*\)" + DONE), "k"),
]


def read(path, variables, rules):
    """Adds the variables and the rules of a file: pairs of a pattern and its permissions."""
    for line in open(path, encoding="utf-8"):
        if found := INCLUDE.match(line):
            inner = os.path.join(FOLDER, found[2])
            if os.path.isdir(inner):
                for name in sorted(os.listdir(inner)):
                    read(os.path.join(inner, name), variables, rules)
            elif os.path.exists(inner) or not found[1]:
                read(inner, variables, rules)
            continue
        line = line.split("#", 1)[0]
        if found := VARIABLE.match(line):
            values = [value.strip('"') for value in found[3].split()]
            variables[found[1]] = (variables.get(found[1], []) if found[2] == "+=" else []) + values
        elif found := RULE.match(line):
            rules.append((found[1], found[2]))


def expanded(pattern, variables):
    """Returns the pattern with each value of its variables."""
    found = re.search(r"@\{\w+\}", pattern)
    if not found:
        return [re.sub("//+", "/", pattern)]
    values = variables.get(found[0], [])
    return [one for value in values for one in expanded(pattern.replace(found[0], value, 1), variables)]


def regex(pattern):
    """Translates a pattern of apparmor.d(5), FILE RULES, into a regular expression."""
    text, at, depth = "", 0, 0
    while at < len(pattern):
        char = pattern[at]
        if char == "*":
            every = pattern.startswith("**", at)
            at += 2 if every else 1
            # Behind a slash, at the end, it is at least one character.
            some = pattern[:at].rstrip("*").endswith("/") and at == len(pattern)
            text += ("." if every else "[^/]") + ("+" if some else "*")
            continue
        if char == "[":
            end = pattern.index("]", at)
            text, at = text + pattern[at:end + 1], end + 1
            continue
        if char == "\\":
            at += 1
            char = re.escape(pattern[at])
        elif char == "{":
            depth, char = depth + 1, "(?:"
        elif char == "}":
            depth, char = depth - 1, ")"
        elif char == "," and depth:
            char = "|"
        else:
            char = "[^/]" if char == "?" else re.escape(char)
        text, at = text + char, at + 1
    return re.compile(text)


def used(line):
    """Yields the paths that a call of the trace has used, with the permissions that AppArmor asks for."""
    for call, permissions in CALLS:
        found = call.search(line)
        if not found:
            continue
        parts = found.groupdict()
        flags = parts.get("flags") or ""
        if permissions is None:
            # As the kernel found it, behind every link.
            path = parts.get("real")
            if path is None or "O_PATH" in flags:
                return
            if "O_RDWR" in flags:
                permissions = "rw"
            else:
                permissions = "w" if "O_WRONLY" in flags else "r"
            if "O_CREAT" in flags or "O_TRUNC" in flags:
                permissions += "w"
            yield path, permissions
            return
        suffix = ""
        if permissions == "folder":
            permissions, suffix = "w", "/"
        for name in (parts["path"], parts.get("second")):
            if name is not None:
                yield os.path.normpath(os.path.join(parts.get("at") or "/", name)) + suffix, permissions
        return


def main():
    profile, trace, *pairs = sys.argv[1:]
    variables, rules = {}, []
    read(profile, variables, rules)
    patterns = [(regex(one), permissions) for pattern, permissions in rules for one in expanded(pattern, variables)]
    wanted = {}
    lines = (line for name in glob.glob(trace + ".*") for line in open(name, encoding="utf-8", errors="replace"))
    for line in lines:
        for path, permissions in used(line.rstrip("\n")):
            # A memory file has no path.
            if path.startswith("/memfd:"):
                continue
            for pair in pairs:
                old, new = pair.split("=", 1)
                if path == old or path.startswith(old.rstrip("/") + "/"):
                    path = new + path[len(old):]
            wanted.setdefault(path, set()).update(permissions)
    if not wanted:
        print("the trace has no path")
        return 2
    lacks = 0
    for path, permissions in sorted(wanted.items()):
        # A folder that is read has a slash at its end in a rule.
        names = (path, path + "/")
        given = {one for pattern, some in patterns if any(pattern.fullmatch(name) for name in names) for one in some}
        missing = permissions - given
        if missing:
            lacks = 1
            print(path, "".join(sorted(missing)))
    return lacks


if __name__ == "__main__":
    sys.exit(main())
