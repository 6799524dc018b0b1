"""What uses the public names: which programs of examples/ use which header, and whether the names on pages are there."""

import re
from pathlib import Path

import headers


def exceptions(root: Path, kind: str) -> dict[str, str]:
    """The lines `kind NAME: reason` of exceptions.txt."""
    found = {}
    for line in (root / "docs/site/exceptions.txt").read_text().split("\n"):
        match = re.match(rf"{kind} ([\w:/.]+): (.+)", line)
        if match:
            found[match[1]] = match[2]
    return found


def users(root: Path, names: dict[str, list[headers.Name]]) -> dict[str, list[str]]:
    """For each header the programs that include it, write one of its names behind demi::, or call one by its name alone, as
    argument dependent lookup allows, if it has several words."""
    programs = {str(path.relative_to(root)): path.read_text() for path in sorted(root.glob("examples/**/*.cpp"))}
    named = re.compile(r"\b(?:demi|train)::(?:\w+::)*(\w+)|\b([a-z]+(?:_[a-z]+){2,})\(")
    words = {program: {word for pair in named.findall(text) for word in pair if word} for program, text in programs.items()}
    found = {}
    for header, of_header in names.items():
        short = {name.name.rpartition("::")[2] for name in of_header}
        found[header] = [program for program, text in programs.items()
                         if f'#include "{header}"' in text or f"#include <{header}>" in text or short & words[program]]
    return found


def complaints(root: Path, found: dict[str, list[str]]) -> list[str]:
    unused = exceptions(root, "unused")
    wrong = [f"{header}: no example uses it: write one, or say in docs/site/exceptions.txt why there is none"
             for header, programs in found.items() if not programs and header not in unused and f"{header.rpartition('/')[0]}/" not in unused]
    for path in unused:
        below = [header for header in found if header == path or (path.endswith("/") and header.startswith(path))]
        if not below:
            wrong.append(f"docs/site/exceptions.txt: {path} is no public header, and no folder of some")
        elif all(found[header] for header in below):
            wrong.append(f"docs/site/exceptions.txt: {path} is used by {found[below[0]][0]}")
    return wrong


def unknown_names(root: Path, names: dict[str, list[headers.Name]], pages: list[Path]) -> list[str]:
    """Each demi::NAME on a page that is no public name, no module and no target of CMake."""
    known = {path.name for library in ("demi", "lab") for path in (root / library).iterdir()} | {"demi", "lab"}

    def add(some):
        for name in some:
            known.update(name.name.split("::"))
            add(name.inside)

    for of_header in names.values():
        add(of_header)
    wrong = []
    for page in pages:
        for number, line in enumerate(page.read_text().split("\n"), 1):
            for name in re.findall(r"\bdemi::((?:\w+::)*\w+)", line):
                if not known.issuperset(name.split("::")):
                    wrong.append(f"{page.relative_to(root)}:{number}: demi::{name} is no public name")
    return wrong
