"""The kwok controller: flags, process, supervision, shards, node leases, takeover of other controllers.

Entry point: `supervisor`. A shard runs in a `backend`: a local `process`, or a pod of a StatefulSet
(`pod_backend`). `external` only observes a kwok that someone else runs. May import: kube, documents, api.
"""
