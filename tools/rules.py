"""Lists which tests prove which rule of docs/semantics.md: `make rules`.

It fails for a rule without a test, unless the document marks the rule as open, and for a citation of an unknown rule.

A test cites a rule (`S3.4`; a range `S3.2-S3.5` cites all in it) in its docstring or in a comment inside it. A test
class cites it in its docstring for all its tests, and a module in its docstring for all of its tests. Tests of a
conformance suite count if a test class inherits them.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
SHOWN = 3
"""Number of tests listed for a rule, without `--all`."""
OPEN_SECTION = "Limits of version 0.1"
OPEN = ("part", "whole")
_CITED = re.compile(r"\bS(\d)\.(\d+)\b(?:\s*(?:-|to)\s*S(\d)\.(\d+)\b)?")


@dataclass(frozen=True, order=True)
class Rule:
    """`S3.4`."""

    section: int
    number: int

    def __str__(self) -> str:
        return f"S{self.section}.{self.number}"


@dataclass
class Semantics:
    """Content of the document.

    Attributes:
        rules: rule -> its text on one line.
        open: rule -> (`part` or `whole`, what this version lacks).
        problems: contradictions in the document.
    """

    rules: dict[Rule, str] = field(default_factory=dict)
    open: dict[Rule, tuple[str, str]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, order=True)
class Citation:
    """A test, or a module's docstring, that cites a rule. `name`: `file::test`, or the file for a whole module."""

    whole_module: bool
    name: str


# ---------------------------------------------------------------- the document


def read_semantics(text: str) -> Semantics:
    """Parse the document.

    Rules are numbered lines of the sections `## S1 ...` to `## S9 ...`, with wrapped lines indented. The table of the
    last section marks open rules by number, or a section with all its rules.
    """
    found = Semantics()
    section, current, is_table = 0, None, False
    for line in text.splitlines():
        if heading := re.match(r"## (?:S(\d) )?(.*)", line):
            section, current = int(heading[1] or 0), None
            is_table = heading[2].strip() == OPEN_SECTION
        elif section and (rule := re.match(r"(\d+)\. (.*)", line)):
            current = Rule(section, int(rule[1]))
            if current in found.rules:
                found.problems.append(f"{current} is defined twice")
            found.rules[current] = rule[2]
        elif current is not None and line.startswith("   ") and line.strip():
            found.rules[current] += " " + line.strip()
        elif is_table and (row := re.match(r"\| (S\d(?:\.\d+)?) \|(.*)\|$", line)):
            _read_open(found, row[1], [cell.strip() for cell in row[2].split("|")])
        else:
            current = None
    return found


def _read_open(found: Semantics, name: str, cells: Sequence[str]) -> None:
    rules = [rule for rule in found.rules if name in (str(rule), f"S{rule.section}")]
    if len(cells) != 2 or cells[0] not in OPEN:
        found.problems.append(f"the row of {name} must have a cell that says {' or '.join(OPEN)}")
        return
    if not rules:
        found.problems.append(f"{name} is marked open, but is not a rule")
    for rule in rules:
        if rule in found.open:
            found.problems.append(f"{rule} is marked open twice")
        found.open[rule] = (cells[0], cells[1])


# ---------------------------------------------------------------- the tests


def cited_in(text: str) -> Iterator[Rule]:
    """Yield every rule that `text` cites."""
    for match in _CITED.finditer(text):
        section, first, last_section, last = match.groups()
        yield Rule(int(section), int(first))
        if last_section == section:
            yield from (Rule(int(section), number) for number in range(int(first) + 1, int(last) + 1))
        elif last_section is not None:
            yield Rule(int(last_section), int(last))


