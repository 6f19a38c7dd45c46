"""Runs of Waves: which are due, how their objects are submitted, churned and removed.

Entry point: `controller`. The `ledger` records Runs in the Fleet's status; `run_executor` submits the objects of
one Run through the `deadline_queue`; `cleanup` removes them. May import: kube, api, render.
"""
