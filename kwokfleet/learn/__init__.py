"""Lifecycles learned from real pods: watch events to distributions to a Lifecycle.

Entry point: `learner`. `fitting` chooses among `render.distributions`, `lifecycle_writer` prints the result.
Pure. May import: api, documents, kube values, render.
"""
