"""`make words`: finds phrases that docs/contributing/writing.md advises against, and prints what to write instead.

It runs proselint with its own checks and the project's checks. The project's checks are in tools/words.toml, by row of
the tables of writing.md, and in the table of variants of docs/glossary.md.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prose import Paragraph, reader_of
from proselint.checks import __register__ as proselint_checks
from proselint.registry import CheckRegistry
from proselint.registry.checks import Check, CheckFlags, CheckResult
from proselint.registry.checks.engine import Fancy
from proselint.registry.checks.types import ExistenceSimple
from proselint.tools import LintFile

REPOSITORY = Path(__file__).resolve().parents[1]
RULES = REPOSITORY / "tools" / "words.toml"
GLOSSARY = REPOSITORY / "docs" / "glossary.md"
EVERYWHERE = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "CODE_OF_CONDUCT.md",
    "SECURITY.md",
    "Makefile",
    "setup.cfg",
    ".github",
    "newsfragments",
    "docs",
    "dags",
    "provider",
    "spark_runtime",
    "tools",
)
"""Files and folders that are checked by default."""
MOST_WORDS = 30
"""Most words in a sentence of a document. Inline code counts as one word."""
SENTENCE = re.compile(r"(?:[^.!?]|[.!?](?!\s|$))+[.!?]?")
BREAK = "\N{PILCROW SIGN}"
"""A separator between two paragraphs, so that no pattern matches across them."""
SENTENCE_START = rf"(?:(?<=[.!?][ \n])|(?<={BREAK}\n))"


@dataclass(frozen=True, order=True)
class Finding:
    """A place in a text that violates a rule."""

    path: str
    line: int
    text: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text!r}: {self.instead}"


@dataclass(frozen=True)
class Rules:
    """The project's own rules: checks for proselint, and exceptions."""

    checks: tuple[Check, ...]
    enabled: dict[str, bool]
    exceptions: tuple[dict[str, str], ...]


def pattern(source: str) -> str:
    """Convert a pattern of words.toml to a regular expression: `^` is the start of a sentence, a space may be a line
    break."""
    spaced = source.replace(" ", r"[ \n]")
    return SENTENCE_START + spaced[1:] if spaced.startswith("^") else spaced


def check(name: str, source: str, instead: str, *, exact: bool = False) -> Check:
    """Create a check of proselint for one pattern; `exact`: case matters."""
    engine = Fancy()
    engine.opts = type(engine.opts)(case_insensitive=not exact)
    return Check(
        check_type=ExistenceSimple(pattern(source)),
        engine=engine,
        path=f"tidegate.{name}",
        message=instead.replace("{", "{{").replace("}", "}}"),
        flags=CheckFlags(allow_quotes=True),
    )


