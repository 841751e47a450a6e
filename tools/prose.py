"""Reads the prose of a file, by paragraph: documents, and docstrings, comments and messages of source code.

Inline code and the values in f-strings are replaced by `Q1`, `Q2` and so on, so that only prose is checked.
"""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from pygments.lexer import Lexer
from pygments.lexers import BashLexer, CssLexer, HtmlLexer, IniLexer, JavascriptLexer, MakefileLexer, YamlLexer
from pygments.token import Comment, String, Text

CODE = "Q"
"""Placeholder for code. Numbers are added, so that two adjacent ones are not a repeated word."""
VALUE = "`value`"
INLINE_CODE = re.compile(r"```.*?```|``[^`]+``|`[^`]*`", re.DOTALL)
PROSE = re.compile(r"[A-Za-z]{2,}[,;:.]?[ \n]+[A-Za-z]{2,}")
"""Two adjacent words: a string without them is a name or a format, not a message."""
DIRECTIVE = re.compile(r"#!|#?\s*(?:noqa|type:|ruff:|pragma|fmt:)")


@dataclass(frozen=True)
class Paragraph:
    """Adjacent lines of prose."""

    line: int
    """Number of the first line in the file, from 1."""
    lines: tuple[str, ...]


def paragraphs(line: int, text: str) -> Iterator[Paragraph]:
    """Yield the parts of a text between empty lines, with inline code masked."""
    masks = itertools.count(1)
    text = INLINE_CODE.sub(lambda code: f"{CODE}{next(masks)}" + "\n" * code[0].count("\n"), text)
    part: list[str] = []
    for number, content in enumerate([*text.split("\n"), ""], line):
        if content.strip():
            part.append(content.strip())
        elif part:
            yield Paragraph(number - len(part), tuple(part))
            part = []


def of_markdown(text: str) -> Iterator[Paragraph]:
    """Yield paragraphs, headings, list items and table cells, without code blocks."""
    tokens = MarkdownIt().enable("table").parse(text)
    for token in tokens:
        if token.type == "inline" and token.map:
            pieces = []
            for child in token.children or ():
                if child.type in ("softbreak", "hardbreak"):
                    pieces.append("\n")
                elif child.type == "code_inline":
                    pieces.append("`code`")
                elif child.type == "text":
                    pieces.append(child.content)
            yield from paragraphs(token.map[0] + 1, "".join(pieces))


def of_python(text: str) -> Iterator[Paragraph]:
    """Yield docstrings, comments, and every string with words in it: errors, log lines, help texts."""
    yield from _python_comments(text)
    tree = ast.parse(text)
    docstrings = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                docstrings.add(statement.value)
    f_string_parts = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in f_string_parts:
            if node in docstrings or PROSE.search(node.value):
                yield from paragraphs(node.lineno, node.value)
        elif isinstance(node, ast.JoinedStr):
            message = "".join(
                part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else VALUE
                for part in node.values
            )
            if PROSE.search(message):
                yield from paragraphs(node.lineno, message)


def _python_comments(text: str) -> Iterator[Paragraph]:
    comments: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not DIRECTIVE.match(token.string):
            comments[token.start[0]] = token.string.lstrip("#").strip()
    yield from _adjacent(comments)


def _adjacent(comments: Mapping[int, str]) -> Iterator[Paragraph]:
    """Combine comments on adjacent lines to one paragraph."""
    for first in [line for line in comments if line - 1 not in comments]:
        last = first
        while last + 1 in comments:
            last += 1
        yield from paragraphs(first, "\n".join(comments[line] for line in range(first, last + 1)))


def _of_tokens(lexer: Callable[[], Lexer], *, strings: bool) -> Callable[[str], Iterator[Paragraph]]:
    """Return a reader of comments, and with `strings` of strings and text between tags, by a lexer of Pygments."""

    def read(text: str) -> Iterator[Paragraph]:
        comments: dict[int, str] = {}
        pieces: list[str] = []
        started = 0
        kind = None
        for start, token, value in [*lexer().get_tokens_unprocessed(text), (len(text), Text, "")]:
            if strings and token in String:
                found: object = "string"
            elif strings and lexer is HtmlLexer and token in Text and value.strip():
                found = "text"
            else:
                found = None
            if found != kind and pieces:
                message = "".join(pieces).strip("`'\"")
                if PROSE.search(message):
                    yield from paragraphs(text.count("\n", 0, started) + 1, message)
                pieces = []
            kind = found
            if found:
                started = started if pieces else start
                pieces.append(value if token not in String.Interpol else VALUE)
            elif token in Comment and token not in Comment.Preproc:
                for number, content in enumerate(value.split("\n"), text.count("\n", 0, start) + 1):
                    comments[number] = content.strip().lstrip("#/*;").removesuffix("*/").strip()
        yield from _adjacent(comments)

    return read


READERS: Mapping[str, Callable[[str], Iterator[Paragraph]]] = {
    ".md": of_markdown,
    ".py": of_python,
    ".js": _of_tokens(JavascriptLexer, strings=True),
    ".html": _of_tokens(HtmlLexer, strings=True),
    ".css": _of_tokens(CssLexer, strings=False),
    ".sh": _of_tokens(BashLexer, strings=True),
    ".cfg": _of_tokens(IniLexer, strings=False),
    ".toml": _of_tokens(IniLexer, strings=False),
    ".yaml": _of_tokens(YamlLexer, strings=False),
    ".yml": _of_tokens(YamlLexer, strings=False),
    "Makefile": _of_tokens(MakefileLexer, strings=False),
}
"""Suffix or whole name of a file -> its reader."""


def reader_of(path: Path) -> Callable[[str], Iterator[Paragraph]] | None:
    """Return the reader for a file, or None for a file without prose."""
    return READERS.get(path.name) or READERS.get(path.suffix)
