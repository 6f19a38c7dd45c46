"""Where fleet files come from: folder, git repository, watching, revisions, webhooks.

Entry points: `loader` (a path to a validated tree) and `sources` (what a daemon follows).
May import: everything below it, up to validate.
"""
