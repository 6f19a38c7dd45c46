"""Learning a Lifecycle from pod states."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from kwokfleet.api import lifecycle as lifecycle_api
from kwokfleet.documents import formatter, parser
from kwokfleet.learn import lifecycle_writer
from kwokfleet.learn.learner import LearnedLifecycle, LifecycleLearner
from kwokfleet.measure.result import Clock
from kwokfleet.render import lifecycles
from kwokfleet.render.distributions import ConstantDistribution, ExponentialDistribution
from kwokfleet.render.seeded_random import SeededRandom
from kwokfleet.source import loader, shipped_files
from kwokfleet.stagelint import rules
from tests.harness import pod_states
from tests.harness.pod_states import EPOCH, PodState

Manifest = dict[str, Any]
PROVENANCE = lifecycle_writer.Provenance("web", "namespace shop", "1.2.3")


def learner_of(*pods: list[Manifest]) -> LifecycleLearner:
    """Return a learner that observed pod states without times of receipt."""
    learner = LifecycleLearner()
    for states in pods:
        for state in states:
            learner.observe("MODIFIED", state)
    return learner


def job_pods(count: int = 200, failing: float = 0.1) -> list[list[Manifest]]:
    """Return the states of Job pods that run for 30 s on average; some fail."""
    run, fails, start = SeededRandom("run"), SeededRandom("fails"), SeededRandom("start")
    return [
        list(
            pod_states.job_pod_states(
                f"job-{index}",
                1000 * start.uniform(index),
                (2, 5, run.draw(index, ExponentialDistribution(30))),
                137 if fails.uniform(index) < failing else 0,
            )
        )
        for index in range(count)
    ]


def medians(learned: LearnedLifecycle) -> dict[str, tuple[object, int]]:
    """Return the median and the sample size of each step."""
    return {name: (step.fit.sample.quantile(0.5), step.fit.sample.size) for name, step in learned.steps.items()}


def test_job_pods_give_all_steps() -> None:
    """Constant steps are fitted as constants, the run time as exponential; the clock is the API's."""
    learned = learner_of(*job_pods()).result()
    assert isinstance(learned.steps["create"].fit.shape, ConstantDistribution)
    assert learned.steps["create"].fit.shape.value == pytest.approx(2, abs=0.2)
    assert isinstance(learned.steps["complete"].fit.shape, ExponentialDistribution)
    assert {step.clock for step in learned.steps.values()} == {Clock.API}
    assert learned.fails is not None
    assert learned.fails.count + learned.steps["complete"].fit.sample.size == learned.fails.of == learned.pods == 200
    assert (learned.fails.reason, learned.fails.exit_code) == ("OOMKilled", 137)
    assert learned.jobs
    assert not learned.notes


def test_the_final_states_give_the_same_steps() -> None:
    """`kubectl get pods -o json` shows only these; the start time of a pod is in its final state."""
    all_states = learner_of(*job_pods()).result()
    last = learner_of(*([states[-1]] for states in job_pods())).result()
    assert medians(last) == medians(all_states)


def test_times_of_receipt_are_preferred() -> None:
    """They are exact to hundredths; pods of the initial list have none."""
    learner = LifecycleLearner()
    for index, start in enumerate(range(0, 1000, 100)):
        pod = PodState(f"seen-{index}", policy="Always")
        learner.observe("ADDED", pod.now, EPOCH + start)
        learner.observe("MODIFIED", pod.bound(start + 0.4), EPOCH + start + 0.4)
        learner.observe("MODIFIED", pod.creating(start + 0.7), EPOCH + start + 0.7)
        pod.started(start + 2.9)
        learner.observe("MODIFIED", pod.ready(start + 2.9), EPOCH + start + 2.9)
    for index in range(50):
        old = PodState(f"old-{index}", policy="Always")
        old.bound(0)
        old.creating(5)
        old.started(9)
        learner.observe("LISTED", old.ready(9))
    learned = learner.result()
    assert medians(learned) == {
        "create": (pytest.approx(0.3, abs=0.05), 10),
        "ready": (pytest.approx(2.2, abs=0.05), 10),
    }
    assert {step.clock for step in learned.steps.values()} == {Clock.WATCH}
    assert learner.finished == learned.pods == 60


def test_the_first_event_of_an_existing_pod_is_not_a_transition() -> None:
    """A pod that gets the selected label is reported as ADDED."""
    learner = LifecycleLearner()
    pod = PodState("late", policy="Always")
    pod.bound(0)
    pod.creating(7)
    learner.observe("ADDED", pod.ready(10), EPOCH + 5000)
    assert medians(learner.result()) == {"create": (7, 1), "ready": (3, 1)}


