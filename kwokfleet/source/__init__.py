"""Where fleet files come from: folder, git repository, watching, revisions, webhooks.

Entry points: `loader` (from a path to a validated tree) and `sources` (the files of a daemon).
May import: everything below it, up to validate.
"""
