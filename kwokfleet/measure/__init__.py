"""Measurement of Runs: watch events in, a Result with latencies, time series and gates out.

Entry point: `measurer`. `collector` gathers one Run's events, `result` is the stored value, `gates` and
`verdicts` judge it, `result_store` keeps it on disk. May import: kube, api, render, waves.
"""
