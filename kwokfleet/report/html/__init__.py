"""The HTML report: one self-contained page with tables and SVG figures.

Entry point: `page`. `assets/` has its style sheet and script. Pure. May import: measure, report.
"""
