import os
import threading
from pathlib import Path

import pytest

from kwokfleet import errors
from kwokfleet.embedded import locks


def nobody(_holder: str) -> None:
    """Expect no waiting."""
    raise AssertionError("had to wait")


def test_a_second_holder_waits_and_is_told_for_whom(tmp_path: Path) -> None:
    """And gives up, with a next step, when its time is over."""
    waited: list[str] = []
    with (
        locks.exclusive(tmp_path / "lock", deadline_s=1, on_wait=nobody),
        pytest.raises(errors.DeadlineError) as caught,
        locks.exclusive(tmp_path / "lock", deadline_s=0.3, on_wait=waited.append),
    ):
        pass
    assert str(os.getpid()) in caught.value.hint
    assert waited == [f"process {os.getpid()}"]


def test_others_can_see_whether_it_is_held(tmp_path: Path) -> None:
    """Without waiting, and without making the file."""
    path = tmp_path / "lock"
    assert not locks.is_held(path)
    with locks.exclusive(path, deadline_s=1, on_wait=nobody):
        assert locks.is_held(path)
    assert not locks.is_held(path)


def test_the_lock_is_free_after_an_error(tmp_path: Path) -> None:
    """An exception inside does not lock everybody out."""
    with pytest.raises(RuntimeError), locks.exclusive(tmp_path / "lock", deadline_s=1, on_wait=nobody):
        raise RuntimeError
    with locks.exclusive(tmp_path / "lock", deadline_s=1, on_wait=nobody):
        pass


def test_a_holder_may_remove_the_file(tmp_path: Path) -> None:
    """Whoever waited for the removed file ends up with a lock that others can see."""
    path = tmp_path / "lock"
    waiting, entered, leave = threading.Event(), threading.Event(), threading.Event()

    def waiter() -> None:
        with locks.exclusive(path, deadline_s=10, on_wait=lambda _holder: waiting.set()):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=waiter)
    with locks.exclusive(path, deadline_s=1, on_wait=nobody):
        thread.start()
        assert waiting.wait(10)
        path.unlink()
    assert entered.wait(10)
    with (
        pytest.raises(errors.DeadlineError),
        locks.exclusive(path, deadline_s=0, on_wait=lambda _holder: None),
    ):
        pass
    leave.set()
    thread.join()
