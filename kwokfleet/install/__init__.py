"""Installation in a cluster: manifests, bundle, rollout, removal.

Entry points: `installer`, `uninstaller`. May import: kube, source, reconcile, kwok.
"""
