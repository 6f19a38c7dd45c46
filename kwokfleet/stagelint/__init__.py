"""Linter for kwok Stages: schema, CEL, jq and Go templates, checked as kwok evaluates them.

Entry point: `rules`. `coverage` finds pods that no Stage completes and nodes without heartbeat. Pure.
May import: documents, kube values.
"""
