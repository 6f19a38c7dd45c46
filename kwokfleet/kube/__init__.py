"""Access to the Kubernetes API: objects, requests, throttling, discovery, Events, leader election.

Entry points: `client.KubeClient` (one API server), `throttled_client` (adaptive concurrency and retries),
`leader_guarded_client` (writes only as leader), `informer` (watched caches). `objects`, `observed` and `requests` are
pure values; `backoff` and `parallel` are the only retry pauses and worker threads of the tree. Only `client` imports
the `kubernetes` package. May import: errors, settings.
"""
