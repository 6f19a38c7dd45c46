"""HTTP API of a daemon: routes, access rules, server-sent events.

Entry point: `http_server.HttpServer`. May import: daemon values, errors.
"""
