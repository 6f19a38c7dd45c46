"""Checks across fields, documents and files, and the formats in which problems are printed.

Entry points: `fleet_checks`, `wave_checks`, `tree_checks`. Pure. May import: api, documents, render, stagelint.
"""
