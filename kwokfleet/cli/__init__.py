"""The command line: one module per group of commands. Entry point: `main.main`.

Commands parse options, call the other packages and print. A command imports the packages that it needs when it runs:
`--help` must not load the Kubernetes client. May import everything.
"""
