"""YAML text to values with line numbers, and back.

Entry point: `parser`. `formatter` implements `kwokfleet fmt`, `writer` prints manifests, `problems` defines
Finding and Problem (`path:line:column: message`). Pure. May import: kube values.
"""
