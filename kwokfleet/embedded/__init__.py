"""The local control plane: etcd, the Kubernetes components and kwok on this machine, on loopback only.

`binaries.ensure` finds, downloads or builds the programs; `cluster.up` starts them through kwokctl. For users
without a cluster, and for the tests. Knows nothing of Fleets. May import: errors, settings.
"""
