#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
# packages: python3 g++
# The facts that programs have compiled into themselves from the public headers are as in tests/abi.txt: size and alignment of each class
# and struct, the place of each member, and the values of constants. They are compiled for this processor, and for AArch64 if its compiler
# is installed, in a few modes. `abi.sh print` prints the right contents of the file.
import difflib
import glob
import os
import platform
import re
import shutil
import subprocess
import sys

TOP = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../.."))
HEADERS = f"{TOP}/sync/include"
CLASS = re.compile(r"( *)(?:typedef )?(?:class|struct) (\w+)[^;(]*\{$")
MEMBER = re.compile(r"(?:mutable |const |unsigned )*[\w:]+(?:<.*>)?[ *]+(?:const )?(\w+(?:, \w+)*);")
FUNCTION_POINTER = re.compile(r"[\w:*]+ \(\*(\w+)\)\(.*\)(?: = \w+)?;")


def declared(path):
    """What one header declares: (name, expression in C++) of everything that a program compiled with it depends on."""
    text = re.sub(r"//.*|/\*[\s\S]*?\*/|#.*|\[\[.*?\]\] |FIBERTHREAD_[A-Z_]+(?:\([^)]*\))? |alignas\([^)]*\) ", lambda m: "\n" * m[0].count("\n"), open(path).read())
    c = path.endswith("/fiberthread.h")
    scope = "" if c else "fiberthread::"
    classes, template = [], ""  # the classes that enclose the line: (indentation, name)
    found = []
    for line in filter(None, map(str.rstrip, text.splitlines())):
        indent = len(line) - len(line.lstrip())
        body = line.strip()
        while classes and indent <= classes[-1][0]:
            classes.pop()
        if body.startswith("template <"):
            template = body
        elif m := CLASS.fullmatch(line):
            inside = classes[-1][1] if classes else None
            if "..." in template or (classes and (not inside or indent != classes[-1][0] + 2)):  # a closure, or a class inside a function
                name = None
            else:
                name = (f"{inside}::" if inside else scope) + m[2]
                name += {"": "", "b": "<true>", "c": "<int>"}[template[len("template <"):][:1]]
                found += [(f"{name} size", f"sizeof({name})"), (f"{name} alignment", f"alignof({name})")]
            classes.append((indent, name))
            template = ""
        elif classes and classes[-1][1] and indent == classes[-1][0] + (4 if body.endswith(":") else 2):
            of, template = classes[-1][1], ""
            if body.startswith("enum ") or (body.startswith("static constexpr ") and "(" not in body.split("=")[0]):
                for name in re.findall(r"(\w+) = ", body):
                    found.append((f"{of}::{name} =", f"{of}::{name}"))
            elif not body.startswith(("using ", "friend ", "static ", "class ", "struct ")):
                plain = re.sub(r" = [^()]*;$|\{[^{}]*\}|\[[^]]*\]", lambda m: ";" * m[0].endswith(";"), body)
                if m := MEMBER.fullmatch(plain) or FUNCTION_POINTER.fullmatch(body):
                    found += [(f"{of}::{name} at", f"offsetof({of}, {name})") for name in m[1].split(", ")]
        elif not classes:
            template = ""
            if m := re.fullmatch(r"constexpr \w+ (\w+) = .*;", body):
                found.append((f"{scope}{m[1]} =", scope + m[1]))
            elif c and (m := re.fullmatch(r"typedef [^({]*\b(\w+);", body)):
                found.append((f"{m[1]} size", f"sizeof({m[1]})"))
    if c:
        for name, value in re.findall(r"^#define (FIBERTHREAD_\w+) (.+)", open(path).read(), re.M):
            found.append((f"{name} =", name))
    return found


def compiled(compiler, program):
    """The lines of the file, as this compiler has them: constants in the text of an assembly that nobody runs."""
    command = [*compiler, "-S", "-x", "c++", "-", "-o", "-", f"-I{HEADERS}", "-w", "-Wno-invalid-offsetof", "-fno-access-control"]
    r = subprocess.run(command, input=program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if r.returncode:
        sys.exit(f"{' '.join(compiler)}: what this test makes of the headers does not compile:\n{r.stderr[:3000]}")
    return [f"{name} {(int(high) % 2**32 << 32) + int(low) % 2**32}" for name, high, low in re.findall(r"^\W*@abi (.*) (-?\d+) (-?\d+)@", r.stdout, re.M)]


def main():
    paths = sorted(glob.glob(f"{HEADERS}/fiberthread/*.h"))
    items = sorted({i for p in paths for i in declared(p)})
    program = "".join(f"#include <fiberthread/{os.path.basename(p)}>\n" for p in paths) + "#include <cstddef>\nvoid all() {\n"
    # Each number is printed as two halves of 32 bits with a sign, since compilers print no larger ones this way.
    line = '  asm volatile("@abi {0} %c0 %c1@" :: "i"((int)((unsigned long long)({1}) >> 32)), "i"((int)({1})));\n'
    program += "".join(line.format(*i) for i in items) + "}\n"
    compilers = [["g++", "-std=c++17"]]
    if sys.argv[1:] == ["print"]:
        print("\n".join(compiled(compilers[0], program)))
        return
    # None of these modes may change the layout that a program and the library share.
    compilers += [["g++", "-std=c++20", "-O2", "-DFIBERTHREAD_DEBUG_CHECKS"], ["aarch64-linux-gnu-g++", "-std=c++17"]]
    if platform.machine() != "x86_64":
        compilers.append(["x86_64-linux-gnu-g++", "-std=c++17"])
    wanted = open(f"{TOP}/tests/abi.txt").read().splitlines()
    for compiler in filter(lambda c: shutil.which(c[0]), compilers):
        lines = compiled(compiler, program)
        if lines == wanted:
            continue
        print("\n".join(l for l in difflib.unified_diff(wanted, lines, "tests/abi.txt", " ".join(compiler), n=0, lineterm="") if not l.startswith("@@")))
        if set(wanted) - set(lines):
            print("Programs that were built before would break. If you mean it, raise the first number of SO_VERSION in the Makefile, unless it was\n"
                  "raised since the last release (CONTRIBUTING.md, ABI), and write it down: tests/programs/quick/abi.sh print >tests/abi.txt")
        else:
            print("These are new: from the next release on, programs rely on them. Write them down: tests/programs/quick/abi.sh print >tests/abi.txt")
        sys.exit(1)


main()
