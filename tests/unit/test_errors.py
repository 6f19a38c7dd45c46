import re
from pathlib import Path

from kwokfleet import errors

README = Path(__file__).parents[2] / "README.md"


def leaves(kind: type[errors.KwokfleetError]) -> set[type[errors.KwokfleetError]]:
    """Return the errors below *kind* that have none below themselves."""
    below = kind.__subclasses__()
    return {kind} if not below else set().union(*(leaves(each) for each in below))


def test_every_kind_of_error_has_an_exit_code_of_its_own() -> None:
    """A script can tell kinds of trouble apart."""
    codes = [kind.exit_code for kind in errors.KwokfleetError.__subclasses__()]
    assert len(set(codes)) == len(codes)
    assert errors.ExitCode.BUG not in codes


def test_errors_never_look_like_an_answer() -> None:
    """0 and 1 are answers (same, different); every error is 2 or more, as kubectl diff has it."""
    assert all(kind.exit_code >= 2 for kind in leaves(errors.KwokfleetError))


def test_readme_lists_every_exit_code() -> None:
    """The table in the README and the program agree."""
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", README.read_text(), flags=re.MULTILINE)}
    assert listed == {code.value for code in errors.ExitCode}
