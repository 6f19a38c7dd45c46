import os
import threading
from pathlib import Path

import pytest

from kwokfleet import errors
from kwokfleet.embedded import locks


def unexpected_wait(_holder: str) -> None:
    """Fail: no wait is expected."""
    raise AssertionError("had to wait")


def test_a_second_holder_waits_and_knows_the_first(tmp_path: Path) -> None:
    """It gives up at its deadline, with a hint."""
    waited: list[str] = []
    with (
        locks.exclusive(tmp_path / "lock", deadline_s=1, on_wait=unexpected_wait),
        pytest.raises(errors.DeadlineError) as caught,
        locks.exclusive(tmp_path / "lock", deadline_s=0.3, on_wait=waited.append),
    ):
        pass
    assert str(os.getpid()) in caught.value.hint
    assert waited == [f"process {os.getpid()}"]


def test_a_held_lock_is_visible_to_others(tmp_path: Path) -> None:
    """Without waiting, and without creating the file."""
    path = tmp_path / "lock"
    assert not locks.is_held(path)
    with locks.exclusive(path, deadline_s=1, on_wait=unexpected_wait):
        assert locks.is_held(path)
    assert not locks.is_held(path)


def test_the_lock_is_free_after_an_error(tmp_path: Path) -> None:
    """An exception in the block releases it."""
    with pytest.raises(RuntimeError), locks.exclusive(tmp_path / "lock", deadline_s=1, on_wait=unexpected_wait):
        raise RuntimeError
    with locks.exclusive(tmp_path / "lock", deadline_s=1, on_wait=unexpected_wait):
        pass


def test_a_holder_may_remove_the_file(tmp_path: Path) -> None:
    """A process that waited for the removed file gets a lock on the new file."""
    path = tmp_path / "lock"
    waiting, entered, leave = threading.Event(), threading.Event(), threading.Event()

    def waiter() -> None:
        with locks.exclusive(path, deadline_s=10, on_wait=lambda _holder: waiting.set()):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=waiter)
    with locks.exclusive(path, deadline_s=1, on_wait=unexpected_wait):
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
