"""A Fleet at a point in time to desired objects: nodes, Stages, workloads, schedules.

Entry point: `desired.render`. All randomness comes from `seeded_random`, so the same file renders the same
objects. Pure. May import: kube values, documents, api, stagelint, kwok values.
"""
