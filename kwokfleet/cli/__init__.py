"""The command line: one module per group of commands.

Modules here import what a command needs inside that command: `--help` must not pay for
Kubernetes' client.
"""
