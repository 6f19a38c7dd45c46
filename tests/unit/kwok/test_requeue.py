"""Objects that kwok must process again after a Stage changed."""

from kwokfleet.kube.objects import ObjectKey
from kwokfleet.kube.observed import Observed
from kwokfleet.kwok import requeue

LIFECYCLE = {"kwokfleet.dev/lifecycle": "f.a"}


def pod(phase: str, **labels: str) -> Observed:
    """Return a pod as the informer keeps it."""
    metadata = {"name": "p", "namespace": "n", "labels": labels}
    manifest = {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "a"}, "status": {"phase": phase}}
    return Observed(ObjectKey("v1", "Pod", "n", "p"), "u", 1, manifest)


def test_a_changed_stage_affects_unfinished_pods_with_its_labels() -> None:
    """The informer keeps only kwokfleet's labels of a pod, so other labels exclude no pod."""
    own_stage = {"spec": {"resourceRef": {"kind": "Pod"}, "selector": {"matchLabels": LIFECYCLE}}}
    other_stage = {"spec": {"resourceRef": {"kind": "Pod"}, "selector": {"matchLabels": {"app": "web"}}}}
    labelled, plain, finished = pod("Running", **LIFECYCLE), pod("Running"), pod("Succeeded", **LIFECYCLE)
    assert list(requeue.affected([own_stage], [labelled, plain, finished])) == [labelled]
    assert list(requeue.affected([other_stage], [labelled, plain])) == [labelled, plain]
