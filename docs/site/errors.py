"""A page of the places that error messages begin with, `[module.function]`: where each is explained."""

import re
from pathlib import Path

# A word of code between quotes: module.function, not the name of a file.
PLACE = re.compile(r'"([A-Za-z]\w*(?:\.\w+)+)"')
FILES = re.compile(r"\.(html|json|pkl|weight|jsonl|txt|csv|tsv|md|py|pt2|safetensors|model|tfevents|bin|so|gz|tar|tgz|index|yaml|0|1)$")


def places(root: Path) -> dict[str, set[str]]:
    """Each place, and the modules whose sources name it."""
    modules = {path.name for library in ("demi", "lab") for path in (root / library).iterdir() if path.is_dir()}
    found: dict[str, set[str]] = {}
    for library in ("demi", "lab", "cli"):
        for path in sorted([*(root / library).rglob("*.cpp"), *(root / library).rglob("*.h")]):
            if re.search(r"_test|testing", path.name):
                continue
            parts = path.relative_to(root).parts
            module = "/".join(parts[:2]) if library != "cli" else "cli"
            text = path.read_text()
            named = re.findall(r'\.where = "([^"-][^" ]*\w)"', text)
            if module != "lab/huggingface":  # which names tensors alike
                named += [one for one in PLACE.findall(text) if one.partition(".")[0] in modules and not FILES.search(one)]
            for one in named:
                found.setdefault(one, set()).add(module)
    return found


def page(root: Path, pages_of: dict[str, str], names: dict[tuple[str, str], str]) -> tuple[str, list[str]]:
    """The page, and the places of modules that no page explains. `names`: a link to the header of each public name, by module."""
    wrong = []
    text = """# Errors

A message of demi reads `[place] what is wrong; seen: the wrong value; accepted: the right ones; what to do`. A place
`module.function` is in this table. A place such as `--precision`, `DEMI_PRECISION` or `precision in FILE` is where a setting
of the program was given: [settings](/docs/reference/train.md) lists what each takes. Another word is a command of the program.
What each kind of error means, and the program's exit code for it: [core](/docs/reference/core.md).

| place | explained in | declared in |
|---|---|---|
"""
    for place, modules in sorted(places(root).items(), key=lambda one: one[0].lower()):
        explained = sorted({pages_of[module] for module in modules if module in pages_of})
        if not explained:
            wrong.append(f"errors: [{place}] is of {', '.join(sorted(modules))}, which no row of docs/README.md names")
        links = ", ".join(f"[{Path(one).stem}](/{one})" for one in explained)
        declared = next((names[module, place.rpartition(".")[2]] for module in sorted(modules)
                         if (module, place.rpartition(".")[2]) in names), "")
        text += f'| <a id="{place}"></a>`{place}` | {links} | {declared} |\n'
    return text, wrong
