"""`make words` flags the phrases that docs/contributing/writing.md advises against, in documents and in source."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import prose
import pytest
import words

WRITING = words.REPOSITORY / "docs" / "contributing" / "writing.md"
RULES = words.read_rules()
LINTER = words.Words(RULES)
MOST_EXCEPTIONS = 10


def left_cells(heading: str) -> list[str]:
    return [left for left, _ in words.table_rows(WRITING.read_text(encoding="utf-8"), heading)]


def alternatives(cell: str) -> list[str]:
    """`say again, anew` stands for two phrases; brackets explain."""
    return [part.strip() for part in re.split(r", | / ", re.sub(r" \(.*?\)", "", cell))]


def flagged(text: str, name: str = "page.md") -> list[words.Finding]:
    reader = prose.reader_of(Path(name))
    assert reader is not None
    return list(LINTER.findings(name, list(reader(text)), document=name.endswith(".md")))


@pytest.mark.parametrize("phrase", [phrase for cell in left_cells("Replacements") for phrase in alternatives(cell)])
def test_every_phrase_of_the_replacements_is_flagged_in_a_document_and_in_a_message(phrase: str) -> None:
    (in_document,) = {finding.line for finding in flagged(f"# Page\n\nThe driver\nhas seen {phrase}.\n")}
    assert in_document == 4
    assert flagged(f'raise JobError("the driver has seen {phrase}")\n', "module.py")
    assert flagged(f"const text = `the driver of ${{job}} has seen {phrase}`;\n", "page.js")


@pytest.mark.parametrize("sentence", left_cells("Before and after"))
def test_every_sentence_of_before_and_after_is_flagged_in_a_document_and_in_a_docstring(sentence: str) -> None:
    assert flagged(f"{sentence}\n")
    assert flagged(f'def f():\n    """{sentence}"""\n', "module.py")


@pytest.mark.parametrize("heading", ["Replacements", "Before and after"])
def test_the_right_cells_pass(heading: str) -> None:
    rows = words.table_rows(WRITING.read_text(encoding="utf-8"), heading)
    assert [(right, found) for _, right in rows if (found := flagged(f"{right}\n"))] == []


def test_every_row_has_its_rule_under_its_own_text() -> None:
    rules = tomllib.loads(words.RULES.read_text(encoding="utf-8"))["rule"]
    rows = [rule["row"] for rule in rules if "row" in rule]
    assert sorted(rows) == sorted(left_cells("Replacements") + left_cells("Before and after"))


def test_every_variant_of_the_glossary_is_flagged_with_the_term_to_write() -> None:
    rows = words.table_rows(words.GLOSSARY.read_text(encoding="utf-8"), "Variants to avoid")
    assert len(rows) > 15
    for variants, term in rows:
        for variant in variants.split(", "):
            assert f"write {term}" in {finding.instead for finding in flagged(f"It has one {variant}.\n")}, variant


def test_a_sentence_over_thirty_words_is_flagged_in_a_document_only() -> None:
    fits = " ".join(["word"] * words.MOST_WORDS)
    assert flagged(f"One.\nTwo {fits}.\n")[0] == words.Finding(
        "page.md", 2, "Two word word word word word word word ...", "31 words; split it (at most 30)"
    )
    assert flagged(f"{fits}. {fits}.\n") == []
    assert flagged(f'"""Two {fits}."""\n', "module.py") == []


@pytest.mark.parametrize(
    "sentence",
    [
        "A value that is given wins.",
        "The checkpoint was taken at 10:00.",
        "What happens if the driver dies?",
        "The option `behind` is code, not prose.",
        "It had two slots and had waited for one.",
        "That append completes the checkpoint.",
        "The watermark passes the end of the window.",
        "Look up the job id.",
    ],
)
def test_plain_sentences_pass(sentence: str) -> None:
    assert flagged(f"{sentence}\n") == []


def test_a_code_block_of_a_document_is_not_prose() -> None:
    assert flagged("Run it:\n\n```\ntold behind anew\n```\n\n    indented anew\n") == []


def test_source_is_read_by_its_docstrings_comments_and_messages() -> None:
    source = (
        '"""Rows anew."""\nimport x  # not anew\n\nanew = {"anew": x}\n\n'
        "def f(n):\n    # The rows\n    # are sent anew.\n"
        '    raise E(f"{n} rows " "sent anew")\n'
        "    raise E(f\"sent {'so, anew' if n else 'now'}\")\n"
    )
    assert sorted(finding.line for finding in flagged(source, "module.py")) == [1, 2, 8, 9, 10]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("page.js", "// sent anew\n"),
        ("page.js", 'const anew = 1; say("sent anew");\n'),
        ("page.html", "<p title='x'>sent anew</p>\n"),
        ("page.html", '<p title="sent anew">x</p>\n'),
        ("page.css", "/* sent anew */\n"),
        ("run.sh", "# sent anew\n"),
        ("run.sh", 'echo "sent anew"\n'),
        ("Makefile", "go:  ## sent anew\n"),
        ("setup.cfg", "# sent anew\n"),
        ("ci.yml", "# sent anew\n"),
    ],
)
def test_each_kind_of_file_is_read(name: str, source: str) -> None:
    assert [finding.text for finding in flagged(source, name)] == ["anew"]


def test_an_exception_covers_its_text_in_its_file_only(tmp_path: Path) -> None:
    for name in ("one.md", "two.md"):
        (tmp_path / name).write_text("Sent anew, behind.\n", encoding="utf-8")
    exception = {"path": "one.md", "text": "anew", "reason": "quoted"}
    rules = words.Rules(RULES.checks, RULES.enabled, (exception,))
    findings, used = words.lint([tmp_path], rules, tmp_path)
    assert [(finding.path, finding.text) for finding in findings] == [
        ("one.md", "behind"),
        ("two.md", "anew"),
        ("two.md", "behind"),
    ]
    assert used == [exception]


def test_exceptions_are_few_and_each_has_a_reason() -> None:
    assert len(RULES.exceptions) <= MOST_EXCEPTIONS
    assert all(exception.keys() == {"path", "text", "reason"} and exception["reason"] for exception in RULES.exceptions)


def test_the_command_names_file_line_text_and_remedy_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = words.REPOSITORY / "tests" / "unit" / "tools" / "test_words.py"
    monkeypatch.setattr("sys.argv", ["words.py", str(page)])
    assert words.main() == 1
    assert f"tests/unit/tools/{page.name}:1: " not in (out := capsys.readouterr().out)
    assert re.search(r"^tests/unit/tools/test_words\.py:\d+: 'anew': write repeat or again$", out, re.MULTILINE)
    monkeypatch.setattr("sys.argv", ["words.py", str(WRITING)])
    assert words.main() == 0
