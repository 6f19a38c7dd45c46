"""Benchmarks: programs that print a table and write JSON, each with its peers in the same run.

    make bench                          all of them
    python -m tests.bench cluster_up    one

A time measured alone says little about a machine that is shared; what counts is the ratio to a
peer measured in turn with it. No test asserts a time.
"""
