"""Desired and observed objects to a Plan, and the Plan to the cluster.

Entry points: `reconciler` (files and cluster to a Plan) and `sync` (Plan to cluster). `guards` decide what is
withheld, `planner` orders the changes, `applier` sends them, `fleet_status` computes Fleet.status.
May import: kube, api, render, kwok, source.
"""
