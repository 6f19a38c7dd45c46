"""Fleet files in one style."""

import pytest

from kwokfleet.documents import formatter
from kwokfleet.documents.problems import Problem

MESSY = """\
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

NEAT = """\
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


def test_looks_are_made_uniform_and_nothing_else() -> None:
    """Indentation, spaces and line ends; comments, quotes, order and flow style stay."""
    assert formatter.format_text("x", MESSY) == NEAT


def test_what_is_neat_stays() -> None:
    """Formatting twice is formatting once."""
    assert formatter.format_text("x", NEAT) == NEAT


def test_texts_of_several_lines_are_left_alone() -> None:
    """A # inside is no comment, and blanks at the end of a line may be meant."""
    text = "a:\n  text: |\n    # not a comment\n      x   \n\n    end\n  # a comment\n  b: 1\n"
    assert formatter.format_text("x", text) == text


@pytest.mark.parametrize("text", ["a: [\n", "a: 1\na: 2\n", "a: no\n"])
def test_a_broken_file_is_left_as_it_is(text: str) -> None:
    """Whoever mends it should find it as they wrote it."""
    assert isinstance(formatter.format_text("x", text), Problem)


def test_a_comment_that_would_be_lost_stops_it() -> None:
    """Better no change than a lost word."""
    made = formatter.format_text("x", "a: 1\n...\n# the end\n")
    assert isinstance(made, Problem) or "# the end" in made


@pytest.mark.parametrize("text", ["", "# only a comment\n", "\n\n"])
def test_an_empty_file_stays_empty(text: str) -> None:
    """There is nothing to format."""
    assert formatter.format_text("x", text) == text.strip("\n") + ("\n" if text.strip() else "")


def test_lines_put_out_of_use_stay_at_their_level() -> None:
    """Whoever puts them back in use finds them where they belong."""
    text = "a:\n  - name: x\n    # labels: {}\n  # - name: y\n# b: 1\nc: 2\n  # d: 3\n"
    assert formatter.format_text("x", text) == text.replace("  # d: 3", "# d: 3")
