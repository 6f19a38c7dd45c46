"""Benchmarks: programs that print a table and write JSON, each with its peers in the same run.

    make bench                          all of them
    python -m tests.bench cluster_up    one

The machine is shared, so compare a time only with a peer that was measured in turn with it. No test asserts
a time.
"""
