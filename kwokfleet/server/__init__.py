"""HTTP API of a daemon: routes, access rules, server-sent events.

Entry point: `http_server.Service`. May import: daemon values, errors.
"""
