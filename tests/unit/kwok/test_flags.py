"""The kwok controller, purely: shards, log lines, endings, pauses, other controllers, what to show again."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kwokfleet.api.kwok_controller import KwokControllerSpec
from kwokfleet.kube.objects import ObjectKey
from kwokfleet.kube.observed import Observed
from kwokfleet.kwok import flags, foreign_controllers, node_leases, requeue

NOW = datetime(2026, 3, 2, 8, tzinfo=UTC)
NODES = [f"fleet-pool-{number}" for number in range(2000)]


def spec(**fields: Any) -> KwokControllerSpec:  # noqa: ANN401 - fields of the document
    """Read a spec."""
    return KwokControllerSpec.model_validate(fields)


def test_shards_get_their_fair_share() -> None:
    """No shard has half as many nodes again as another."""
    sizes = [sum(flags.shard_of(node, 4) == shard for node in NODES) for shard in range(4)]
    assert max(sizes) < 1.5 * min(sizes)


def test_one_more_shard_takes_nodes_and_moves_no_other() -> None:
    """Going from three to four, whatever moves moves to the new one."""
    moved = {(flags.shard_of(node, 3), flags.shard_of(node, 4)) for node in NODES}
    assert {after for before, after in moved if before != after} == {3}


def test_a_shard_drives_the_nodes_with_its_label() -> None:
    """Alone it goes by the annotation; one of several by the label, and by the annotation too."""
    alone = flags.arguments(spec(), flags.ShardSpec(), ())
    second = flags.arguments(spec(shards=2), flags.ShardSpec(1, 2), ())
    assert not any(flag.startswith("--manage-nodes-with-label-selector") for flag in alone)
    assert "--manage-nodes-with-label-selector=kwokfleet.dev/shard=1" in second
    assert all("--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake" in each for each in (alone, second))


def test_nodes_of_others_are_not_driven() -> None:
    """Where a label says which ones are: neither their leases nor their shards are our concern."""
    manage = spec(manage={"label": "kwokfleet.dev/fleet=lab"}).manage
    assert manage.matches({"kwokfleet.dev/fleet": "lab", "more": ""})
    assert not manage.matches({"kwokfleet.dev/fleet": "other"})
    assert not manage.matches({})
    assert spec().manage.matches({})


@pytest.mark.parametrize(
    ("text", "level", "event"),
    [
        ('{"time":"t","level":"ERROR","msg":"Failed","err":"no"}', "error", "Failed"),
        ('{"time":"t","level":"WARN","msg":"Careful"}', "warning", "Careful"),
        ("E0302 08:00:00.000000   12 reflector.go:150] cannot list", "error", "cannot list"),
        ("panic: runtime error", "error", "panic: runtime error"),
        ("{not json", "warning", "{not json"),
        ("", "info", ""),
    ],
)
def test_every_line_is_read(text: str, level: str, event: str) -> None:
    """Its own, those of libraries below it, and what is neither."""
    assert (flags.parse_log_line(text).level, flags.parse_log_line(text).event) == (level, event)


@pytest.mark.parametrize(
    ("code", "words", "ending"),
    [
        (-9, "", flags.ExitReason.KILLED),
        (1, "Execute exit err=no stages found", flags.ExitReason.CONFIGURATION),
        (1, "dial tcp 127.0.0.1:1: connect: connection refused", flags.ExitReason.AWAY),
        (1, "listen tcp 127.0.0.1:1: bind: address already in use", flags.ExitReason.PORT),
        (2, "panic: assignment to entry in nil map", flags.ExitReason.CRASHED),
        (1, "something else", flags.ExitReason.CRASHED),
    ],
)
def test_endings_are_told_apart_by_the_last_words(code: int, words: str, ending: flags.ExitReason) -> None:
    """The exit code alone is always 1."""
    assert flags.exit_reason(code, words, asked=False) is ending
    assert flags.exit_reason(code, words, asked=True) is flags.ExitReason.ASKED


def test_pauses_grow_to_a_limit_and_a_steady_process_begins_anew() -> None:
    """Twice at once, then longer and longer; a minute of good work is forgiven."""
    record, pauses = flags.RestartRecord(), []
    for _ in range(15):
        record = record.after(ran_s=1)
        pauses.append(record.pause_s)
    assert pauses[:4] == [0, 0, 0.25, 0.5]
    assert pauses[-1] == flags.MAX_RESTART_PAUSE_S
    assert record.after(ran_s=61).pause_s == 0
    assert record.after(ran_s=61).restarts == 16


def deployment(name: str, image: str = "nginx", **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - of a manifest
    """Write a Deployment."""
    pod = {"spec": {"containers": [{"image": image}]}}
    metadata = {"name": name, "namespace": "kube-system", "uid": "u", **fields}
    return {"metadata": metadata, "spec": {"replicas": 2, "template": pod}}


def test_other_kwoks_are_known_by_name_label_or_image() -> None:
    """And what only sounds like one is not taken for it."""
    assert foreign_controllers.runs_kwok(deployment("kwok-controller"))
    assert foreign_controllers.runs_kwok(deployment("x", labels={"app": "kwok-controller"}))
    assert foreign_controllers.runs_kwok(deployment("x", "registry.example/kwok/kwok:v0.8.0"))
    assert not foreign_controllers.runs_kwok(deployment("x", "registry.example/kwokfleet:1"))


def test_what_is_put_to_rest_remembers_and_gets_back_what_it_had() -> None:
    """Unless somebody has scaled it meanwhile: that stays."""
    one = foreign_controllers.from_deployment(deployment("x"))
    body = foreign_controllers.scale_down_patch(one).body
    assert (body["spec"], body["metadata"]["annotations"]) == ({"replicas": 0}, {foreign_controllers.REPLICAS: "2"})
    resting = foreign_controllers.ForeignController("n", "x", "u", 0, 2)
    scaled = foreign_controllers.ForeignController("n", "x", "u", 5, 2)
    assert foreign_controllers.restore_patch(resting).body["spec"] == {"replicas": 2}
    assert "spec" not in foreign_controllers.restore_patch(scaled).body


def lease(holder: str, age_s: float) -> node_leases.NodeLease:
    """Make a lease of 40 s that was renewed a while ago."""
    return node_leases.NodeLease("node", holder, NOW - timedelta(seconds=age_s), 40, "u", "1")


def test_strangers_are_those_who_may_still_renew() -> None:
    """Not ours, and heard of within half of the time that leases last; one lease that was renewed is enough."""
    held = [lease("ours", 1), lease("stranger", 39), lease("stranger", 19), lease("dead", 21), lease("dead", 41)]
    assert set(foreign_controllers.foreign_leases(held, "ours".__eq__, NOW)) == {"stranger"}


def test_a_lease_is_removed_only_as_it_was_read() -> None:
    """By its UID and version; without them it is a mistake."""
    assert b'"resourceVersion":"1"' in (node_leases.release_request(lease("dead", 50)).body or b"")
    with pytest.raises(ValueError, match="without identity"):
        node_leases.release_request(node_leases.NodeLease("node", "x", NOW, 40))


def pod(phase: str, **labels: str) -> Observed:
    """Make a pod as a mirror has it."""
    metadata = {"name": "p", "namespace": "n", "labels": labels}
    manifest = {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "a"}, "status": {"phase": phase}}
    return Observed(ObjectKey("v1", "Pod", "n", "p"), "u", 1, manifest)


def test_only_objects_that_a_stage_may_act_on_are_shown_again() -> None:
    """By its labels of ours; labels of others are not known of pods, and rule none out. What has ended, has ended."""
    reference = {"kind": "Pod"}
    own = {"spec": {"resourceRef": reference, "selector": {"matchLabels": {"kwokfleet.dev/lifecycle": "f.a"}}}}
    others = {"spec": {"resourceRef": reference, "selector": {"matchLabels": {"app": "web"}}}}
    mine, other = pod("Running", **{"kwokfleet.dev/lifecycle": "f.a"}), pod("Running")
    ended = pod("Succeeded", **{"kwokfleet.dev/lifecycle": "f.a"})
    assert list(requeue.affected([own], [mine, other, ended])) == [mine]
    assert list(requeue.affected([others], [mine, other])) == [mine, other]
