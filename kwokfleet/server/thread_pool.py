"""Bounded thread pool for calls to the daemon, with a time limit for closing."""

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


class ThreadPool:
    """Threads for blocking calls."""

    def __init__(self, name: str, size: int) -> None:
        self._prefix = f"http-{name}-{next(_numbers)}_"
        self._executor = ThreadPoolExecutor(size, self._prefix)

    async def run(self, call: Callable[..., Value], *arguments: object) -> Value:
        """Run a call in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *arguments)

    def close(self) -> None:
        """Stop the threads; a call that does not end in time is logged and abandoned."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        end = time.monotonic() + STOP_S
        for thread in threading.enumerate():
            if thread.name.startswith(self._prefix):
                thread.join(max(0.0, end - time.monotonic()))
                if thread.is_alive():
                    log.warning("http_call_still_running", thread=thread.name)