def comments(text: str) -> dict[int, str]:
    """Return the comments by line."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}


def is_test(node: ast.AST) -> bool:
    """Return whether pytest runs this function."""
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_")


def conformance_suites(texts: Iterable[str]) -> dict[str, ast.ClassDef]:
    """Return the conformance suites that test classes inherit from, by class name."""
    nodes = (node for text in texts for node in ast.parse(text).body)
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef) and node.name.endswith("Conformance")}


def citations(file: str, text: str, suites: dict[str, ast.ClassDef]) -> Iterator[tuple[Rule, Citation]]:
    """Yield every (rule, test) of one module."""
    module = ast.parse(text)
    remarks = comments(text)
    classes = {**suites, **{node.name: node for node in module.body if isinstance(node, ast.ClassDef)}}
    has_tests = False
    for node in module.body:
        if is_test(node):
            has_tests = True
            yield from _of_test(f"{file}::{_name(node)}", node, remarks)
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            has_tests = True
            for ancestor in _line_of(node, classes):
                yield from _of_class(f"{file}::{node.name}", ancestor, {} if ancestor.name in suites else remarks)
    if has_tests:
        yield from ((rule, Citation(True, file)) for rule in set(cited_in(ast.get_docstring(module) or "")))


def _of_test(name: str, node: ast.AST, remarks: dict[int, str]) -> Iterator[tuple[Rule, Citation]]:
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    texts = [ast.get_docstring(node) or ""]
    texts += [remark for line, remark in remarks.items() if first <= line <= (node.end_lineno or first)]
    yield from ((rule, Citation(False, name)) for rule in sorted({r for text in texts for r in cited_in(text)}))


def _of_class(prefix: str, node: ast.ClassDef, remarks: dict[int, str]) -> Iterator[tuple[Rule, Citation]]:
    of_all = sorted(set(cited_in(ast.get_docstring(node) or "")))
    for test in filter(is_test, node.body):
        name = f"{prefix}::{_name(test)}"
        yield from _of_test(name, test, remarks)
        yield from ((rule, Citation(False, name)) for rule in of_all)


def _line_of(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Iterator[ast.ClassDef]:
    """Yield the class and its known base classes."""
    yield node
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes:
            yield from _line_of(classes[base.id], classes)


def _name(node: ast.AST) -> str:
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    return node.name


# ---------------------------------------------------------------- both together


@dataclass(frozen=True)
class Findings:
    """Rule -> its tests, named tests before whole modules; and the problems."""

    semantics: Semantics
    proofs: dict[Rule, list[Citation]]
    problems: list[str]


def judge(semantics: Semantics, tests: Sequence[tuple[str, str]], suites: Sequence[str] = ()) -> Findings:
    """Compare the document with the tests. Args: tests: (file, text). suites: modules with conformance suites."""
    proofs: dict[Rule, set[Citation]] = {rule: set() for rule in semantics.rules}
    problems = list(semantics.problems)
    inherited = conformance_suites(suites)
    for file, text in tests:
        for rule, citation in citations(file, text, inherited):
            proofs.setdefault(rule, set()).add(citation)
    for rule in sorted(proofs):
        named = [citation.name for citation in sorted(proofs[rule])]
        if rule not in semantics.rules:
            problems.append(f"{rule} is not a rule, but is cited by {', '.join(named[:SHOWN])}")
        elif not named and semantics.open.get(rule, ("",))[0] != "whole":
            problems.append(f"{rule} has no test: {semantics.rules[rule][:100]}")
        elif named and semantics.open.get(rule, ("",))[0] == "whole":
            problems.append(f"{rule} is marked open as a whole, but is cited by {', '.join(named[:SHOWN])}")
    return Findings(semantics, {rule: sorted(found) for rule, found in proofs.items()}, problems)


def listing(findings: Findings, *, everything: bool = False) -> Iterator[str]:
    """Yield one block per rule: the number of tests, the tests, and open parts."""
    semantics = findings.semantics
    for rule in sorted(semantics.rules):
        tests = findings.proofs[rule]
        extent, lacking = semantics.open.get(rule, ("", ""))
        mark = {"": "", "part": f"  (open in part: {lacking})", "whole": f"  (open: {lacking})"}[extent]
        yield f"{str(rule):5} {len(tests):3} {'test ' if len(tests) == 1 else 'tests'}{mark}"
        shown = tests if everything else tests[:SHOWN]
        yield from (f"        {test.name}{' (all)' if test.whole_module else ''}" for test in shown)
        if len(shown) < len(tests):
            yield f"        and {len(tests) - len(shown)} more"
    whole = sum(extent == "whole" for extent, _ in semantics.open.values())
    part = len(semantics.open) - whole
    yield (
        f"rules: {len(semantics.rules)}, with tests: {sum(bool(findings.proofs[r]) for r in semantics.rules)} "
        f"({part} of them open in part), open: {whole}"
    )


def findings_of(repository: Path) -> Findings:
    """Return the findings of a checkout."""
    folder = repository / "tests"
    tests = [(p.relative_to(repository).as_posix(), p.read_text(encoding="utf-8")) for p in folder.rglob("*.py")]
    suites = (repository / "spark_runtime" / "tidegate" / "testing").glob("*_conformance.py")
    document = (repository / "docs" / "semantics.md").read_text(encoding="utf-8")
    return judge(read_semantics(document), sorted(tests), [p.read_text(encoding="utf-8") for p in suites])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tests of each rule; return 1 if there is a gap."""
    parser = argparse.ArgumentParser(description="List which tests prove which rule of docs/semantics.md.")
    parser.add_argument("--all", action="store_true", help=f"list every test, not {SHOWN} a rule")
    parser.add_argument("--quiet", action="store_true", help="print only the last line and the problems")
    given = parser.parse_args(arguments)
    findings = findings_of(REPOSITORY)
    lines = list(listing(findings, everything=given.all))
    print("\n".join(lines[-1:] if given.quiet else lines))
    for problem in findings.problems:
        print(f"rules: {problem}", file=sys.stderr)
    return 1 if findings.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
