#!/usr/bin/env python3
"""Counts lines of Rust outside tests, by crate: of the working tree, or of a revision.

    scripts/lines.py [REVISION [REVISION]]

With two revisions it shows both, and the difference. A line counts as code if it is neither blank
nor a comment. Tests are the folders and files that are named so, and what follows the line
`#[cfg(test)]`, or another `cfg` of tests, that begins the tests of a file.
"""

import re
import subprocess
import sys

TESTS = re.compile(r"(^|/)(tests|benches|examples|fuzz)(/|\.rs$)|_tests\.rs$")
BEGIN = re.compile(r"^#\[cfg\((all\()?test")


def git(*arguments):
    return subprocess.run(["git", *arguments], capture_output=True, check=True, text=True).stdout


def files(revision):
    """Path and text of each file of Rust outside tests."""
    listed = ["ls-files"] if revision is None else ["ls-tree", "-r", "--name-only", revision]
    for path in git(*listed).splitlines():
        if "/src/" not in path or not path.endswith(".rs") or TESTS.search(path):
            continue
        yield path, open(path).read() if revision is None else git("show", f"{revision}:{path}")


def count(text):
    """All lines before the tests, and those of them that are code."""
    lines = []
    for line, after in zip(text.splitlines(), [*text.splitlines()[1:], ""]):
        if BEGIN.match(line) and after.startswith(("mod ", "#[")) and not after.endswith(";"):
            break
        lines.append(line.strip())
    return len(lines), sum(bool(line) and not line.startswith("//") for line in lines)


def crates(revision):
    sums = {}
    for path, text in files(revision):
        crate = path.split("/src/")[0]
        before = sums.get(crate, (0, 0))
        sums[crate] = tuple(one + more for one, more in zip(before, count(text)))
    sums["total"] = tuple(map(sum, zip(*sums.values())))
    return sums


def main():
    columns = [crates(revision) for revision in sys.argv[1:3] or [None]]
    names = list(dict.fromkeys(name for column in reversed(columns) for name in column if name != "total"))
    for name in [*sorted(names), "total"]:
        pairs = [column.get(name, (0, 0)) for column in columns]
        cells = [f"{lines:8,} lines {code:8,} code" for lines, code in pairs]
        if len(pairs) == 2:
            cells.append("".join(f"{new - old:+8,}" for old, new in zip(*pairs)))
        print(f"{name:12}", "  ".join(cells))


main()
