"""The Fleet API `kwokfleet.dev/v1alpha1`: models, field types, units, decoding, JSON Schema.

Entry point: `decode` (documents to models or findings). `fleet`, `node_pool`, `lifecycle`, `wave`, `delay` and
`kwok_controller` are the models; each default value is defined once, on its model field. Pure. May import:
documents, kube values.
"""
