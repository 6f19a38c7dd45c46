"""A real control plane on this machine, for people without a cluster at hand and for the tests.

`binaries.ensure` finds, downloads or builds etcd, the Kubernetes components and kwok;
`cluster.up` starts them through kwokctl. Nothing here knows of Fleets.
"""