def table_rows(document: str, heading: str) -> list[tuple[str, str]]:
    """Return the first two cells of every row of the table below a heading, without code marks."""
    section = re.split(rf"^## {heading}$", document, flags=re.MULTILINE)[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|", section, flags=re.MULTILINE)
    return [(left.replace("`", ""), right.replace("`", "")) for left, right in rows[1:]]


def variants(glossary: str) -> Iterator[Check]:
    """Create a check for each variant of a term in the glossary."""
    for banned, term in table_rows(glossary, "Variants to avoid"):
        for word in banned.split(", "):
            yield check("glossary", rf"\b{re.escape(word).replace(chr(92) + ' ', ' ')}(?:s|es)?\b", f"write {term}")


def read_rules(rules: Path = RULES, glossary: Path = GLOSSARY) -> Rules:
    """Read the rules of the repository."""
    data: dict[str, Any] = tomllib.loads(rules.read_text(encoding="utf-8"))
    own = [
        check("writing", source, rule["instead"], exact=rule.get("exact", False))
        for rule in data["rule"]
        for source in rule["patterns"]
    ]
    return Rules(
        checks=(*own, *variants(glossary.read_text(encoding="utf-8"))),
        enabled={**data["proselint"], "tidegate": True},
        exceptions=tuple(data.get("exception", ())),
    )


class Words:
    """The linter: proselint with the project's checks."""

    def __init__(self, rules: Rules) -> None:
        registry = CheckRegistry()
        registry.checks.clear()
        registry.register_many((*rules.checks, *proselint_checks))
        self._rules = rules

    def findings(self, path: str, prose: Sequence[Paragraph], *, document: bool) -> Iterator[Finding]:
        """Yield the findings in one file's prose, before exceptions. In a document, also long sentences."""
        lines: list[tuple[int, str]] = []
        for paragraph in prose:
            lines += enumerate(paragraph.lines, paragraph.line)
            lines.append((0, BREAK))
            if document:
                yield from self._long_sentences(path, paragraph)
        if not lines:
            return
        file = LintFile(path, "\n".join([BREAK, *(text for _, text in lines)]))
        for result in file.lint({"max_errors": sys.maxsize, "checks": self._rules.enabled}):
            line = result.pos[0] - 2  # the first line is BREAK, and LintFile counts from 1
            yield Finding(
                path, lines[line][0], _matched(file, result.check_result), " ".join(result.check_result.message.split())
            )

    @staticmethod
    def _long_sentences(path: str, paragraph: Paragraph) -> Iterator[Finding]:
        text = "\n".join(paragraph.lines)
        for sentence in SENTENCE.finditer(text):
            words = re.findall(r"[\w'./@%-]*\w[\w'./@%-]*", sentence[0])
            if len(words) > MOST_WORDS:
                line = paragraph.line + text.count(
                    "\n", 0, sentence.start() + len(sentence[0]) - len(sentence[0].lstrip())
                )
                start = " ".join(words[:8])
                yield Finding(path, line, f"{start} ...", f"{len(words)} words; split it (at most {MOST_WORDS})")

    def excepted(self, finding: Finding) -> dict[str, str] | None:
        """Return the exception that covers a finding."""
        for exception in self._rules.exceptions:
            if exception["path"] == finding.path and exception["text"] == finding.text:
                return exception
        return None


def _matched(file: LintFile, result: CheckResult) -> str:
    start, end = result.span
    return " ".join(file.content[start:end].split())


def files_below(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield every file with prose at or below paths."""
    for path in paths:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in files if file.is_file() and reader_of(file))


def lint(paths: Iterable[Path], rules: Rules, root: Path = REPOSITORY) -> tuple[list[Finding], list[dict[str, str]]]:
    """Return findings in files below `paths`, and exceptions that covered one."""
    words = Words(rules)
    findings: list[Finding] = []
    used: list[dict[str, str]] = []
    for file in files_below(paths):
        reader = reader_of(file)
        assert reader is not None
        prose = list(reader(file.read_text(encoding="utf-8")))
        name = file.resolve().relative_to(root).as_posix()
        for finding in sorted(set(words.findings(name, prose, document=file.suffix == ".md"))):
            if exception := words.excepted(finding):
                used.append(exception)
            else:
                findings.append(finding)
    return findings, used


def main() -> int:
    """Print findings; return 1 if there are any, or if an exception covers nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", help="files and folders to check; default: the whole project")
    options = parser.parse_args()
    rules = read_rules()
    paths = [Path(path) for path in options.paths] or [REPOSITORY / name for name in EVERYWHERE]
    findings, used = lint(paths, rules)
    unused = [] if options.paths else [exception for exception in rules.exceptions if exception not in used]
    for finding in findings:
        print(finding)
    for exception in unused:
        print(f"{RULES.name}: the exception for {exception['text']!r} in {exception['path']} covers nothing; delete it")
    files = len({finding.path for finding in findings})
    print(f"words: {len(findings)} findings in {files} files, {len(rules.exceptions)} exceptions")
    return 1 if findings or unused else 0


if __name__ == "__main__":
    sys.exit(main())
