"""Formatting of Fleet files."""

import pytest

from kwokfleet.documents import formatter
from kwokfleet.documents.problems import Problem

UNFORMATTED = """\
apiVersion:   kwokfleet.dev/v1alpha1   \r
kind: Fleet # a fleet\r
spec:\r
        # pools\r
        nodePools:\r
        -   name: "a"\r
            replicas:    3\r
            resources: { cpu: 4,memory: '5Gi' }\r
\r
        # second\r
        -   {name: b, replicas: 2}\r
---\r
# kwok\r
kind: KwokController\r
"""

FORMATTED = """\
apiVersion: kwokfleet.dev/v1alpha1
kind: Fleet # a fleet
spec:
  # pools
  nodePools:
    - name: "a"
      replicas: 3
      resources: {cpu: 4, memory: '5Gi'}

    # second
    - {name: b, replicas: 2}
---
# kwok
kind: KwokController
"""


def test_only_whitespace_changes() -> None:
    """Indentation, spaces and line ends; comments, quotes, order and flow style stay."""
    assert formatter.format_text("x", UNFORMATTED) == FORMATTED


def test_a_formatted_file_does_not_change() -> None:
    """Formatting is idempotent."""
    assert formatter.format_text("x", FORMATTED) == FORMATTED


def test_block_scalars_do_not_change() -> None:
    """A # inside is not a comment, and trailing spaces are content."""
    text = "a:\n  text: |\n    # not a comment\n      x   \n\n    end\n  # a comment\n  b: 1\n"
    assert formatter.format_text("x", text) == text


@pytest.mark.parametrize("text", ["a: [\n", "a: 1\na: 2\n", "a: no\n"])
def test_an_invalid_file_is_not_formatted(text: str) -> None:
    """The result is a Problem."""
    assert isinstance(formatter.format_text("x", text), Problem)


def test_no_comment_is_lost() -> None:
    """A file is not formatted if a comment would be lost."""
    formatted = formatter.format_text("x", "a: 1\n...\n# the end\n")
    assert isinstance(formatted, Problem) or "# the end" in formatted


@pytest.mark.parametrize("text", ["", "# only a comment\n", "\n\n"])
def test_an_empty_file_stays_empty(text: str) -> None:
    """There is nothing to format."""
    assert formatter.format_text("x", text) == text.strip("\n") + ("\n" if text.strip() else "")


def test_commented_out_lines_keep_their_indentation() -> None:
    """They are valid when the comment sign is removed."""
    text = "a:\n  - name: x\n    # labels: {}\n  # - name: y\n# b: 1\nc: 2\n  # d: 3\n"
    assert formatter.format_text("x", text) == text.replace("  # d: 3", "# d: 3")
