"""Where fleet files come from: folder, git repository, watching, revisions, webhooks.

Entry points: `loader` (from a path to a validated tree) and `source` (the files of a daemon: `folder_source` or
`git_source`).
May import: everything below it, up to validate.
"""
