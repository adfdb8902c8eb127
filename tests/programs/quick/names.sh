#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# packages: binutils
# shim/names.txt lists every name of libc's that has to do with threads. The names that it says the library serves are exported. Each error
# in it has a case in tests/preloaded/errors_*.c, and no case gives an error that is not in it.
import collections
import glob
import os
import re
import subprocess
import sys

top = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
bad = []


def output(*command, env=None):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env).stdout


# Collects libc's names in all versions except GLIBC_PRIVATE, which is for libc itself.
library = os.environ["LIBRARY"]
libc = re.search(r"libc\.so\.6 => (\S+)", output("ldd", library)).group(1)
versions = collections.defaultdict(set)
for line in output("nm", "-D", "--with-symbol-versions", "--defined-only", libc).splitlines():
    name, _, version = line.split()[-1].partition("@")
    if version.lstrip("@") != "GLIBC_PRIVATE":
        versions[name].add(version.lstrip("@"))


def releases(names):
    return [int(m[1]) for v in names if (m := re.fullmatch(r"GLIBC_2\.(\d+)(\.\d+)?", v))]


this = max(releases(set().union(*versions.values())))

# Reads the table.
table = {}
release = {}
differing = set()
reason = ""
explained = set()
for line in open(f"{top}/shim/names.txt"):
    line = line.strip()
    if line.startswith("#") or not line:
        reason = "" if not line or line.startswith("# ----") else line
        if m := re.match(r"# \((\w+) (\w+)\) \w", line):
            explained.add(m.groups())
        continue
    name, what, *errors = line.split()
    if name in table:
        bad.append(f"{name} is listed twice")
    if what not in ("served", "forwarded", "refused"):
        bad.append(f"{name}: {what}?")
    if what == "forwarded" and not reason:
        bad.append(f"{name} is forwarded for no stated reason")
    if what == "refused" and not errors:
        bad.append(f"{name} is refused with no error")
    if what != "forwarded":
        reason = ""
    release[name] = 34
    if errors and (m := re.fullmatch(r"2\.(\d+)", errors[0])):
        release[name] = int(m[1])
        errors = errors[1:]
    if errors and errors[-1] == "differs":
        differing.add(name)
        errors = errors[:-1]
    until = [e.split("<2.") for e in errors]
    errors = [e[0] for e in until if len(e) == 1 or this < int(e[1])]
    table[name] = (what, errors)

bracketed = {(n, e.strip("()")) for n, (_, errors) in table.items() for e in errors if e[0] == "("}
for name, error in sorted(bracketed ^ explained):
    bad.append(f"{name}: ({error}) " + ("has no reason" if (name, error) in bracketed else "has a reason, but is not in the table in brackets"))

ours = re.compile(r"_*(pthread|thrd|mtx|cnd|tss|sem|sched)_|call_once$|gettid(_np)?$|tgkill$|getcpu$|(open|creat)(at)?(64|2)?$")
for name in sorted(n for n in versions if ours.match(n) and n not in table):
    bad.append(f"libc has {name} ({', '.join(sorted(versions[name]))}), which the table lacks")
for name in sorted(table):
    if name not in versions and release[name] <= this:
        bad.append(f"libc (2.{this}) has no {name}")
    first = min(releases(versions[name]), default=release[name])
    if max(first, 34) != release[name]:
        bad.append(f"{name} is of release 2.{first}, and the table says 2.{release[name]}")

exports = set(open(f"{top}/tests/exports.txt").read().split())
built = {line.split()[-1] for line in output("nm", "-D", "--defined-only", library).splitlines()}
for name, (what, _) in table.items():
    if what == "forwarded" and name in exports:
        bad.append(f"{name} is exported, and not just forwarded")
    if what != "forwarded" and name not in exports & built:
        bad.append(f"{name} is {what}, but not exported")
for name in sorted(n for n in exports if n not in table and n != "__asan_default_options" and not re.match(r"fiberthread_|io_uring_|_Z\w*11fiberthread", n)):
    bad.append(f"{name} is exported, but not in the table")

# Reads the cases from NPTL's output. The tests themselves compare the library's output with that.
cases = set()
for test in sorted(glob.glob(f"{top}/tests/preloaded/errors_*.c")):
    binary = os.path.join(os.environ["BUILD"], "tests/preloaded", os.path.basename(test)[:-2])
    for line in output(binary).splitlines():
        if m := re.fullmatch(r"(\w+): (.*): (-?\d+|[A-Z]+[A-Z0-9]+|thrd_\w+)", line):
            cases.add(m.groups())
given = collections.defaultdict(set)
for function, _, result in cases:
    if re.match(r"E|thrd_", result) and result != "thrd_success":
        given[function].add(result)
for name, (what, errors) in table.items():
    for error in errors if release[name] <= this else []:
        if error[0] != "(" and error not in given[name]:
            bad.append(f"{name}: no case gives {error}")
        if error[0] == "(" and error.strip("()") in given[name]:
            bad.append(f"{name}: {error} is in brackets, and a case gives it")
for name, errors in given.items():
    if name not in table:
        continue  # has nothing to do with threads
    listed = {e.strip("()") for e in table[name][1]}
    for error in sorted(errors - listed):
        bad.append(f"{name} gives {error}, which the table lacks")

# The manual's list of differences has those names and no others.
section = re.search(r"^\.SH DIFFERENCES.*?(?=^\.SH )", open(f"{top}/man/fiberthread.7").read(), re.M | re.S).group()
told = set(re.findall(r"^\.BR (\w+) \(\d\)", section, re.M)) & set(table)
for name in sorted(told ^ differing):
    bad.append(f"{name} is {'not ' if name in told else ''}marked as differing, and {'' if name in told else 'not '}in the manual's list")

listed = sum(len(errors) for _, errors in table.values())
print(f"libc 2.{this}: {len(table)} names, {listed} documented errors, {len(bracketed)} of them never given, {len(cases)} cases of {len({c[0] for c in cases})} functions")
print("\n".join(bad))
sys.exit(bool(bad))
