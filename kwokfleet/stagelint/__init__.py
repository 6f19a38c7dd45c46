"""Linter for kwok Stages: schema, CEL, jq and Go templates, checked as kwok evaluates them.

Entry point: `rules`. `coverage` tells which lifecycles no Stage completes. Pure. May import: documents, kube values.
"""
