"""Threads in which the daemon is asked: so many at most, and a stop that does not wait for ever."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import structlog

log = structlog.get_logger()

STOP_S = 2.0
_numbers = itertools.count(1)

Value = TypeVar("Value")


class Pool:
    """A few threads for calls that may take their time."""

    def __init__(self, name: str, most: int) -> None:
        self._prefix = f"http-{name}-{next(_numbers)}_"
        self._executor = ThreadPoolExecutor(most, self._prefix)

    async def run(self, call: Callable[..., Value], *given: object) -> Value:
        """Return what a call returns, from one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *given)

    def close(self) -> None:
        """End the threads; one whose call goes on is left behind after a while, and said."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        end = time.monotonic() + STOP_S
        for thread in threading.enumerate():
            if thread.name.startswith(self._prefix):
                thread.join(max(0.0, end - time.monotonic()))
                if thread.is_alive():
                    log.warning("http_call_goes_on", thread=thread.name)
