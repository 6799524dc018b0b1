"""The public headers as the site shows them: which there are, and their names with comments, by Doxygen.

Doxygen reads copies in which every comment is verbatim, so that a comment arrives as it was written; it gives the declarations.
Line numbers of the copies are those of the headers.
"""

import re
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path


def public_headers(root: Path) -> list[str]:
    """The headers that are installed: demi.h, the PUBLIC ones of each module, one for each update rule."""
    found = ["demi/demi.h"]
    for cmake in sorted([*root.glob("demi/*/CMakeLists.txt"), *root.glob("lab/*/CMakeLists.txt")]):
        call = re.search(r"demi_module\(([^)]*)\)", cmake.read_text())
        public = re.search(r"\bPUBLIC\b([^)]*)", call[1]) if call else None
        names = re.findall(r"\b[\w/]+\.h\b", public[1]) if public else []
        found += [str((cmake.parent / name).relative_to(root)) for name in names]
    rules = (root / "demi/kernels/rules/list.h").read_text()
    rules = [f"demi/optim/{rule}.h" for rule in re.findall(r"^#include DEMI_RULE\((\w+)\)", rules, re.M)]
    return found + [rule for rule in rules if rule not in found]


BEHIND = "behind:"  # what a comment behind a declaration begins with for Doxygen
MARGIN = "¦"  # what each line of one above a declaration begins with: Doxygen takes indentation that all lines share


@dataclass
class Name:
    """A declaration: what it is, how it is written, what is said of it, what it has inside."""

    kind: str  # class, struct, function, variable, enum, enumerator, typedef, define
    name: str  # with its scopes
    text: str  # the declaration, as Sphinx's C++ domain reads it
    line: int
    says: str  # its comment, as it was written; "" if it has none
    inside: list["Name"] = field(default_factory=list)
    exempt: bool = False  # needs no comment of its own: an override, a default
    is_special: bool = False  # a destructor, a copy or a move
    is_behind: bool = False  # the comment is behind the declaration: it is of this name alone

    def __post_init__(self):
        self.is_behind = self.says.startswith(BEHIND)
        self.says = re.sub(rf"{BEHIND} *", "", self.says)


def for_doxygen(source: str) -> str:
    """A header whose comments are verbatim, without what only the compiler needs. Each line stays where it is."""
    out, lines, at = [], source.split("\n"), 0
    while at < len(lines):
        line, end = lines[at], at + 1
        behind = re.match(r"^(\s*[^\s/].*?)\s+// (?!NOLINT)(.*)$", line)
        if re.match(r"\s*///", line):  # above a declaration
            while end < len(lines) and re.match(r"\s*///", lines[end]):
                end += 1
            said = [MARGIN + re.sub(r"^\s*/// ?", "", one) for one in lines[at:end]]
            out += ("/** \\verbatim " + "\n".join(said) + " \\endverbatim */").split("\n")
        elif behind and not re.match(r"\s*(#|}|namespace|using namespace|(public|private|protected):)", line):
            column, said = line.index("// " + behind[2]), [behind[2]]
            while end < len(lines) and re.match(rf"\s{{{column}}}// ", lines[end]):
                said.append(lines[end].strip()[3:])
                end += 1
            out += [f"{behind[1]} /**< \\verbatim {BEHIND} {' '.join(said)} \\endverbatim */"] + [""] * (end - at - 1)
        else:
            out.append(line)
        at = end
    text = "\n".join(out)
    text = re.sub(r"^#define DEMI_RULE.*$", "", text, flags=re.M)  # how the list of rules is read, not for users
    text = re.sub(r"(?<!#define )\bDEMI_API ?", "", text)
    text = re.sub(r"^TORCH_MODULE\((\w+)\);", rf"using \1 = torch::nn::ModuleHolder<\1Impl>;  /**< \\verbatim {BEHIND} "
                  r"LibTorch's holder of a `\1Impl`: copies share the module. \\endverbatim */", text, flags=re.M)
    # LibTorch's options: a setter that returns the options, a getter of the same name.
    text = re.sub(r"\b(?:DEMI_TORCH_OPTION|TORCH_ARG)\(([^;]*?), (\w+)\)([^;]*);", r"\1 \2\3;", text)
    return text


def read(root: Path, work: Path) -> dict[str, list[Name]]:
    """The names of each public header, in the order of their lines."""
    headers = public_headers(root)
    copies = work / "headers"
    for header in headers:
        copy = copies / header
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(for_doxygen((root / header).read_text()))
    settings = {
        "INPUT": " ".join(headers), "OUTPUT_DIRECTORY": work, "STRIP_FROM_PATH": copies,
        "GENERATE_XML": "YES", "GENERATE_HTML": "NO", "GENERATE_LATEX": "NO", "XML_PROGRAMLISTING": "NO",
        "EXTRACT_ALL": "YES", "EXTRACT_PRIVATE": "NO", "QUIET": "YES", "WARNINGS": "NO", "MAX_INITIALIZER_LINES": "100",
        "ENABLE_PREPROCESSING": "YES", "MACRO_EXPANSION": "NO", "SEARCH_INCLUDES": "NO", "AUTOLINK_SUPPORT": "NO",
        "SORT_MEMBER_DOCS": "NO", "INCLUDE_GRAPH": "NO", "INCLUDED_BY_GRAPH": "NO", "JAVADOC_AUTOBRIEF": "NO", "BUILTIN_STL_SUPPORT": "NO", "INHERIT_DOCS": "NO",
    }
    subprocess.run(["doxygen", "-"], cwd=copies, check=True, text=True,
                   input="".join(f"{key} = {value}\n" for key, value in settings.items()))
    return _Reader(work / "xml", copies).names(headers)


