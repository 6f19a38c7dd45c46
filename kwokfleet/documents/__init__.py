"""YAML text to values that know their line, and back.

Entry point: `parser`. `formatter` is `kwokfleet fmt`, `writer` prints manifests, `problems` has Finding and
Problem (`path:line:column: message`). Pure. May import: nothing above kube.
"""
