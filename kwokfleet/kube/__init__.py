"""Access to the Kubernetes API: objects, requests, throttling, discovery, Events, leader election.

Entry points: `client.Cluster` (one API server), `throttled_client` (adaptive concurrency and retries),
`leader` (writes only with the Lease), `informer` (watched caches). `objects`, `observed` and `requests` are
pure values. Only `client` imports the `kubernetes` package. May import: errors, settings.
"""