def test_a_restarted_pod_gives_no_ready_step() -> None:
    """Its status has only the last start of its containers."""
    pod = PodState("restarted", policy="Always")
    pod.bound(0)
    pod.creating(2)
    pod.started(5000, count=3)
    assert medians(learner_of([pod.ready(5003), pod.ready(5003)]).result()) == {"create": (2, 1)}


def test_ready_ends_with_the_probe_and_complete_starts_there() -> None:
    """A fake pod is Ready when it starts, so both times are right."""
    pod = PodState("probed")
    states = [pod.bound(0), pod.creating(1), pod.started(4), pod.ready(14), pod.over(4, 20)]
    assert medians(learner_of(states).result()) == {"create": (1, 1), "ready": (13, 1), "complete": (6, 1)}


def test_init_containers_are_a_separate_step() -> None:
    """The ready step starts when they end."""
    pod = PodState("prepared", policy="Always", init=True)
    states = [pod.bound(0), pod.creating(1), pod.initialized(9), pod.started(11), pod.ready(11)]
    assert medians(learner_of(states).result()) == {"create": (1, 1), "init": (8, 1), "ready": (2, 1)}


def test_a_deleted_pod_neither_completed_nor_failed() -> None:
    """Only the duration of its deletion is learned."""
    learner = LifecycleLearner()
    for index in range(10):
        pod = PodState(f"gone-{index}", policy="Always")
        pod.bound(0)
        learner.observe("LISTED", pod.creating(1))
        pod.started(2)
        learner.observe("MODIFIED", pod.ready(2), EPOCH + 2)
        learner.observe("MODIFIED", pod.deleting(50), EPOCH + 50)
        learner.observe("MODIFIED", pod.over(2, 53, 143, "Error"), EPOCH + 53.2)
        learner.observe("DELETED", pod.now, EPOCH + 53.4)
    learned = learner.result()
    assert medians(learned)["delete"] == (pytest.approx(3.4, abs=0.05), 10)
    assert not learned.steps.keys() & {"complete", "fail", "every"}
    assert learned.fails is None
    assert "ended by deletion: 10 pods" in learned.notes[0]


def test_without_times_of_receipt_a_deletion_ends_with_the_containers() -> None:
    """A recording has no other time."""
    pod = PodState("gone", policy="Always")
    states = [pod.bound(0), pod.creating(1), pod.started(2), pod.ready(2), pod.deleting(50), pod.over(2, 53, 143)]
    learner = learner_of(states)
    learner.observe("DELETED", states[-1])
    assert medians(learner.result())["delete"] == (3, 1)


def crash_loop_states(name: str) -> list[Manifest]:
    """Return the states of a pod that three times runs for 4 s and waits for 10 s."""
    pod = PodState(name, policy="Always")
    states = [pod.bound(0), pod.creating(1)]
    for count, start in enumerate((2, 16, 30)):
        last = {"terminated": pod_states.terminated_state(start - 14, start - 10, 139, "Segfault")} if count else None
        pod.started(start, count, last)
        states += [pod.ready(start), pod.crashed(start, start + 4, count + 1, 139, "Segfault")]
    return states


def test_crash_loops_become_restarts() -> None:
    """Run times and backoffs are fitted; a repeated state counts once."""
    learner = learner_of(crash_loop_states("a"), crash_loop_states("b"), crash_loop_states("a"))
    learned = learner.result()
    assert medians(learned) == {"create": (1, 2), "ready": (1, 2), "every": (4, 6), "backoff": (10, 4)}
    restart = lifecycle_writer.lifecycle(learned, "web")["pod"]["restart"]
    assert restart == {"every": "4s", "backoff": "10s", "reason": "Segfault", "exitCode": 139}


def test_crashes_of_few_pods_are_only_noted() -> None:
    """A Lifecycle would make all pods crash."""
    learned = learner_of(
        crash_loop_states("a"), *(crash_loop_states(f"fine-{index}")[:3] for index in range(5))
    ).result()
    assert learned.crashes is None
    assert "every" not in learned.steps
    assert "containers of 1 pod crashed" in learned.notes[0]


def test_running_pods_are_noted() -> None:
    """The finished pods may be the faster ones."""
    learned = learner_of(*job_pods(20, failing=0), *(states[:4] for states in job_pods(50)[20:])).result()
    assert "still running at the end: 30 pods" in learned.notes[0]


