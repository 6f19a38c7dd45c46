"""Threads of ours are threads: what Python calls on them is Python's own."""

import importlib
import pkgutil
import threading

import kwokfleet


def test_no_thread_of_ours_hides_what_python_calls_on_it() -> None:
    """One that has a `_delete` of its own is never taken off the list of threads when it ends."""
    for module in pkgutil.walk_packages(kwokfleet.__path__, "kwokfleet."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    called = {name for name, value in vars(threading.Thread).items() if name.startswith("_") and callable(value)}
    ours = [each for each in _below(threading.Thread) if each.__module__.startswith("kwokfleet.")]
    assert ours
    hidden = {f"{each.__qualname__}.{name}" for each in ours for name in called & vars(each).keys()}
    assert {name for name in hidden if not name.endswith(".__init__")} == set()


def _below(kind: type[threading.Thread]) -> list[type[threading.Thread]]:
    return [each for child in kind.__subclasses__() for each in (child, *_below(child))]
