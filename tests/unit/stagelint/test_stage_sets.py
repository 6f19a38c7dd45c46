"""The Stages in stages/, as far as can be said without a cluster: their form, and what their expressions yield."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import jq  # type: ignore[import-not-found,unused-ignore]  # ships no types
import pytest

from tests.harness.stage_objects import FOLDER, SETS, documents, stages

DEFAULT = {"node-fast", "node-heartbeat", "node-heartbeat-with-lease", "pod-fast", "pod-general", "job", "pod-recover"}
"""The sets that leave objects with a lifecycle of their own alone."""
LIFECYCLE = {"key": '.metadata.labels["kwokfleet.dev/lifecycle"]', "operator": "DoesNotExist"}
Manifest = dict[str, Any]


@pytest.mark.parametrize("name", SETS)
def test_a_set_keeps_to_the_form_others_rely_on(name: str) -> None:
    """Names, the label, the current spelling of everything, and lifecycles left alone by the default sets."""
    assert (FOLDER / f"{name}.yaml").read_text().startswith(f"# {name}: ")
    for document in documents(name):
        assert document["metadata"]["labels"]["kwokfleet.dev/stage-set"] == name
    for stage, spec in stages(name).items():
        assert stage.startswith(f"{name}-")
        assert spec["steps"]
        assert "next" not in spec
        required = spec["selector"]["matchExpressions"]
        assert all(set(each) == {"jq"} for each in required)
        assert (required[0] == {"jq": LIFECYCLE}) == (name in DEFAULT)
        for expression in expressions(spec):
            jq.compile(expression)


def expressions(spec: Manifest) -> Iterator[str]:
    """Yield every jq expression of a Stage."""
    yield from (each["jq"]["key"] for each in spec["selector"]["matchExpressions"])
    delay = spec.get("delay", {})
    for source in (spec.get("weightFrom"), delay.get("durationFrom"), delay.get("jitterDurationFrom")):
        if source:
            yield source["jq"]["expression"]


@pytest.mark.parametrize(
    ("arguments", "delay"),
    [
        (["sleep", "10s"], "11000ms"),
        (["sleep", "10"], "11000ms"),
        (["sleep", "0.5"], "1500ms"),
        (["sleep", "1m30s"], "91000ms"),
        (["sleep", "2m"], "121000ms"),
        (["sh", "-c", "echo go; /bin/sleep 3 && exit"], "4000ms"),
        (["sleep", "infinity"], None),
        (["oversleep", "3"], None),
        (["serve"], None),
    ],
)
def test_the_job_set_reads_how_long_a_program_takes(arguments: list[str], delay: str | None) -> None:
    """A pod that is not a Job's ends only if its args say when; teardown takes one second more."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"containerStatuses": [{"name": "c", "state": {"running": {"startedAt": now}}}]}
    manifest = {
        "metadata": {},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "args": arguments}]},
        "status": status,
    }
    spec = stages("job")["job-complete"]
    ends = jq.compile(spec["selector"]["matchExpressions"][-1]["jq"]["key"]).input_value(manifest).first()
    assert ends == (delay is not None)
    if delay:
        assert jq.compile(spec["delay"]["durationFrom"]["jq"]["expression"]).input_value(manifest).first() == delay


@pytest.mark.parametrize("name", ["pod-fast", "pod-general"])
@pytest.mark.parametrize(("group", "completes"), [("batch/v1", True), ("batch.volcano.sh/v1alpha1", False)])
def test_only_jobs_of_the_group_batch_complete(name: str, group: str, completes: bool) -> None:  # noqa: FBT001 - a case
    """Volcano has a kind of the same name, whose pods end by other means."""
    owner = {"metadata": {"ownerReferences": [{"apiVersion": group, "kind": "Job", "name": "j"}]}}
    required = stages(name)[f"{name}-complete"]["selector"]["matchExpressions"][-1]["jq"]
    assert required["operator"] == "Exists"
    assert bool(jq.compile(required["key"]).input_value(owner).all()) == completes