def test_negative_durations_count_as_zero() -> None:
    """Clocks may differ; the number of such pods is reported."""
    pods = [PodState(f"p{index}") for index in range(9)]
    learned = learner_of(*([pod.bound(10), pod.creating(7)] for pod in pods)).result()
    assert medians(learned)["create"][1] == learned.steps["create"].backwards == 9
    assert learned.steps["create"].fit.shape == ConstantDistribution(0)
    assert "clocks differ" in lifecycle_writer.fit_summary(learned.steps["create"])


def test_pods_without_a_node_are_only_noted() -> None:
    """They give no steps."""
    learned = learner_of([PodState("pending").now]).result()
    assert not learned.steps
    assert "1 of 1 pod had no node" in learned.notes[0]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.sampled_from(["", "True", "x", "2026-01-01T00:00:00Z"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "terminated", "x"]), inner),
    max_leaves=6,
)


@given(st.data())
def test_an_invalid_pod_is_rejected_without_side_effects(data: st.DataObject) -> None:
    """Any value in any field is accepted, or raises ValueError and leaves the result unchanged."""
    states = job_pods(1)[0]
    learner, reference = learner_of(states), learner_of(states)
    part = data.draw(st.sampled_from(["metadata", "spec", "status"]))
    key = data.draw(st.sampled_from([*states[-1][part], "conditions", "containerStatuses", "deletionTimestamp"]))
    broken = {**states[-1], part: {**states[-1][part], key: data.draw(json_values)}}
    try:
        learner.observe("MODIFIED", broken)
    except ValueError:
        assert learner.result() == reference.result()


# the written Lifecycle


def learned_lifecycles() -> list[LearnedLifecycle]:
    """Return learned Lifecycles with different steps."""
    return [
        learner_of(*job_pods()).result(),
        learner_of(*job_pods(5)).result(),
        learner_of(crash_loop_states("a"), crash_loop_states("b")).result(),
        learner_of(*(states[:3] for states in job_pods(10))).result(),
        learner_of(*job_pods(9, failing=1)).result(),
    ]


LIBRARY: lifecycles.Library = {
    document.value["metadata"]["name"]: document.value
    for name in shipped_files.stage_sets()
    for document in parser.parse(name, shipped_files.stage_set(name))[0]
    if isinstance(document.value, dict)
}


@pytest.mark.parametrize("learned", learned_lifecycles(), ids=range(5))
def test_the_written_lifecycle_is_valid(learned: LearnedLifecycle) -> None:
    """It equals the value, and its Stages pass the linter."""
    [entry] = YAML(typ="safe", pure=True).load(lifecycle_writer.lifecycle_text(learned, PROVENANCE))["lifecycles"]
    assert entry == lifecycle_writer.lifecycle(learned, "web")
    lifecycle = lifecycle_api.Lifecycle.model_validate(entry)
    for stage in lifecycles.stages("lab", lifecycle, LIBRARY, lease=True):
        assert rules.check(stage) == []


@pytest.mark.parametrize("learned", learned_lifecycles(), ids=range(5))
def test_the_written_fleet_is_valid_and_formatted(learned: LearnedLifecycle, tmp_path: Path) -> None:
    """It loads without a Problem."""
    file = tmp_path / "learnt.yaml"
    file.write_text(lifecycle_writer.fleet_text(learned, PROVENANCE, "learnt"))
    loaded = loader.Loader().load(file)
    assert not loaded.problems
    [fleet] = loaded.tree.fleets
    assert fleet.spec.waves[0].lifecycle == "web"
    assert formatter.format_text("learnt.yaml", file.read_text()) == file.read_text()


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e7)), min_size=1, max_size=30),
    st.text(max_size=30),
    st.integers(-5, 2**31),
)
def test_any_observation_gives_a_valid_lifecycle(times: list[tuple[float, float]], reason: str, code: int) -> None:
    """For any duration, reason and exit code; text in comments stays in comments."""
    pods = []
    for index, (start, run) in enumerate(times):
        pod = PodState(f"p{index}")
        states = [pod.bound(start), pod.creating(start), pod.started(start)]
        pods.append([*states, pod.over(start, start + run, code, reason)])
    learned = learner_of(*pods).result()
    text = lifecycle_writer.lifecycle_text(learned, lifecycle_writer.Provenance("web", f"{reason}\nname: x", "1"))
    [entry] = YAML(typ="safe", pure=True).load(text)["lifecycles"]
    lifecycle_api.Lifecycle.model_validate(entry)


@pytest.mark.parametrize(
    ("text", "name"), [("web", "web"), ("App_Name/V2", "app-name-v2"), ("--", "learnt"), ("x" * 99, "x" * 30)]
)
def test_any_text_gives_a_valid_lifecycle_name(text: str, name: str) -> None:
    """Invalid characters are replaced, and the length is limited."""
    assert lifecycle_writer.lifecycle_name(text) == name
