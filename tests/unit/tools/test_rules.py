"""`make rules`: what counts as a rule, what counts as its test, and what is a gap."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest
from rules import Citation, Findings, Rule, findings_of, judge, listing, read_semantics

# Put together here: an example is no citation by this module, and one rule is not there.
ONE, TWO, THREE = (f"S1.{number}" for number in (1, 2, 3))
UNKNOWN = "S" + "9.9"
DOCUMENT = dedent("""\
    # Semantics

    1. Not a rule: no section of rules.

    ## S1 Triggering
    1. The first rule, which is long
       and goes on in a second line.
    2. The second.
    3. The third.

    Some words between.

    ## S8 Batch
    1. One.
    2. Two.

    ## Limits of version 0.1

    | rule | open | not in this version |
    |---|---|---|
    | S1.3 | part | half of it |
    | S8 | whole | all of it |
    """)


def found(*tests: str, document: str = DOCUMENT, suite: str = "") -> Findings:
    return judge(read_semantics(document), [(f"t{i}.py", dedent(text)) for i, text in enumerate(tests)], [suite])


def proofs(findings: Findings, rule: str) -> list[str]:
    return [citation.name for r, given in findings.proofs.items() if str(r) == rule for citation in given]


def test_rules_are_the_numbered_lines_of_the_numbered_sections_with_their_wrapped_lines() -> None:
    semantics = read_semantics(DOCUMENT)
    assert [str(rule) for rule in semantics.rules] == [ONE, TWO, THREE, "S8.1", "S8.2"]
    assert semantics.rules[Rule(1, 1)] == "The first rule, which is long and goes on in a second line."
    assert semantics.rules[Rule(1, 3)] == "The third."
    assert semantics.problems == []


def test_the_table_marks_rules_open_in_part_and_sections_as_a_whole() -> None:
    assert read_semantics(DOCUMENT).open == {
        Rule(1, 3): ("part", "half of it"),
        Rule(8, 1): ("whole", "all of it"),
        Rule(8, 2): ("whole", "all of it"),
    }


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (f"| {UNKNOWN} | part | x |", f"{UNKNOWN} is marked open, but is not a rule"),
        ("| S8.1 | part | x |", "S8.1 is marked open twice"),
        ("| S1.2 | some | x |", "must have a cell that says part or whole"),
        ("| S1.2 | no extent |", "must have a cell that says"),
    ],
)
def test_a_table_that_contradicts_itself_is_a_problem(row: str, problem: str) -> None:
    assert any(problem in found for found in read_semantics(DOCUMENT + row + "\n").problems)


def test_a_test_cites_in_its_docstring_in_its_comments_and_beside_its_parameters() -> None:
    given = found(f'''
        import pytest

        # {THREE}: between tests; of nobody
        def helper():
            """{THREE}: of no test."""

        def test_one():
            """{ONE}: said in words."""

        @pytest.mark.parametrize("x", [
            1,  # {TWO}
        ])
        def test_two(x):
            assert "{THREE} in a text is no citation"
        ''')
    assert proofs(given, ONE) == ["t0.py::test_one"]
    assert proofs(given, TWO) == ["t0.py::test_two"]
    assert proofs(given, THREE) == []


def test_a_range_cites_all_rules_in_it() -> None:
    given = found(f'def test_all():\n    """{ONE}-{THREE}."""\n')
    assert [proofs(given, rule) for rule in (ONE, TWO, THREE)] == [["t0.py::test_all"]] * 3


def test_a_module_cites_for_all_its_tests_and_not_without_any() -> None:
    given = found(f'"""{ONE}."""\n\n\ndef test_x():\n    pass\n', f'"""{TWO}."""\n\n\ndef helper():\n    pass\n')
    assert given.proofs[Rule(1, 1)] == [Citation(True, "t0.py")]
    assert proofs(given, TWO) == []


def test_classes_cite_for_their_tests_and_inherit_the_citations_of_a_suite() -> None:
    suite = f'class SinkConformance:\n    def test_kept(self):\n        """{ONE}."""\n'
    given = found(
        f'''
        class Base(SinkConformance):
            """Not run by itself."""

            def test_added(self):
                """{TWO}."""

        class TestReal(Base):
            """{THREE}."""

            async def test_own(self):
                pass
        ''',
        suite=suite,
    )
    assert proofs(given, ONE) == ["t0.py::TestReal::test_kept"]
    assert proofs(given, TWO) == ["t0.py::TestReal::test_added"]
    assert proofs(given, THREE) == ["t0.py::TestReal::test_own"]


def test_a_rule_without_a_test_is_a_gap_unless_it_is_open_as_a_whole() -> None:
    given = found(f'def test_all():\n    """{ONE}."""\n')
    assert [problem.partition(":")[0] for problem in given.problems] == [
        f"{TWO} has no test",
        f"{THREE} has no test",
    ]


def test_a_test_of_a_rule_that_is_open_as_a_whole_is_a_contradiction() -> None:
    given = found(f'def test_all():\n    """{ONE}-{THREE} and S8.2."""\n')
    assert given.problems == ["S8.2 is marked open as a whole, but is cited by t0.py::test_all"]


def test_a_citation_of_a_rule_that_is_not_there_is_named() -> None:
    given = found(f'def test_all():\n    """{ONE}-{THREE}, {UNKNOWN}."""\n')
    assert given.problems == [f"{UNKNOWN} is not a rule, but is cited by t0.py::test_all"]


def test_the_listing_shows_three_tests_a_rule_and_how_many_more() -> None:
    tests = "\n\n".join(f'def test_{name}():\n    """{ONE}."""' for name in "abcde")
    given = found(tests)
    lines = list(listing(given))
    assert lines[0] == f"{ONE}    5 tests"
    assert lines[1:5] == [*(f"        t0.py::test_{name}" for name in "abc"), "        and 2 more"]
    assert f"{THREE}    0 tests  (open in part: half of it)" in lines
    assert "S8.1    0 tests  (open: all of it)" in lines
    assert lines[-1] == "rules: 5, with tests: 1 (1 of them open in part), open: 2"
    assert "        t0.py::test_e" in list(listing(given, everything=True))


def test_every_rule_of_this_repository_has_a_test_or_is_open() -> None:
    findings = findings_of(Path(__file__).parents[3])
    assert len(findings.semantics.rules) > 40
    assert findings.problems == []
