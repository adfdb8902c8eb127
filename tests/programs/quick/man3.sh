#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# packages: mandoc man-db
# Each C function that the library exports, and each class of a public header, has a page in section 3 that names it. No page names
# a function or class that does not exist. Neither mandoc nor man finds anything wrong with a page.
import glob
import os
import re
import subprocess
import sys

top = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
bad = []
links = subprocess.run([f"{top}/man/links"], check=True, stdout=subprocess.PIPE, text=True).stdout
told = {}
for line in links.splitlines():
    name, page = line.split()
    if name in told:
        bad.append(f"{name} is in {told[name]} and in {page}")
    told[name] = page

functions = {n for n in open(f"{top}/tests/exports.txt").read().split() if n.startswith("fiberthread_") and not n.startswith("fiberthread_explore_")} - {"fiberthread_debug_layout"}  # for preload/explore, and for debuggers
classes = {}
for header in sorted(glob.glob(f"{top}/sync/include/fiberthread/*.h")):
    text = open(header).read()
    # Only classes at the beginning of a line count, not nested ones. Those in a `namespace detail` or the like need no page.
    text = re.sub(r"^namespace (?!fiberthread\b)\w+ \{.*?^\}", "", text, flags=re.M | re.S)
    for name in re.findall(r"^(?:template <.*>\s*)?(?:class|struct)\s+(?:\[\[.*?\]\]\s*|FIBERTHREAD_\w+\s+|alignas\(.*?\)\s*)*(\w+)[^;(]*?\{", text, re.M):
        classes[name] = os.path.basename(header)

for name in sorted(functions - told.keys()):
    bad.append(f"{name} has no man page: add it to the NAME section of one in man/*.3")
for name in sorted(classes.keys() - told.keys()):
    bad.append(f"class {name} of {classes[name]} has no man page: add it to the NAME section of one in man/*.3")
for name in sorted(told.keys() - functions - classes.keys() - {"libfiberthread"}):
    # Otherwise the name must be a C++ function.
    if not any(re.search(rf"\b{name}\(", open(h).read()) for h in glob.glob(f"{top}/sync/include/fiberthread/*.h")):
        bad.append(f"{told[name]} tells of {name}, which there is not")

for page in sorted(glob.glob(f"{top}/man/*.3")):
    for command in (["mandoc", "-Tlint", "-W", "warning", page], ["man", "--warnings", "-E", "UTF-8", "-l", page]):
        r = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           env={**os.environ, "MANWIDTH": "100", "MANPAGER": "cat", "LC_ALL": "C.UTF-8"})
        said = r.stdout + r.stderr if command[0] == "mandoc" else r.stderr
        if r.returncode != 0 or said:
            bad.append(f"{os.path.basename(page)}: {' '.join(command[:2])}: {said.strip() or r.returncode}")

print(f"{len(told)} names, {len(functions)} functions, {len(classes)} classes")
print("\n".join(bad))
sys.exit(bool(bad) or not functions or not classes)
