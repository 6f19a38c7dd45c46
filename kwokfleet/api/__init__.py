"""The Fleet API `kwokfleet.dev/v1alpha1`: models, field types, units, decoding, JSON Schema.

Entry point: `decode` (documents to models or findings). `fleet`, `wave`, `delay` and `kwok_controller` are the
models; every default value of a field stands on its model. Pure. May import: documents, kube values.
"""