class _Reader:
    def __init__(self, xml: Path, copies: Path):
        self.copies = copies
        self.pages = {}
        for compound in ET.parse(xml / "index.xml").getroot():
            if compound.get("kind") in ("class", "struct", "namespace", "file", "union"):
                page = ET.parse(xml / f"{compound.get('refid')}.xml").getroot()[0]
                self.pages[page.get("id")] = page

    def names(self, headers):
        found = {header: [] for header in headers}
        for page in self.pages.values():
            kind = page.get("kind")
            if kind in ("class", "struct", "union"):
                place = page.find("location").get("file")
                if page.get("prot") == "public" and not self._is_inside_class(page):
                    found[place].append(self._class(page))
            else:
                for member in page.iterfind("sectiondef/memberdef"):
                    place = member.find("location").get("file")
                    if kind == "file" and member.get("kind") != "define":
                        continue  # of a namespace, which names it
                    found[place] += self._member(member, "")
        for names in found.values():
            _in_order(names)
        return found

    def _is_inside_class(self, page):
        outer = page.findtext("compoundname").rpartition("::")[0]
        return any(other.findtext("compoundname") == outer for other in self.pages.values()
                   if other.get("kind") in ("class", "struct", "union"))

    def _class(self, page):
        name = page.findtext("compoundname")
        template = _template(page)
        bases = ", ".join(f"{base.get('prot')} {_text(base)}" for base in page.iterfind("basecompoundref"))
        inside = [one for member in page.iterfind("sectiondef/memberdef") if member.get("prot") == "public"
                  for one in self._member(member, name)]
        for inner in page.iterfind("innerclass"):
            if inner.get("prot") == "public" and inner.get("refid") in self.pages:
                inside.append(self._class(self.pages[inner.get("refid")]))
        _in_order(inside)
        text = f"{template}{name}" + (f" : {bases}" if bases else "")
        return Name(page.get("kind"), name, text, int(page.find("location").get("line")), _says(page), inside)

    def _member(self, member, scope):
        kind, short = member.get("kind"), member.findtext("name")
        name = member.findtext("qualifiedname") or (f"{scope}::{short}" if scope else short)
        line = int(member.find("location").get("line"))
        says = _says(member)
        if kind == "friend":
            return []
        template = _template(member)
        result = _text(member.find("type"))
        if kind == "enum":
            lines = (self.copies / member.find("location").get("file")).read_text().split("\n")
            values = []
            for value in member.iterfind("enumvalue"):
                own = f"{name}::{value.findtext('name')}"
                at = next(at for at in range(line, len(lines) + 1)
                          if re.search(rf"\b{value.findtext('name')}\b(?!\w*\s*:\s)", lines[at - 1]))
                values.append(Name("enumerator", own, f"{own} {_text(value.find('initializer'))}".strip(), at, _says(value)))
            base = _text(member.find("type"))
            strong = "class " if member.get("strong") == "yes" else ""
            return [Name("enum", name, f"{name}" + (f" : {base}" if base else ""), line, says, values)]
        if kind == "function":
            arguments = member.findtext("argsstring")
            last = scope.rpartition("::")[2]
            special = short.startswith("~") or bool(
                short in (last, "operator=") and re.match(rf"\(\s*(const )?{last}\s*&&?\s*\w*\s*\)", arguments))
            exempt = member.find("reimplements") is not None or bool(re.search(r"\boverride\b", arguments)) \
                or re.search(r"=\s*(delete|default)$", arguments) is not None or bool(short == last and arguments.startswith("()"))
            if scope and short not in (last, "~" + last) and not result and not short.startswith("operator"):
                return []  # `using Base::Base`, which Doxygen takes for functions
            text = f"{template}{result} {name}{arguments}".strip()
            return [Name(kind, name, text, line, says, exempt=exempt, is_special=special)]
        if kind == "variable":
            initializer = _text(member.find("initializer"))
            arguments = member.findtext("argsstring") or ""
            return [Name(kind, name, f"{template}{result} {name}{arguments} {initializer}".strip(), line, says)]
        if kind == "typedef":
            definition = member.findtext("definition")
            if definition.startswith("using"):
                return [Name("typedef", name, f"{template}{name} = {definition.partition('=')[2].strip().removeprefix('typedef ')}", line, says)]
            return [Name("typedef", name, f"{result} {name}{member.findtext('argsstring') or ''}", line, says)]
        if kind == "define":
            parameters = [one.findtext("defname") for one in member.iterfind("param") if one.find("defname") is not None]
            return [Name(kind, short, short + (f"({', '.join(parameters)})" if parameters else ""), line, says)]
        raise ValueError(f"{name} is a {kind}, which the site does not know")


def _in_order(names):
    """By line. Variables of one line have one comment, which Doxygen gives to the last of them."""
    names.sort(key=lambda name: name.line)
    for name in reversed(names):
        for other in names:
            if other.line == name.line and other.kind == name.kind == "variable" and not other.says:
                other.says, other.is_behind = name.says, name.is_behind


def _text(element):
    return "" if element is None else "".join(element.itertext()).strip()


def _template(element):
    parameters = element.find("templateparamlist")
    if parameters is None:
        return ""
    texts = []
    for one in parameters.iterfind("param"):
        text = _text(one.find("type"))
        declared = one.findtext("declname")
        if declared and not re.search(rf"\b{declared}$", text):
            text += " " + declared
        default = _text(one.find("defval"))
        texts.append(text + (f" = {default}" if default else ""))
    return f"template<{', '.join(texts)}> "


def _says(element):
    parts = [element.find(name) for name in ("briefdescription", "detaileddescription")]
    text = "\n\n".join("".join(part.itertext()).strip("\n ") for part in parts if part is not None)
    return re.sub(rf"^ *{MARGIN}", "", text, flags=re.M).strip("\n")
