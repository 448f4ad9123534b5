"""Every path that a guide names is there: ``python -m tests.tooling.links``. Looks at no address of the network.

A guide is a Markdown file of the repository. It names a path as the target of a link, relative to itself, or between
backticks, from the top of the repository.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.tooling import sanity
from tests.tooling.environment import ROOT

LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
CODE = re.compile(r"`([\w./-]+)`")
# A word in capitals stands for a name: tests/unit/fixtures/TOOL/CASE.
PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b(?!\.md)")
HEADING = re.compile(r"(?m)^#+ +(.+?) *$")
FENCE = re.compile(r"(?ms)^ *```.*?^ *```")
# What the scripts make, and what a run leaves on a machine.
MADE = ("build/", "changelogs/.plugin-cache.yaml")


def main() -> int:
    """Print what is named and not there. 0: nothing."""
    files = sanity.repository_files(ROOT)
    guides = [name for name in files if name.endswith(".md")]
    broken = [
        f"{guide}: {target}"
        for guide in guides
        for target in broken_targets(ROOT, guide, (ROOT / guide).read_text(encoding="utf-8"), tops(files))
    ]
    print("\n".join([*broken, f"{len(guides)} guides, {len(broken)} broken references"]))
    return 1 if broken else 0


def tops(files: list[str]) -> frozenset[str]:
    """Names of the directories at the top of the repository, by which a path between backticks is known for one."""
    return frozenset(name.partition("/")[0] for name in files if "/" in name)


def broken_targets(root: Path, guide: str, text: str, directories: frozenset[str]) -> Iterator[str]:
    """What ``text``, the guide of that name below ``root``, names and is not there."""
    prose = FENCE.sub("", text)
    for target in LINK.findall(prose):
        path, _hash, anchor = target.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        file = root / guide if not path else (root / guide).parent / path
        if not file.exists() or (anchor and anchor not in anchors(file)):
            yield target
    for path in CODE.findall(prose):
        is_ours = "/" in path and path.partition("/")[0] in directories and not path.startswith(MADE)
        if is_ours and not PLACEHOLDER.search(path) and not (root / path).exists():
            yield path


def anchors(file: Path) -> set[str]:
    """The anchors that GitHub and Galaxy give to the headings of a Markdown file."""
    headings = HEADING.findall(FENCE.sub("", file.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


if __name__ == "__main__":
    sys.exit(main())
