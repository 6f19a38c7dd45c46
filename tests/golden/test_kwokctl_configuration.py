import json

from kwokfleet.embedded import kwokctl, state, versions
from tests.harness.golden_files import GoldenFiles

PORTS = state.Ports(
    kube_apiserver=6443, kube_controller_manager=10257, kube_scheduler=10259, etcd=2379, etcd_peer=2380, kwok=10247
)
BINARIES = tuple((name, f"/bin/{name}") for name in versions.COMPONENTS)


def test_plain_cluster(golden_file: GoldenFiles) -> None:
    """The kwokctl configuration of the default options."""
    text = json.dumps(kwokctl.configuration(state.Spec(binaries=BINARIES), PORTS), indent=2)
    golden_file.check("kwokctl-plain.json", text + "\n")


def test_cluster_with_everything_passed_through(golden_file: GoldenFiles) -> None:
    """The user's scheduler configuration and flags come after ours, so they take precedence."""
    spec = state.Spec(
        port=6443,
        scheduler_config="/etc/my-scheduler.yaml",
        extra_args=(("kube-scheduler", "v", "4"), ("etcd", "unsafe-no-fsync", "true")),
        binaries=BINARIES,
    )
    text = json.dumps(kwokctl.configuration(spec, PORTS), indent=2)
    golden_file.check("kwokctl-passed-through.json", text + "\n")
