"""The kwok controller: flags, process, supervision, shards, node leases, takeover of other controllers.

Entry point: `supervisor`. A shard runs in a `backend`: a local `process`, or a pod of a StatefulSet
(`pod_backend`). `external` only observes a kwok that someone else runs. `flags`, `sharding`, `exits`, `restart_policy`,
`log_lines`, `statefulset`, `node_leases`, `lease_health`, `requeue` and `foreign_controllers` are pure.
May import: kube, documents, api.
"""
